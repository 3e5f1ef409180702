// Each figure is drawn when it comes near the window; the library is unpacked for the first one, or before, in idle time.

const shades = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let library = null;

function plotly() {
  library ??= unpack("plotly").then((source) => {
    const script = document.createElement("script");
    script.textContent = source;
    document.head.append(script);
  });
  return library;
}

function template() {
  const axis = {
    gridcolor: shades("--line"), zerolinecolor: shades("--quiet"), linecolor: shades("--line"), automargin: true,
  };
  return {layout: {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
    font: {color: shades("--text"), family: "system-ui, sans-serif", size: 13},
    hoverlabel: {bgcolor: shades("--raised"), font: {color: shades("--text")}, bordercolor: shades("--line")},
  }};
}

/** A title too long for a narrow figure takes two lines. */
function fit(layout, width) {
  for (const [name, axis] of Object.entries(layout)) {
    const text = name.startsWith("xaxis") ? axis.title?.text : undefined;
    if (!text || text.length * 7.5 < width - 80) continue;
    const middle = text.indexOf(" ", text.length / 2);
    if (middle > 0) axis.title.text = `${text.slice(0, middle)}<br>${text.slice(middle + 1)}`;
  }
}

async function draw(plot) {
  await plotly();
  const {data, layout} = JSON.parse(document.querySelector(`script[data-plot="${plot.id}"]`).textContent);
  fit(layout, plot.clientWidth);
  await Plotly.react(plot, data, {...layout, template: template()}, {responsive: true, displayModeBar: false});
  if (plot.dataset.drawn) return;
  plot.dataset.drawn = "true";
  // A point that is a session opens its turns.
  plot.on("plotly_click", ({points}) => document.dispatchEvent(new CustomEvent("session", {detail: points[0].text})));
}

const near = new IntersectionObserver((seen) => {
  for (const {isIntersecting, target} of seen) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    draw(target).catch((error) => {
      target.textContent = "This browser can't draw the figure; its caption holds the main numbers.";
      console.error(error);
    });
  }
}, {rootMargin: "400px"});
document.querySelectorAll(".plot").forEach((plot) => near.observe(plot));

const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 500));
addEventListener("load", () => idle(() => plotly().catch(console.error), {timeout: 5000}));

const redraw = () => document.querySelectorAll(".plot[data-drawn]").forEach(draw);
document.addEventListener("themechange", redraw);
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((part) => { part.open = true; });
  if (window.Plotly) document.querySelectorAll(".plot").forEach(draw);
});

// Tables that sort, say their formulas and can be copied. Without this script they are plain tables.

const status = document.getElementById("status");

function say(text) {
  status.textContent = text;
  status.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => status.classList.remove("shown"), 2500);
}

// -- sorting: ascending, descending, as it was ------------------------------------------------------------------

function sortable(table) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 2) return;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    if (head.dataset.formula) button.setAttribute("aria-describedby", head.dataset.formula);
    head.removeAttribute("tabindex");
    head.append(button);
    button.addEventListener("click", () => {
      const next = {ascending: "descending", descending: null}[head.getAttribute("aria-sort")];
      const order = next === undefined ? "ascending" : next;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      if (order) head.setAttribute("aria-sort", order);
      table.tBodies[0].append(...(order ? sorted(rows, column, order === "ascending" ? 1 : -1) : rows));
      say(order ? `Sorted by ${button.textContent.trim()}, ${order}` : "In the order of the report");
    });
  });
}

function sorted(rows, column, sign) {
  const key = (row) => {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    return {empty: text === "–" || text === "", number: cell.dataset.v === undefined ? NaN : Number(cell.dataset.v), text};
  };
  const keyed = rows.map((row) => [key(row), row]);
  keyed.sort(([a], [b]) => {
    if (a.empty || b.empty) return a.empty - b.empty;
    if (!isNaN(a.number) && !isNaN(b.number)) return sign * (a.number - b.number);
    return sign * a.text.localeCompare(b.text, "en", {numeric: true});
  });
  return keyed.map(([, row]) => row);
}

// -- copying ----------------------------------------------------------------------------------------------------

/** A GitHub table of what is shown, in the order it is shown; cells that only draw are left out. */
function markdown(table) {
  const said = (node) => node.textContent.replace(/[\\|`*_<>[\]]/g, "\\$&").trim().split(/\s+/).join(" ");
  const texts = (row) => [...row.cells].filter((cell) => !cell.classList.contains("line"))
    .map((cell) => (cell.classList.contains("best") ? `**${said(cell)}**` : said(cell)));
  const head = texts(table.tHead.rows[0]);
  const body = [...table.tBodies].flatMap((part) => [...part.rows]).map(texts);
  const padded = (cells) => [...cells, ...Array(head.length - cells.length).fill("")];
  return [head, head.map((_, column) => (column ? "--:" : ":--")), ...body.map(padded)]
    .map((cells) => `| ${cells.join(" | ")} |`).join("\n");
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const table = document.getElementById(button.dataset.copy);
    say((await copy(markdown(table))) ? "Table copied as Markdown" : "This browser does not let a page copy");
  });
}

// -- formulas: on hover and on focus, Escape hides them -----------------------------------------------------------

const tip = document.getElementById("tip");

let explained = null;

function showTip(head) {
  clearTimeout(showTip.hiding);
  explained = head;
  tip.textContent = document.getElementById(head.dataset.formula).textContent;
  tip.hidden = false;
  placeTip();
}

function placeTip() {
  if (tip.hidden) return;
  const box = explained.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
  const below = box.bottom + 6;
  const fits = below + tip.offsetHeight < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${fits ? below : Math.max(8, box.top - tip.offsetHeight - 6)}px`;
}

function hideTip() {
  showTip.hiding = setTimeout(() => { tip.hidden = true; }, 150);
}

for (const head of document.querySelectorAll("th[data-formula]")) {
  head.addEventListener("mouseenter", () => showTip(head));
  head.addEventListener("mouseleave", hideTip);
  head.addEventListener("focusin", () => showTip(head));
  head.addEventListener("focusout", hideTip);
}
tip.addEventListener("mouseenter", () => clearTimeout(showTip.hiding));
tip.addEventListener("mouseleave", hideTip);
addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
addEventListener("scroll", placeTip, {passive: true, capture: true});

document.querySelectorAll("table.sortable").forEach(sortable);

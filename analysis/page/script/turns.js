// A session's turns in a dialog: what every engine was asked, and when each answer's parts arrived.

const sheet = document.getElementById("turns");
const buttons = [...document.querySelectorAll("button[data-session]")];
const parts = Object.fromEntries(["title", "body", "previous", "next", "close", "note"].map(
  (name) => [name, document.getElementById(`turns-${name}`)],
));
const WIDTH = parts.body.tHead.rows[0].cells.length;
const recorded = new Map();
let current = {part: 0, number: 0};

function loaded(part) {
  if (!recorded.has(part)) recorded.set(part, unpack(`turn-data-${part}`).then(JSON.parse));
  return recorded.get(part);
}

const group = (value) => value.toLocaleString("en-US");
const count = (value) => (value === null ? "–" : group(value));

/** Milliseconds as the tables say them: ``1.26 s``, ``34.2 ms``. */
function time(value) {
  if (value === null) return "–";
  if (Math.abs(value) >= 1000) return `${group(Number((value / 1000).toPrecision(4)))} s`;
  return `${value.toFixed(Math.abs(value) >= 10 ? 1 : 2)} ms`;
}

function cell(text, name) {
  const made = document.createElement(name === "th" ? "th" : "td");
  made.textContent = text;
  if (name === "th") made.scope = "row";
  else if (name) made.className = name;
  return made;
}

/** Prefill and decode to the scale of the slowest engine of this turn. */
function bar(columns, row, longest, colour) {
  const made = cell("", "line");
  const [first, last, end] = ["first", "last", "end"].map((name) => columns[name][row]);
  if (first === null || longest === 0) return made;
  const track = document.createElement("span");
  track.className = "track";
  for (const [length, shade] of [[first, 1], [(last ?? end ?? first) - first, 0.5]]) {
    const piece = document.createElement("i");
    piece.style.cssText = `width:${(100 * length) / longest}%;background:${colour};opacity:${shade}`;
    track.append(piece);
  }
  made.append(track);
  return made;
}

function turnGroup(data, rows) {
  const {columns: c, words, engines} = data;
  const part = document.createElement("tbody");
  const [row] = rows;
  const heading = part.insertRow();
  heading.className = "turn";
  const head = cell("", "th");
  head.scope = "rowgroup";
  head.colSpan = WIDTH;
  head.innerHTML = "<div><strong></strong> <span></span></div>";
  const [turn, asked] = head.firstChild.children;
  turn.textContent = `Turn ${c.turn[row] + 1}, ${words.kind[c.kind[row]]}`;
  const sign = c.delta[row] < 0 ? "−" : "+";
  asked.textContent =
    `prompt ${count(c.prompt[row])} tokens (${sign}${count(Math.abs(c.delta[row]))}), ` +
    `${count(c.new[row])} new, ${count(c.output[row])} output`;
  heading.append(head);
  const longest = Math.max(...rows.map((r) => c.end[r] ?? c.last[r] ?? 0));
  for (const r of rows) {
    const engine = engines[c.engine[r]];
    const line = part.insertRow();
    const name = cell(engine.label + (data.repeated ? `, repeat ${c.repeat[r]}` : ""), "th");
    name.style.boxShadow = `inset .4rem 0 ${engine.colour}`;
    const ok = words.status[c.status[r]] === "ok";
    line.append(
      name, bar(c, r, longest, engine.colour),
      ...["first", "tpot", "late", "byte", "last", "end", "serverPrefill", "serverDecode"].map((of) => cell(time(c[of][r]))),
      ...["cached", "prefilled"].map((of) => cell(count(c[of][r]))),
      cell(ok ? "✓ ok" : `✗ ${words.status[c.status[r]]}`, ok ? "words ok" : "words no"),
    );
    if (c.error[r] !== null) {
      const said = part.insertRow();
      const why = cell(words.error[c.error[r]], "words error");
      why.colSpan = WIDTH;
      said.append(why);
    }
  }
  return part;
}

async function openSession(part, number) {
  const data = await loaded(part);
  current = {part, number};
  const rows = [];
  for (let r = data.starts[number]; r < data.starts[number + 1]; r++) rows.push(r);
  const turns = byTurn(rows, data.columns.turn);
  parts.title.textContent = `Session ${data.sessions[number]}`;
  parts.note.textContent = rows.length
    ? `${group(turns.size)} turns. Times after the request was sent; late: sent after it was due. ` +
      "Bars: prefill, then decode, to one scale a turn."
    : "No engine reached this session.";
  parts.body.querySelectorAll("tbody").forEach((part) => part.remove());
  parts.body.append(...[...turns.values()].map((of) => turnGroup(data, of)));
  parts.previous.disabled = number === 0;
  parts.next.disabled = number === data.sessions.length - 1;
  if (!sheet.open) sheet.showModal();
  parts.body.parentElement.scrollTop = 0;
  sheet.dataset.session = data.sessions[number];
}

function byTurn(rows, turn) {
  const groups = new Map();
  for (const r of rows) {
    if (!groups.has(turn[r])) groups.set(turn[r], []);
    groups.get(turn[r]).push(r);
  }
  return groups;
}

buttons.forEach((button) => {
  button.disabled = false;
  button.addEventListener("click", () => openSession(Number(button.dataset.part), Number(button.dataset.session)));
});
// A click anywhere in the row does, too; the button is there for the keyboard.
document.querySelectorAll(".sessions tbody").forEach((body) => body.addEventListener("click", (event) => {
  if (!event.target.closest("button")) event.target.closest("tr").querySelector("button").click();
}));
parts.previous.addEventListener("click", () => openSession(current.part, current.number - 1));
parts.next.addEventListener("click", () => openSession(current.part, current.number + 1));
parts.close.addEventListener("click", () => sheet.close());
sheet.addEventListener("click", (event) => { if (event.target === sheet) sheet.close(); });
sheet.addEventListener("close", () => { delete sheet.dataset.session; });
// A point of a figure names its session.
document.addEventListener("session", ({detail}) => {
  buttons.find((button) => button.textContent === detail)?.click();
});

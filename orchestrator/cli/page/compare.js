// The program of `gpujob compare --html`. All text that comes from the sweep goes through textContent, never markup.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const legs = data.legs; // the best first
const byId = (id) => document.getElementById(id);
const SIGNS = { done: "●", running: "▶", waiting: "…", stopped: "■", failed: "✕", cancelled: "○" };
const STATES = Object.keys(SIGNS).filter((state) => legs.some((leg) => leg.state === state));
const MANY = legs.length > 100;
const winner = legs.findIndex((leg) => leg.id === data.winner);

// --- small things -----------------------------------------------------------------------------------

function make(name, attributes, parent, text) {
  const drawn = ["svg", "g", "path", "rect", "line", "text", "clipPath", "defs", "title"].includes(name);
  const node = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}
const finite = (value) => typeof value === "number" && Number.isFinite(value);
const short = (value) => (value === null || value === undefined ? "–" : finite(value) ? String(Number(value.toPrecision(6))) : String(value));
const clip = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const clamp = (value) => Math.min(1, Math.max(0, value));

function asNumber(text) { // what a parameter's text is as a number; undefined for words
  if (text === undefined || !/^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$/i.test(text)) return undefined;
  return Number(text);
}

function quantile(sorted, share) { return sorted[Math.round((sorted.length - 1) * share)]; }

// The range of the values, without those that would press all others together (a leg that diverged).
function rangeOf(values, full) {
  const sorted = values.filter(finite).sort((a, b) => a - b);
  if (!sorted.length) return [0, 1];
  let low = sorted[0], high = sorted[sorted.length - 1];
  if (!full && sorted.length > 3) {
    const inner = [quantile(sorted, 0.05), quantile(sorted, 0.95)], room = 1.5 * (inner[1] - inner[0]);
    low = Math.max(low, inner[0] - room);
    high = Math.min(high, inner[1] + room);
  }
  return low === high ? [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2] : [low, high];
}

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((each) => each >= rough);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high * (1 + 1e-12) + 1e-300; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

// --- what is shown: ranges on axes, words, states ------------------------------------------------------

const filter = { ranges: new Map(), words: "", hidden: new Set() };
const words = legs.map((leg) => [leg.id, leg.name, leg.state, leg.reason, ...Object.entries(leg.params).map(([k, v]) => k + "=" + v)].join(" ").toLowerCase());

function isShown(index) {
  if (filter.hidden.has(legs[index].state)) return false;
  if (!filter.words.split(/\s+/).every((word) => words[index].includes(word))) return false;
  return axes.every((axis) => {
    const range = filter.ranges.get(axis.name);
    return !range || (axis.at[index] !== null && axis.at[index] >= range[0] && axis.at[index] <= range[1]);
  });
}

let shownNow = legs.map(() => true);
function refilter() {
  shownNow = legs.map((_, index) => isShown(index));
  document.querySelectorAll("[data-leg]").forEach((node) => node.classList.toggle("off", !shownNow[node.dataset.leg]));
  const count = shownNow.filter(Boolean).length;
  byId("count").textContent = count === legs.length ? "" : `${count} of ${legs.length} legs`;
  byId("clear").disabled = count === legs.length && !filter.ranges.size && !filter.words && !filter.hidden.size;
}

let lit = -1;
function light(index, event) { // one leg, in all charts at once
  if (index !== lit) {
    document.querySelectorAll(".lit").forEach((node) => node.classList.remove("lit"));
    if (index >= 0) document.querySelectorAll(`[data-leg="${index}"]`).forEach((node) => {
      node.classList.add("lit");
      if (node.classList.contains("wire")) node.parentNode.append(node);
    });
    lit = index;
  }
  const tip = byId("tip");
  tip.hidden = index < 0 || !event;
  if (tip.hidden) return;
  const leg = legs[index];
  tip.replaceChildren();
  make("b", {}, tip, (index === winner ? "★ " : "") + leg.id);
  for (const name of data.parameters) make("div", {}, tip, `${name}=${leg.params[name] ?? "–"}`);
  if (data.metric) make("div", {}, tip, `${data.metric} ${short(leg.last)}` + (leg.step === null ? "" : ` at step ${leg.step}`));
  make("div", {}, tip, `${leg.state}${leg.reason ? " (" + leg.reason + ")" : ""} · ${leg.costText} ${data.unit} · ${leg.time}`);
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4)) + "px";
  tip.style.top = Math.max(4, event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 16) + "px";
}

// `nearest(x, y)` gives the leg at a place of the chart, or -1.
function listen(chart, nearest) {
  chart.onpointermove = chart.onpointerdown = (event) => {
    const box = chart.getBoundingClientRect();
    light(nearest(event.clientX - box.left, event.clientY - box.top), event);
  };
  chart.onpointerleave = () => light(-1);
}

// The best legs in full colour, the others fading to grey.
function tint(index) {
  const share = legs.length > 1 ? 1 - index / (legs.length - 1) : 1;
  return `stroke: color-mix(in srgb, var(--good) ${Math.round(100 * share ** 1.5)}%, var(--dull))`;
}
const wireClass = (index) => "wire" + (index === winner ? " top" : "") + (shownNow[index] ? "" : " off");
const drawOrder = legs.map((_, index) => index).reverse().filter((index) => index !== winner).concat(winner >= 0 ? [winner] : []);

// --- axes: where each leg is on each, from 0 (bottom) to 1 (top); null: it has no value there --------------

function axisOf(name, values, logarithmic, betterUp) {
  const numbers = values.map((value) => (finite(value) ? value : value === null ? undefined : asNumber(value)));
  const known = numbers.filter(finite);
  const allNumbers = known.length > 0 && values.every((value, i) => value === undefined || value === null || finite(numbers[i]) || betterUp !== undefined);
  if (!allNumbers) return wordAxis(name, values);
  if (betterUp === undefined && !logarithmic && new Set(known).size <= 8) return wordAxis(name, values); // 16, 32, 64: as they are
  const log = logarithmic || (betterUp === undefined && Math.min(...known) > 0 && Math.max(...known) / Math.min(...known) >= 100);
  const turn = log ? Math.log10 : (value) => value;
  const [low, high] = rangeOf(known.map(turn), betterUp === undefined);
  const place = (value) => { const share = clamp((turn(value) - low) / (high - low)); return betterUp === false ? 1 - share : share; };
  const marks = (log ? decades(low, high) : ticks(low, high, 5)).map((value) => [place(value), short(value)]);
  return { name, at: numbers.map((value) => (finite(value) ? place(value) : null)), marks };
}

function decades(low, high) {
  const found = [];
  for (let ten = Math.floor(low); ten <= Math.ceil(high); ten++)
    for (const times of high - low < 1.5 ? [1, 2, 5] : [1]) {
      const value = Number((times * 10 ** ten).toPrecision(3)), at = Math.log10(value);
      if (at >= low - 1e-9 && at <= high + 1e-9) found.push(value);
    }
  return found.length ? found : [10 ** low, 10 ** high].map((value) => Number(value.toPrecision(3)));
}

function wordAxis(name, values) {
  const kinds = [...new Set(values.filter((value) => value !== undefined && value !== null))];
  kinds.sort((a, b) => (asNumber(a) ?? 0) - (asNumber(b) ?? 0) || (a < b ? -1 : a > b ? 1 : 0));
  const place = (value) => (kinds.length > 1 ? kinds.indexOf(value) / (kinds.length - 1) : 0.5);
  const every = Math.ceil(kinds.length / 12); // labels that would lie on each other are left out
  return {
    name,
    at: values.map((value) => (value === undefined || value === null ? null : place(value))),
    marks: kinds.filter((_, i) => i % every === 0).map((value) => [place(value), value.split("/").pop()]),
    spread: Math.min(0.1, 0.35 / kinds.length), // lines of one value lie side by side, so that their number shows
  };
}

const axes = data.parameters.map((name) => axisOf(name, legs.map((leg) => leg.params[name]), data.logarithmic.includes(name)));
if (data.metric) axes.push(axisOf(data.metric + (data.goal === "minimize" ? " ↓" : " ↑"), legs.map((leg) => leg.last), false, data.goal !== "minimize"));

// --- parallel coordinates -------------------------------------------------------------------------------

const size = { top: 30, bottom: 30, high: 270 };
function drawParallel() {
  const chart = byId("parallel"), width = Math.max(chart.parentNode.clientWidth, axes.length * 84);
  const height = size.top + size.high + size.bottom, side = 44;
  chart.replaceChildren();
  chart.setAttribute("width", width);
  chart.setAttribute("height", height);
  chart.classList.toggle("many", MANY);
  const x = (n) => (axes.length > 1 ? side + (n * (width - 2 * side - 20)) / (axes.length - 1) : width / 2);
  const y = (place) => (place === null ? size.top + size.high + 14 : size.top + (1 - place) * size.high);
  const at = (axis, index) => y(axis.at[index]) + (axis.spread && axis.at[index] !== null ? (((index * 0.618034) % 1) - 0.5) * axis.spread * size.high * Math.min(1, legs.length / 20) : 0);
  const wires = make("g", {}, chart);
  for (const index of drawOrder) {
    const path = axes.map((axis, n) => `${n ? "L" : "M"}${x(n).toFixed(1)} ${at(axis, index).toFixed(1)}`).join("");
    make("path", { d: axes.length > 1 ? path : path + "h9", class: wireClass(index), style: tint(index), "data-leg": index }, wires);
  }
  axes.forEach((axis, n) => drawAxis(chart, axis, x(n), y, n === axes.length - 1));
  listen(chart, (px, py) => {
    const n = axes.findIndex((_, i) => i + 1 < axes.length && px >= x(i) && px <= x(i + 1));
    if (n < 0) return -1;
    const share = (px - x(n)) / (x(n + 1) - x(n));
    return closest((index) => Math.abs(at(axes[n], index) * (1 - share) + at(axes[n + 1], index) * share - py), 14);
  });
}

function closest(distance, most) {
  let found = -1, least = most;
  for (let index = 0; index < legs.length; index++)
    if (shownNow[index] && distance(index) < least) { least = distance(index); found = index; }
  return found;
}

function drawAxis(chart, axis, x, y, last) {
  const group = make("g", {}, chart);
  make("line", { class: "axis", x1: x, x2: x, y1: y(1), y2: y(0) }, group);
  const title = make("text", { x, y: 14, "text-anchor": last ? "end" : "middle", dx: last ? 24 : 0, class: last && data.metric ? "best" : "" }, group, clip(axis.name, 14));
  make("title", {}, title, axis.name);
  for (const [place, label] of axis.marks)
    make("text", { class: "tick", x: x + 5, y: y(place) + 4 }, group, clip(label, 11));
  if (axis.at.includes(null)) make("text", { class: "tick", x: x + 5, y: y(null) + 4 }, group, "none");
  const range = make("rect", { class: "range", x: x - 7, width: 14, rx: 3, "data-axis": axis.name }, group);
  const show = () => {
    const ends = filter.ranges.get(axis.name);
    range.style.display = ends ? "" : "none";
    if (!ends) return;
    range.setAttribute("y", y(ends[1]));
    range.setAttribute("height", Math.max(2, y(ends[0]) - y(ends[1])));
  };
  const grip = make("rect", { class: "catch", x: x - 14, width: 28, y: y(1) - 8, height: size.high + 16, "data-axis": axis.name }, group);
  const place = (event) => clamp(1 - (event.clientY - chart.getBoundingClientRect().top - size.top) / size.high);
  let from = null;
  grip.onpointerdown = (event) => { from = place(event); grip.setPointerCapture(event.pointerId); event.preventDefault(); };
  grip.onpointermove = (event) => {
    if (from === null) return;
    event.stopPropagation();
    const to = place(event);
    if (Math.abs(to - from) * size.high > 4) filter.ranges.set(axis.name, [Math.min(from, to) - 0.004, Math.max(from, to) + 0.004]);
    show();
    refilter();
  };
  grip.onpointerup = grip.onpointercancel = (event) => {
    if (from !== null && Math.abs(place(event) - from) * size.high <= 4) filter.ranges.delete(axis.name);
    from = null;
    show();
    refilter();
  };
  show();
}

// --- learning curves ------------------------------------------------------------------------------------

function drawCurves() {
  const chart = byId("curves"), width = chart.parentNode.clientWidth, height = 300;
  const told = legs.map((leg) => leg.curve.filter((point) => finite(point[1])));
  byId("curves-box").hidden = !told.some((curve) => curve.length);
  if (byId("curves-box").hidden) return;
  const left = 58, right = 12, top = 8, bottom = 26;
  const steps = told.flat().map((point) => point[0]), first = Math.min(...[steps[0]], ...extremes(steps)), last = extremes(steps)[1];
  const [low, high] = rangeOf(told.flat().map((point) => point[1]), byId("full").checked);
  const x = (step) => left + ((step - first) / (last - first || 1)) * (width - left - right);
  const y = (value) => top + (1 - (value - low) / (high - low)) * (height - top - bottom);
  chart.replaceChildren();
  chart.setAttribute("width", width);
  chart.setAttribute("height", height);
  chart.classList.toggle("many", MANY);
  for (const value of ticks(low, high, 6)) {
    make("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }, chart);
    make("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, chart, short(value));
  }
  for (const step of ticks(first, last === first ? first + 1 : last, Math.max(2, Math.floor(width / 110))).filter((step) => step <= last))
    make("text", { class: "tick", x: Math.min(x(step), width - 14), y: height - 8, "text-anchor": "middle" }, chart, short(step));
  make("rect", { x: left, y: top, width: Math.max(0, width - left - right), height: height - top - bottom }, make("clipPath", { id: "inside" }, make("defs", {}, chart)));
  const wires = make("g", { "clip-path": "url(#inside)" }, chart);
  for (const index of drawOrder) {
    if (!told[index].length) continue;
    const path = told[index].map((point, n) => `${n ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("");
    make("path", { d: told[index].length > 1 ? path : path + "h4", class: wireClass(index), style: tint(index), "data-leg": index }, wires);
  }
  listen(chart, (px, py) => {
    const step = first + ((px - left) / (width - left - right)) * (last - first);
    return closest((index) => {
      const point = told[index].find((each) => each[0] >= step) || told[index][told[index].length - 1];
      return point ? Math.abs(y(point[1]) - py) + (x(point[0]) < px - 12 ? 99 : 0) : 99;
    }, 20);
  });
}

function extremes(values) { // without spreading a long array into arguments
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

// --- cost of each leg -----------------------------------------------------------------------------------

function drawCosts() {
  const chart = byId("costs"), width = chart.parentNode.clientWidth;
  const named = legs.length <= 12, height = 190, left = 58, right = 12, top = 8, bottom = named ? 40 : 24;
  const most = legs.reduce((high, leg) => Math.max(high, leg.cost), 0) || 1;
  const wide = (width - left - right) / legs.length;
  const y = (cost) => top + (1 - cost / most) * (height - top - bottom);
  chart.replaceChildren();
  chart.setAttribute("width", width);
  chart.setAttribute("height", height);
  for (const cost of ticks(0, most, 4)) {
    make("line", { class: "grid", x1: left, x2: width - right, y1: y(cost), y2: y(cost) }, chart);
    make("text", { class: "tick", x: left - 6, y: y(cost) + 4, "text-anchor": "end" }, chart, short(cost));
  }
  legs.forEach((leg, index) => {
    const broad = Math.max(0.7, Math.min(wide * 0.85, 60)), middle = left + (index + 0.5) * wide;
    make("rect", {
      class: "bar" + (shownNow[index] ? "" : " off"), x: middle - broad / 2, width: broad, y: y(leg.cost),
      height: Math.max(0, y(0) - y(leg.cost)), style: `fill: var(--${leg.state})`, "data-leg": index,
    }, chart);
    if (named) make("text", { class: index === winner ? "tick best" : "tick", x: middle, y: height - 24 + (wide < 80 ? (index % 2) * 14 : 0), "text-anchor": "middle" }, chart, clip(leg.id, Math.max(4, Math.floor((2 * wide) / 7))));
  });
  if (!named) make("text", { class: "tick", x: left, y: height - 8 }, chart, data.metric ? "best leg first" : "in their order");
  listen(chart, (px) => { const index = Math.floor((px - left) / wide); return index >= 0 && index < legs.length ? index : -1; });
}

// --- the table ------------------------------------------------------------------------------------------

const columns = [
  { name: "leg", of: (leg) => leg.id },
  ...(data.metric ? [{ name: "rank", number: true, of: (leg) => (finite(leg.last) ? legs.indexOf(leg) + 1 : null) }] : []),
  ...data.parameters.map((name) => ({ name, parameter: true, of: (leg) => leg.params[name] ?? null })),
  ...(data.metric ? [
    { name: data.metric, number: true, of: (leg) => leg.last, text: (leg) => short(leg.last) },
    { name: "step", number: true, of: (leg) => leg.step },
    { name: "best", number: true, of: (leg) => leg.best, text: (leg) => short(leg.best) },
  ] : []),
  { name: "state", of: (leg) => leg.state, text: (leg) => leg.state + (leg.reason && leg.state !== "stopped" ? ` (${leg.reason})` : "") },
  { name: `cost ${data.unit}`, number: true, of: (leg) => (leg.attempts ? leg.cost : null), text: (leg) => leg.costText },
  { name: "time", number: true, of: (leg) => (leg.attempts ? leg.seconds : null), text: (leg) => leg.time },
  { name: "attempts", number: true, of: (leg) => leg.attempts },
];
const sorted = { column: -1, down: false };

function compareValues(a, b) { // numbers by size, then words, then nothing
  const kind = (value) => (value === null ? 2 : finite(value) || asNumber(String(value)) !== undefined ? 0 : 1);
  if (kind(a) !== kind(b) || kind(a) === 2) return kind(a) - kind(b);
  if (kind(a) === 0) return Number(a) - Number(b);
  return a < b ? -1 : a > b ? 1 : 0;
}

function drawTable() {
  const head = make("tr", {}, byId("table").tHead);
  columns.forEach((column, n) => {
    const cell = make("th", { scope: "col", class: column.number ? "number" : "" }, head);
    make("button", { type: "button" }, cell, column.name).onclick = () => sortBy(n);
  });
  const body = byId("table").tBodies[0];
  legs.forEach((leg, index) => {
    const row = make("tr", { "data-leg": index, class: index === winner ? "top" : "" }, body);
    for (const column of columns) {
      const value = column.text ? column.text(leg) : column.of(leg) ?? "–";
      const cell = make("td", { class: column.number ? "number" : "" }, row);
      if (column.name === "leg" && index === winner) cell.append("★ ");
      if (column.name === "state") make("span", { class: "state", "data-sign": SIGNS[leg.state], style: `color: var(--${leg.state})` }, cell, value);
      else cell.append(String(value));
      if (column.parameter && String(value).length > 36) cell.title = value;
    }
    row.onpointerenter = () => light(index);
    row.onpointerleave = () => light(-1);
  });
}

function sortBy(n) {
  sorted.down = sorted.column === n && !sorted.down;
  sorted.column = n;
  const body = byId("table").tBodies[0], rows = [...body.rows], column = columns[n];
  rows.sort((a, b) => {
    const one = column.of(legs[a.dataset.leg]), other = column.of(legs[b.dataset.leg]);
    const order = compareValues(one, other);
    const nothing = one === null || other === null;
    return (sorted.down && !nothing ? -order : order) || a.dataset.leg - b.dataset.leg;
  });
  body.append(...rows);
  [...byId("table").tHead.rows[0].cells].forEach((cell, i) => {
    cell.ariaSort = i === n ? (sorted.down ? "descending" : "ascending") : null;
    cell.firstChild.textContent = columns[i].name + (i === n ? (sorted.down ? " ▼" : " ▲") : "");
  });
}

// --- the page -------------------------------------------------------------------------------------------

function drawWords() {
  byId("title").textContent = data.name + (data.run > 1 ? "." + data.run : "");
  const counts = STATES.map((state) => `${legs.filter((leg) => leg.state === state).length} ${state}`).join(", ");
  byId("summary").textContent = `${legs.length} legs: ${counts} · ${data.spent} spent`;
  const better = data.goal === "minimize" ? "less is better" : "more is better";
  byId("curves-title").textContent = `${data.metric} by step (${better})`;
  byId("costs-title").textContent = data.unit.startsWith("(") ? `Cost of each leg ${data.unit}` : `Cost of each leg, ${data.unit}`;
  byId("footer").textContent = `Made by gpujob compare at ${data.at}.`;
  const card = byId("winner");
  card.hidden = winner < 0;
  if (winner >= 0) {
    const leg = legs[winner];
    make("b", {}, card, `★ best${leg.state === "done" ? "" : " so far"}: ${leg.id}`);
    card.append(` · ${data.metric} ${short(leg.last)} at step ${leg.step} (${better})`);
    make("div", {}, card, data.parameters.map((name) => `${name}=${leg.params[name] ?? "–"}`).join("  "));
    make("code", {}, make("div", {}, card), `gpujob pull ${data.name}/best`);
  }
  for (const state of STATES) {
    const label = make("span", {}, byId("legend"));
    make("i", { class: "swatch", style: `background: var(--${state})` }, label);
    label.append(`${SIGNS[state]} ${state}`);
  }
}

function drawTools() {
  byId("find").oninput = (event) => { filter.words = event.target.value.trim().toLowerCase(); refilter(); };
  for (const state of STATES.length > 1 ? STATES : []) {
    const button = make("button", { type: "button", "aria-pressed": "true" }, byId("states"), `${SIGNS[state]} ${state}`);
    button.onclick = () => {
      filter.hidden.has(state) ? filter.hidden.delete(state) : filter.hidden.add(state);
      button.ariaPressed = String(!filter.hidden.has(state));
      refilter();
    };
  }
  byId("clear").onclick = () => {
    filter.ranges.clear();
    filter.hidden.clear();
    filter.words = byId("find").value = "";
    byId("states").querySelectorAll("button").forEach((button) => (button.ariaPressed = "true"));
    drawCharts();
    refilter();
  };
  byId("full").onchange = drawCurves;
}

function drawCharts() {
  byId("parallel-box").hidden = byId("costs-box").hidden = !legs.length;
  if (!legs.length) { byId("curves-box").hidden = true; return; }
  drawParallel();
  drawCurves();
  drawCosts();
}

drawWords();
drawTools();
drawTable();
drawCharts();
refilter();
let drawnFor = document.documentElement.clientWidth;
addEventListener("resize", () => {
  if (document.documentElement.clientWidth === drawnFor) return; // a phone's address bar changes only the height
  drawnFor = document.documentElement.clientWidth;
  drawCharts();
  refilter();
});

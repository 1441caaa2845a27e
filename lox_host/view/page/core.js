// The state of the page, how it asks the server, and how it makes elements.
//
// Everything from a store is text: elements are only ever made with `h`, which sets
// `textContent` and never HTML.

const embedded = document.getElementById("data");
const frozen = embedded ? JSON.parse(embedded.textContent) : null;

// ---- Elements ------------------------------------------------------------------------------

// Characters that change how others are shown, or show nothing: controls, and those that turn
// the direction of text around.
const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const visible = (text) => text.replace(CONTROLS, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
const asText = (child) => (typeof child === "string" ? visible(child) : child);

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map(asText));
  return element;
}

function replace(element, ...children) {
  const shown = children.flat().filter((child) => child !== null && child !== undefined);
  keepFocus(element, () => element.replaceChildren(...shown.map(asText)));
}

// Change what is in an element. What has the same name after that keeps the focus, so that
// somebody without a pointer need not begin again.
function keepFocus(element, act) {
  const nameOf = (other) => other.dataset.focus || other.id;
  const active = document.activeElement;
  const name = element !== active && element.contains(active) ? nameOf(active) : "";
  act();
  if (!name) return;
  const named = [...element.querySelectorAll("[data-focus], [id]")];
  named.find((other) => nameOf(other) === name)?.focus({ preventScroll: true });
}

// ---- Arrays and numbers --------------------------------------------------------------------

const ARRAYS = {
  f4: Float32Array, f8: Float64Array, i4: Int32Array, i8: BigInt64Array,
  u1: Uint8Array, u2: Uint16Array,
};

function unpack(packed) {
  if (!packed) return new Float64Array(0);
  if (!packed.t) return packed; // unpacked already
  const text = atob(packed.d);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAYS[packed.t](bytes.buffer);
}

function digits(value, precision = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
  if (size >= 1e5 || size < 1e-4) {
    return value.toExponential(precision - 1).replace(/\.?0*e\+?/, "e");
  }
  return Number(value.toPrecision(precision)).toString();
}

function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  const parts = [Math.floor(s / 3600), Math.floor(s / 60) % 60, s % 60];
  if (!parts[0]) parts.shift();
  return parts.map((part, i) => (i ? String(part).padStart(2, "0") : part)).join(":");
}

function date(seconds) {
  if (!seconds) return "–";
  const d = new Date(seconds * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
  return `${day} ${two(d.getHours())}:${two(d.getMinutes())}`;
}

const count = (number, noun) =>
  `${number.toLocaleString("en-US")} ${noun}${number === 1 ? "" : "s"}`;

// ---- State, which a link holds -------------------------------------------------------------

const DEFAULTS = {
  view: "curves", x: "step", centre: "mean", band: "std", group: "auto", smooth: 1,
  logx: false, logy: false, where: "", brush: {}, picks: [], sessions: null, keys: "",
  x0: null, x1: null, full: false, run: "", stat: "last", result: "", low: null,
  sort: "", down: true,
};
const state = { ...DEFAULTS };

// In a notebook, the page is the text of a frame and has no address. A link would leave it.
const isInside = location.protocol === "about:";

function readState(link = location.hash) {
  Object.assign(state, structuredClone(DEFAULTS));
  const given = frozen ? { ...frozen.state } : {};
  const hash = new URLSearchParams(link.slice(1));
  for (const [name, text] of hash) {
    if (!(name in DEFAULTS)) continue;
    if (typeof DEFAULTS[name] === "string") { given[name] = text; continue; }
    try { given[name] = JSON.parse(text); } catch { /* not a link of ours */ }
  }
  Object.assign(state, given);
}

function link(changes) {
  const next = { ...state, ...changes };
  const hash = new URLSearchParams();
  for (const [name, value] of Object.entries(next)) {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    const usual = DEFAULTS[name];
    const same = typeof usual === "string" ? usual : JSON.stringify(usual);
    if (text !== same) hash.set(name, text);
  }
  return "#" + hash.toString();
}

// Change the state, and tell the page what has changed.
function change(changes, { push = false } = {}) {
  Object.assign(state, changes);
  if (!isInside) history[push ? "pushState" : "replaceState"](null, "", link({}));
  render(new Set(Object.keys(changes)));
}

// ---- Questions -----------------------------------------------------------------------------

let overview = null; // the last answer to `overview`

function selection() {
  const fields = {};
  if (state.sessions) fields.sessions = state.sessions;
  if (state.where) fields.where = state.where;
  if (Object.keys(state.brush).length) fields.brush = state.brush;
  if (state.picks.length) fields.picks = state.picks;
  return fields;
}

function groupBy() {
  return state.group === "auto" ? overview.group : state.group || null;
}

function panelFields(key) {
  const { x, centre, band, smooth, logy, full } = state;
  return { key, x, centre, band, smooth, logy, full, group: groupBy(), ...selection() };
}

// What the export button sends along.
function exportState() {
  const { x, centre, band, smooth, logy, full, x0, x1, logx } = state;
  return { x, centre, band, smooth, logy, full, x0, x1, logx, group: groupBy(), ...selection() };
}

async function ask(question, fields = {}) {
  if (frozen) return askFrozen(question, fields);
  const response = await fetch(`api/${question}`, {
    method: "POST", body: JSON.stringify(fields), headers: { "Content-Type": "application/json" },
  });
  const text = await response.text();
  stats.bytes += text.length;
  let found;
  try { found = JSON.parse(text); } catch { throw new Error(text); }
  if (found.error) throw new Error(found.error);
  return found;
}

const stats = { bytes: 0 };

function askFrozen(question, fields) {
  const { answers } = frozen;
  if (question === "panel") {
    const grouped = answers.groupings[fields.group ?? ""] ?? Object.values(answers.groupings)[0];
    const panel = structuredClone({ ...answers.panels[fields.key], ...grouped[fields.key] });
    panel.lines.forEach((line, i) => { line.group = panel.line_groups[i]; });
    return panel;
  }
  if (question === "table") {
    const columns = {};
    for (const key of fields.keys) {
      if (answers.table.columns[key]) columns[key] = answers.table.columns[key];
    }
    return { ...answers.table, columns };
  }
  if (question in answers) return answers[question];
  throw new Error("This file has no server behind it: open the store with `lox view`.");
}

const runAt = (number) => overview.runs[number];
const runOf = (uid) => overview.runs.find((run) => run.uid === uid);

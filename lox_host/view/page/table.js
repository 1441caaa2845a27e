// Runs as a table: what differs in their configs, and what became of their keys.

const ROW_HEIGHT = 30;
const FIRST_KEYS = 6; // keys that have a column at first
const table = { columns: {}, selected: new Set(), version: -1 };

// Ask for the numbers of some keys, each once per version of the data.
async function loadColumns(keys) {
  const found = await ask("table", { keys, ...selection() });
  if (found.version !== table.version) table.columns = {};
  table.version = found.version;
  Object.assign(table.columns, found.columns);
  table.selected = new Set(found.selected);
  table.listed = found.listed;
  return found;
}

function tableKeys() {
  const shown = shownKeys();
  return state.keys ? shown.slice(0, 24) : shown.slice(0, FIRST_KEYS);
}

function tableView(main) {
  const stats = [["last", "last value"], ["best", "best value"], ["mean", "mean value"]];
  const controls = h("div", { class: "controls", role: "toolbar", "aria-label": "Table" },
    h("label", {}, "show", h("select", { name: "stat", onchange: (e) => change({ stat: e.target.value }) },
      stats.map(([value, text]) => h("option", { value, selected: state.stat === value }, text)))),
    h("label", { class: "grow" }, "keys", h("input", {
      type: "search", name: "keys", value: state.keys, placeholder: `the first ${FIRST_KEYS}; type to choose others`,
      oninput: (e) => change({ keys: e.target.value }),
    })),
    h("span", { class: "note", id: "table-note" }));
  const scroll = h("div", { class: "scroll", tabIndex: 0, "aria-label": "Runs" });
  replace(main, controls, scroll);
  scroll.addEventListener("scroll", () => fillRows(scroll));
  table.scroll = scroll;
  refreshTable();
}

async function refreshTable() {
  const { scroll } = table;
  if (!scroll?.isConnected) return;
  try {
    await loadColumns(tableKeys());
  } catch (error) {
    replace(scroll, h("p", { class: "empty error" }, error.message));
    return;
  }
  table.rows = sortedRows();
  drawTable();
}

const bestOf = (key) => (overview.keys.find((k) => k.name === key)?.low ? "low" : "high");

function cell(key, number, stat = state.stat) {
  const column = table.columns[key];
  if (!column) return null;
  return column[stat === "best" ? bestOf(key) : stat][number];
}

function tableColumns() {
  const config = overview.config.map((entry) => ({
    id: `config.${entry.name}`, title: entry.name, kind: "config",
    value: (i) => runAt(i).config[entry.name], text: (v) => (v === undefined ? "" : typeof v === "number" ? digits(v) : String(v)),
  }));
  const keys = tableKeys().filter((key) => table.columns[key]).map((key) => ({
    id: `key.${key}`, title: key, kind: "number",
    value: (i) => cell(key, i), text: (v, i) => numberText(key, v, i),
  }));
  const diverged = {
    id: "diverged", title: "not finite from", kind: "number",
    value: (i) => firstNonfinite(i), text: (v) => (v === null ? "" : digits(v)), bad: true,
  };
  const rows = { id: "rows", title: "rows", kind: "number", value: (i) => rowsOf(i), text: (v) => v.toLocaleString("en-US") };
  const rate = {
    id: "rate", title: "rows/s", kind: "number",
    value: (i) => rateOf(i), text: (v) => (v === null ? "" : digits(v, 3)),
  };
  return [...config, ...keys, rows, rate, diverged];
}

function numberText(key, value, number) {
  if (value !== null) return digits(value);
  return table.columns[key].rows[number] ? "nan" : "";
}

function rowsOf(number) {
  return Math.max(0, ...Object.values(table.columns).map((column) => column.rows[number] || 0));
}

function rateOf(number) {
  const rates = Object.values(table.columns).map((column) => column.rate[number]).filter((rate) => rate !== null);
  return rates.length ? Math.max(...rates) : null;
}

function firstNonfinite(number) {
  const found = Object.values(table.columns).map((c) => c.first_nonfinite[number]).filter((v) => v !== null && v !== undefined);
  return found.length ? Math.min(...found) : null;
}

function sortedRows() {
  const column = tableColumns().find((c) => c.id === state.sort);
  const numbers = [...table.listed];
  if (state.sort === "name") {
    numbers.sort((a, b) => runAt(a).name.localeCompare(runAt(b).name, "en", { numeric: true }));
  } else if (column) {
    const values = new Map(numbers.map((i) => [i, column.value(i)]));
    const missing = (v) => v === null || v === undefined;
    numbers.sort((a, b) => {
      const [x, y] = [values.get(a), values.get(b)];
      // What is missing comes last, whichever way the others go.
      if (missing(x) || missing(y)) return missing(x) - missing(y) || a - b;
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return (state.down ? -order : order) || a - b;
    });
    return numbers;
  }
  return state.sort && state.down ? numbers.reverse() : numbers;
}

function drawTable() {
  const { scroll, rows } = table;
  const columns = tableColumns();
  const note = document.getElementById("table-note");
  const more = shownKeys().length - tableKeys().length;
  note.textContent = `${count(rows.length, "run")}${more > 0 ? `, ${more} more keys: type to choose` : ""}`;
  const sortBy = (id) => () => change({ sort: id, down: state.sort === id ? !state.down : true });
  const head = (id, title, kind) => {
    const arrow = state.sort === id ? (state.down ? " ↓" : " ↑") : "";
    const sorted = state.sort === id ? (state.down ? "descending" : "ascending") : "none";
    return h("th", { class: kind, scope: "col", "aria-sort": sorted },
      h("button", { onclick: sortBy(id), title, "data-focus": id }, title + arrow));
  };
  const all = h("input", {
    type: "checkbox", "aria-label": "Select all runs", checked: false,
    onchange: () => change({ picks: [] }), title: "clear the selection", disabled: !state.picks.length,
  });
  table.body = h("tbody", {});
  const grid = h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "pick" }, all), head("name", "run", "name"),
    columns.map((column) => head(column.id, column.title, column.kind)))), table.body);
  const top = scroll.scrollTop;
  table.drawn = columns;
  table.from = table.to = -1;
  keepFocus(scroll, () => {
    replace(scroll, grid);
    scroll.scrollTop = top;
    fillRows(scroll);
  });
}

// Only the rows that can be seen are elements; the others are room above and below.
function fillRows(scroll) {
  const { rows, drawn } = table;
  if (!rows || !table.body?.isConnected) return;
  const from = Math.max(0, Math.floor(scroll.scrollTop / ROW_HEIGHT) - 10);
  const to = Math.min(rows.length, from + Math.ceil(scroll.clientHeight / ROW_HEIGHT) + 20);
  if (from === table.from && to === table.to) return;
  Object.assign(table, { from, to });
  const room = (number) => { const row = h("tr", { class: "room" }); row.style.height = `${number * ROW_HEIGHT}px`; return row; };
  replace(table.body, room(from), rows.slice(from, to).map((number) => tableRow(number, drawn)), room(rows.length - to));
  if (!rows.length) replace(table.body, h("tr", {}, h("td", { colSpan: drawn.length + 2 }, "No run matches.")));
}

function tableRow(number, columns) {
  const run = runAt(number);
  const isPicked = state.picks.includes(run.uid);
  const pick = (event) => {
    const others = state.picks.filter((uid) => uid !== run.uid);
    change({ picks: event.target.checked ? [...others, run.uid] : others });
  };
  const bad = firstNonfinite(number) !== null;
  return h("tr", { class: bad ? "diverged" : "" },
    h("td", { class: "pick" }, h("input", { type: "checkbox", checked: isPicked, onchange: pick, "data-focus": run.uid, "aria-label": `Select ${run.name}` })),
    h("td", { class: "name" }, h("a", { href: link({ view: "run", run: run.uid }) }, run.name)),
    columns.map((column) => {
      const value = column.value(number);
      const text = column.text(value, number);
      return h("td", { class: `${column.kind}${text === "nan" || column.bad ? " bad" : ""}`, title: text }, text);
    }));
}

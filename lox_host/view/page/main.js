// The frame around the views: tabs, filters, theme, links, and news from the server.

const VIEWS = {
  curves: ["Curves", curvesView], table: ["Table", tableView], sweep: ["Sweep", sweepView],
  run: ["Run", runView], overview: ["Overview", overviewView],
};
// Changes of these ask the server for other data.
const DATA = ["x", "centre", "band", "group", "smooth", "logy", "full", "where", "brush", "picks", "sessions"];
const main = document.getElementById("main");
const page = { view: "", problem: "", counts: 0 };

function topBar() {
  const tab = (name) => h("a", {
    href: link({ view: name }), class: "tab", "aria-current": state.view === name ? "page" : null, id: `tab-${name}`,
  }, VIEWS[name][0]);
  const running = overview.sessions.filter((s) => s.state === "running").length;
  const live = frozen ? h("span", { class: "live" }, "saved report")
    : h("span", { class: `live${running ? " on" : ""}`, id: "live" }, running ? `${running} running` : "nothing running");
  const broken = overview.problems.length
    ? h("a", { class: "warn", href: link({ view: "overview" }) }, `⚠ ${count(overview.problems.length, "problem")}`) : null;
  const save = frozen ? null : h("button", { id: "export", title: "Save what is selected as one file that needs no network", onclick: saveReport }, "export");
  replace(document.getElementById("top"),
    h("span", { class: "brand" }, "lox", h("small", {}, "view")),
    h("nav", { "aria-label": "Views" }, Object.keys(VIEWS).map(tab)), h("span", { class: "space" }), broken, live, save,
    h("button", { id: "theme", title: "light or dark (t)", "aria-label": "Light or dark", onclick: switchTheme }, "◐"));
}

function saveReport() {
  const query = new URLSearchParams({ state: JSON.stringify(exportState()) });
  location.assign(`export?${query}`);
}

function filterBar() {
  const bar = document.getElementById("filters");
  if (!bar.firstChild) {
    const input = h("input", {
      id: "where", type: "search", placeholder: whereHint(), "aria-label": "Filter runs", disabled: Boolean(frozen),
      title: "compare config entries and last values; press / to come here",
      onkeydown: (e) => { if (e.key === "Enter") change({ where: e.target.value.trim() }); },
      onchange: (e) => { if (e.target.value.trim() !== state.where) change({ where: e.target.value.trim() }); },
    });
    replace(bar, h("label", {}, "where", input), h("span", { id: "chips" }), h("span", { id: "count", class: "note", role: "status" }));
  }
  const input = document.getElementById("where");
  if (document.activeElement !== input) input.value = state.where;
  const chip = (text, undo, extra) => h("span", { class: "chip" }, text, extra,
    h("button", { onclick: undo, "aria-label": `Remove ${text}` }, "×"));
  const one = state.picks.length === 1 ? runOf(state.picks[0]) : null;
  replace(document.getElementById("chips"),
    Object.entries(state.brush).map(([name, [low, high]]) => chip(`${name} ${digits(low, 3)} to ${digits(high, 3)}`, () => setBrush(name, null))),
    state.picks.length ? chip(one ? one.name : `${state.picks.length} selected`, () => change({ picks: [] }),
      one ? h("a", { href: link({ view: "run", run: one.uid }) }, "open") : null) : null,
    state.sessions ? chip(count(state.sessions.length, "session"), () => change({ sessions: null })) : null,
    state.x0 !== null || state.x1 !== null
      ? chip(`${state.x} ${digits(state.x0 ?? -Infinity, 4)} to ${digits(state.x1 ?? Infinity, 4)}`, () => change({ x0: null, x1: null })) : null);
}

function whereHint() {
  const numeric = overview.config.find((entry) => entry.numeric)?.name;
  const key = overview.keys[0]?.name;
  const parts = [numeric && `${numeric} > 1e-3`, key && `${key} > 0.5`].filter(Boolean);
  return parts.join(" and ") || "lr > 1e-3 and return > 400";
}

// How many runs are selected, and which of them diverged.
async function showCount() {
  const note = document.getElementById("count");
  const asked = ++page.counts; // only the last question counts
  try {
    const { selected } = await ask("table", { keys: [], ...selection() });
    if (asked !== page.counts) return;
    const total = overview.newest.length;
    note.classList.remove("error");
    const older = overview.runs.length - total;
    const text = (selected.length === total ? count(total, "run") : `${selected.length.toLocaleString("en-US")} of ${count(total, "run")}`) +
      (older && !state.sessions ? `, ${count(older, "older session")} of them not shown` : "");
    replace(note, text);
    if (!selected.length) return;
    const gone = new Set((await ask("diverged")).runs);
    if (asked !== page.counts) return;
    replace(note, text, divergedNote(selected.filter((run) => gone.has(run))));
  } catch (error) {
    note.textContent = error.message;
    note.classList.add("error");
  }
}

function divergedNote(gone) {
  if (!gone.length) return ", none diverged";
  const picks = gone.map((run) => runAt(run).uid);
  return [", ", frozen ? `${gone.length} diverged` : h("button", {
    class: "small bad", id: "show-diverged", title: "Select the runs that end with a value that is not finite",
    onclick: () => change({ picks }, { push: true }),
  }, `${gone.length.toLocaleString("en-US")} diverged`)];
}

// Show the state. `changed` says what is new; without it, everything is.
function render(changed) {
  if (!VIEWS[state.view]) state.view = "curves";
  const is = (...names) => !changed || names.some((name) => changed.has(name));
  const other = page.view !== state.view;
  page.view = state.view;
  topBar();
  filterBar();
  if (is("where", "brush", "picks", "sessions")) showCount();
  if (is(...DATA, "x0", "x1")) for (const panel of curves.panels.values()) panel.stale = true;
  const rebuilt = other || !changed || (state.view === "run" && is("run")) || (state.view === "overview" && is("sessions"));
  if (rebuilt) { hideTip(); VIEWS[state.view][1](main); return; }
  const updates = { curves: updateCurves, table: refreshTable, sweep: updateSweep, run: updateRun, overview: () => {} };
  updates[state.view](is);
}

function updateCurves(is) {
  if (is("keys")) layoutPanels(document.getElementById("panels"));
  for (const panel of curves.panels.values()) {
    // At once with what is there; finer data follows.
    if (is("x0", "x1", "logx") && panel.data && panel.visible) panel.draw();
    if (is(...DATA, "x0", "x1")) { if (panel.visible) soon(panel); }
  }
}

function updateSweep(is) {
  if (is("result", "low")) sweepView(main);
  else refreshSweep();
}

function updateRun(is) {
  for (const panel of runPage.panels) {
    if (is("x0", "x1", "logx") && panel.data) panel.draw();
    if (is(...DATA, "x0", "x1")) panel.invalidate();
  }
}

// While somebody drags, the last question is enough.
function soon(panel) {
  clearTimeout(panel.timer);
  panel.timer = setTimeout(() => panel.load(), 30);
}

// ---- Theme ---------------------------------------------------------------------------------

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function switchTheme() {
  const next = isDark() ? "light" : "dark";
  try { localStorage.setItem("lox-theme", next); } catch { /* a file may have no storage */ }
  applyTheme(next);
  redraw();
}

function redraw() {
  for (const panel of [...curves.panels.values(), ...runPage.panels]) if (panel.data && panel.element.isConnected) panel.draw();
  showLegend();
  if (state.view === "sweep") refreshSweep();
}

function firstTheme() {
  let kept = null;
  try { kept = localStorage.getItem("lox-theme"); } catch { /* none */ }
  const wish = new URLSearchParams(location.search).get("theme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  return [wish, kept].find((theme) => theme === "light" || theme === "dark") ?? (dark ? "dark" : "light");
}

// ---- News ----------------------------------------------------------------------------------

async function news(version) {
  if (overview && version <= overview.version) return;
  const { runs, keys, ...rest } = await ask("news");
  const known = runs === overview.runs.length && keys === overview.keys.length;
  if (known) Object.assign(overview, rest);
  else overview = await ask("overview");
  topBar();
  showCountSoon();
  if (!known) { curves.panels.forEach((panel) => { panel.stale = true; }); render(); return; }
  for (const panel of curves.panels.values()) if (state.view === "curves") panel.grow(); else panel.stale = true;
  if (state.view === "table") refreshTable();
  if (state.view === "sweep") refreshSweep();
  if (state.view === "overview") overviewView(main);
  if (state.view === "run") for (const panel of runPage.panels) panel.grow();
}

// While rows arrive several times a second, count the diverged runs now and then.
function showCountSoon() {
  page.timer ??= setTimeout(() => { page.timer = null; showCount(); }, 1500);
}

function listenForNews() {
  let waiting = Promise.resolve();
  const source = new EventSource("events");
  source.onmessage = (event) => {
    const version = Number(event.data);
    waiting = waiting.then(() => news(version)).catch(() => {});
  };
  source.onerror = () => {
    const live = document.getElementById("live");
    if (live) { live.textContent = "server is gone"; live.className = "live gone"; }
  };
  source.onopen = () => { if (overview) topBar(); };
}

// ---- Beginning -----------------------------------------------------------------------------

function shortcuts(event) {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (state.picks.length || state.x0 !== null || Object.keys(state.brush).length) change({ picks: [], brush: {}, x0: null, x1: null });
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const number = Number(event.key);
  const names = Object.keys(VIEWS);
  if (event.key === "/") { event.preventDefault(); document.getElementById("where").focus(); }
  else if (event.key === "t") switchTheme();
  else if (number >= 1 && number <= names.length) change({ view: names[number - 1] }, { push: true });
}

// Follow a link of ours without an address.
function followInside(event) {
  const anchor = event.target.closest?.("a[href^='#']");
  if (!anchor || anchor.className === "skip") return;
  event.preventDefault();
  readState(anchor.getAttribute("href"));
  render();
}

async function begin() {
  applyTheme(firstTheme());
  readState();
  try {
    overview = await ask("overview");
  } catch (error) {
    replace(main, h("p", { class: "empty error" }, error.message));
    return;
  }
  if (frozen && !overview.keys.length) state.view = "overview";
  render();
  window.addEventListener("hashchange", () => { readState(); render(); });
  window.addEventListener("popstate", () => { readState(); render(); });
  window.addEventListener("keydown", shortcuts);
  if (isInside) document.addEventListener("click", followInside);
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  document.addEventListener("drawn", showLegend);
  let resizing = 0;
  window.addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 80); });
  if (!frozen) listenForNews();
}

// For tests and the console: what is on the screen.
window.lox = {
  state, get overview() { return overview; }, stats, change,
  panel: (key) => curves.panels.get(key)?.data ?? null,
  panels: () => Object.fromEntries([...curves.panels].map(([key, panel]) => [key, panel])),
  table,
};

begin();

// The stores and sessions that were found, and what is wrong with them.

function overviewView(main) {
  const chosen = state.sessions;
  const newest = new Set(overview.newest.map((number) => runAt(number).session));
  const isChosen = (uid) => (chosen ? chosen.includes(uid) : newest.has(uid));
  const toggle = (uid) => {
    const now = overview.sessions.map((s) => s.uid).filter(isChosen);
    const next = now.includes(uid) ? now.filter((other) => other !== uid) : [...now, uid];
    change({ sessions: next, picks: [] });
  };
  const stores = new Map();
  for (const session of overview.sessions) {
    stores.set(session.store, [...(stores.get(session.store) || []), session]);
  }
  const head = ["", "session", "program", "started", "took", "state", "runs", "rows", "keys", "diverged", "commit"];
  const row = (s) => h("tr", {},
    h("td", { class: "pick" }, h("input", {
      type: "checkbox", checked: isChosen(s.uid), disabled: Boolean(frozen), onchange: () => toggle(s.uid), "aria-label": `Look at session ${s.name}`,
    })),
    h("td", { class: "name" }, h("a", { href: link({ view: "curves", sessions: [s.uid], picks: [], where: "", brush: {} }) }, s.name)),
    h("td", { class: "config", title: s.command || "" }, s.program || ""),
    h("td", {}, date(s.started)), h("td", { class: "number" }, s.started ? duration(s.changed - s.started) : "–"),
    h("td", {}, h("span", { class: `state ${s.state}` }, s.state)),
    h("td", { class: "number" }, s.runs.toLocaleString("en-US")), h("td", { class: "number" }, s.rows.toLocaleString("en-US")),
    h("td", { class: "number" }, s.arrays ? `${s.keys} + ${count(s.arrays, "array")}` : s.keys),
    h("td", { class: "number", "data-diverged": s.uid }, "…"),
    h("td", { class: "config" }, s.commit || ""));
  replace(main,
    overview.problems.length ? h("section", { class: "problems" }, h("h3", {}, "Not everything could be read"),
      h("ul", {}, overview.problems.map((problem) => h("li", {}, problem)))) : null,
    overview.sessions.length ? null : emptyMessage(),
    [...stores].map(([store, sessions]) => h("section", { class: "store" },
      h("h2", {}, store, h("small", {}, ` ${count(sessions.length, "session")}`)),
      h("div", { class: "scroll auto" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", {}, [...sessions].reverse().map(row)))))));
  showDiverged();
}

// To know this, the keys that have values that are not finite are read.
async function showDiverged() {
  const { diverged } = await ask("diverged");
  for (const cell of document.querySelectorAll("[data-diverged]")) {
    const number = diverged[cell.dataset.diverged] ?? 0;
    cell.textContent = number ? count(number, "run") : "none";
    cell.classList.toggle("bad", number > 0);
  }
}

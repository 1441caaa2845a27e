// All keys as panels, in sections by the first part of their names.

const curves = { panels: new Map(), sections: [] };

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const { panel } = entry.target;
    panel.visible = entry.isIntersecting;
    if (panel.visible && panel.stale) panel.load();
  }
}, { rootMargin: "120px" });

function curvesView(main) {
  const controls = h("div", { class: "controls", role: "toolbar", "aria-label": "Curves" }, curveControls());
  const legend = h("div", { class: "legend", id: "legend" });
  const body = h("div", { id: "panels" });
  replace(main, controls, legend, body);
  layoutPanels(body);
}

function curveControls() {
  const option = (value, text) => h("option", { value, selected: String(value) === String(state[option.of]) }, text);
  const select = (name, label, options) => {
    option.of = name;
    const items = options.map(([value, text]) => option(value, text));
    const onchange = (event) => change({ [name]: event.target.value });
    const disabled = Boolean(frozen) && name !== "group";
    return h("label", {}, label, h("select", { name, onchange, disabled }, items));
  };
  const check = (name, label, disabled) => h("label", { class: "check" },
    h("input", { type: "checkbox", name, checked: state[name], disabled, onchange: (e) => change({ [name]: e.target.checked }) }), label);
  const { groupings } = frozen?.answers ?? {};
  const config = overview.config.filter((entry) => !groupings || entry.name in groupings)
    .map((entry) => [entry.name, `${entry.name} (${entry.values})`]);
  const auto = overview.group ? [["auto", `${overview.group} (auto)`]] : [["auto", "nothing"]];
  return [
    select("x", "x", overview.x.map((name) => [name, name])),
    select("centre", "centre", [["mean", "mean"], ["median", "median"], ["iqm", "IQM"]]),
    select("band", "band", [["std", "± std"], ["80", "10–90 %"], ["ci", "95 % CI"], ["range", "range"], ["none", "none"]]),
    select("group", "group by", [...auto, ...config, ["", "all together"]]),
    h("label", {}, "smooth", h("input", {
      type: "number", name: "smooth", min: 1, max: 100000, value: state.smooth, disabled: Boolean(frozen),
      title: "the mean of so many rows is drawn in the place of each",
      onchange: (e) => change({ smooth: Math.max(1, Math.round(Number(e.target.value) || 1)) }),
    }), "rows"),
    check("logx", "log x"), check("logy", "log y", Boolean(frozen)),
    h("label", { class: "grow" }, "keys", h("input", {
      type: "search", name: "keys", value: state.keys, placeholder: "loss, return…",
      oninput: (e) => change({ keys: e.target.value }),
    })),
    h("button", { onclick: () => change({ x0: null, x1: null }), id: "unzoom", title: "or double-click a panel" }, "reset zoom"),
  ];
}

function shownKeys() {
  const words = state.keys.toLowerCase().split(/[\s,]+/).filter(Boolean);
  const names = overview.keys.map((key) => key.name);
  return words.length ? names.filter((name) => words.some((word) => name.toLowerCase().includes(word))) : names;
}

function layoutPanels(body) {
  const sections = keySections(shownKeys());
  watcher.disconnect();
  if (!sections.size) {
    replace(body, emptyMessage());
    return;
  }
  replace(body, [...sections].map(([prefix, keys]) => {
    const panels = keys.map((key) => panelOf(key).element);
    const grid = h("div", { class: "grid" }, panels);
    if (sections.size === 1 && !prefix) return grid;
    return h("details", { open: true, class: "section" },
      h("summary", {}, prefix || "other keys", h("small", {}, count(keys.length, "panel"))), grid);
  }));
  for (const key of shownKeys()) watcher.observe(panelOf(key).element);
}

// The keys by the sections that the server has put them into.
function keySections(keys) {
  const shown = new Set(keys);
  const sections = new Map();
  for (const { name, section } of overview.keys) {
    if (shown.has(name)) sections.set(section, [...(sections.get(section) || []), name]);
  }
  return sections;
}

function panelOf(key) {
  if (!curves.panels.has(key)) curves.panels.set(key, new CurvePanel(key));
  return curves.panels.get(key);
}

// The groups, their colours and how many runs they have: from the first panel that has some.
function showLegend() {
  const legend = document.getElementById("legend");
  if (!legend) return;
  const panel = [...curves.panels.values()].find((p) => p.data?.groups?.length && shownKeys().includes(p.key));
  if (!panel) { replace(legend); return; }
  const { groups } = panel.data;
  const items = groups.map((group, i) => {
    const swatch = h("i", {});
    swatch.style.background = panel.colours[i];
    const gone = group.diverged ? `, ${group.diverged} diverged` : "";
    return h("span", { class: "key" }, swatch, group.label, h("small", {}, ` ${count(group.runs, "run")}${gone}`));
  });
  const marks = panel.data.marks.length ? h("span", { class: "key bad" }, "× first value that is not finite") : null;
  replace(legend, items, marks);
}

function emptyMessage() {
  if (overview.keys.length) return h("p", { class: "empty" }, "No key matches. Clear the search to see all.");
  const paths = overview.paths.join(", ");
  const text = overview.sessions.length
    ? "Nothing has been logged to these runs yet that could be drawn. Numbers appear here as soon as they are written."
    : `There is no store in ${paths} yet. A store is the folder that SaveLogger or lox.save was given; it appears here as soon as it is written.`;
  return h("p", { class: "empty" }, text);
}

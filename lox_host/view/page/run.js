// One run: how it was configured, all its keys, and the arrays that it logged.

const runPage = { panels: [], token: 0 };

function runView(main) {
  if (!overview.runs.length) { replace(main, emptyMessage()); return; }
  if (!runOf(state.run)) state.run = overview.runs[overview.newest[0] ?? 0].uid;
  const runs = overview.runs;
  const at = runs.findIndex((run) => run.uid === state.run);
  const go = (i) => () => change({ run: runs[(i + runs.length) % runs.length].uid }, { push: true });
  const controls = h("div", { class: "controls", role: "toolbar", "aria-label": "Run" },
    h("button", { onclick: go(at - 1), "aria-label": "Previous run" }, "←"),
    h("label", {}, "run", h("select", { name: "run", onchange: (e) => change({ run: e.target.value }, { push: true }) },
      runs.map((run) => h("option", { value: run.uid, selected: run.uid === state.run }, `${run.name}`)))),
    h("button", { onclick: go(at + 1), "aria-label": "Next run" }, "→"),
    h("button", { onclick: () => change({ picks: [state.run], view: "curves" }, { push: true }) }, "isolate in all panels"));
  const facts = h("div", { class: "facts" });
  const arrays = h("div", { class: "grid", id: "arrays" });
  const grid = h("div", { class: "grid", id: "run-panels" });
  replace(main, controls, facts, grid, arrays);
  watcher.disconnect();
  fillRun(facts, grid, arrays);
}

async function fillRun(facts, grid, arrays) {
  const token = ++runPage.token;
  let found;
  try {
    found = frozen ? frozenRun() : await ask("run", { run: state.run });
  } catch (error) {
    replace(facts, h("p", { class: "empty error" }, error.message));
    return;
  }
  if (token !== runPage.token) return;
  const pairs = (rows) => h("dl", {}, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  replace(facts,
    h("section", {}, h("h3", {}, "Run"), pairs([["name", found.name], ["state", found.state], ["started", date(found.started)],
      ["session", found.session], ["store", found.store], ["key", found.key.join(", ")], ...(found.facts || [])])),
    h("section", {}, h("h3", {}, "Config"), found.config.length ? pairs(found.config) : h("p", { class: "empty" }, "none")),
    found.environment?.length ? h("section", {}, h("h3", {}, "Environment"), pairs(found.environment)) : null);
  const fields = (key) => () => ({ ...panelFields(key), where: "", brush: {}, sessions: [runOf(state.run).session], picks: [state.run], group: null });
  runPage.panels = frozen ? [] : found.keys.map((key) => new CurvePanel(key, { height: 150, fields: fields(key) }));
  replace(grid, runPage.panels.map((panel) => panel.element));
  for (const panel of runPage.panels) watcher.observe(panel.element);
  replace(arrays, found.arrays.map((entry) => new ArrayPanel(entry).element));
}

function frozenRun() {
  const run = runOf(state.run);
  const session = overview.sessions.find((s) => s.uid === run.session);
  const config = Object.entries(run.config).map(([name, value]) => [name, String(value)]);
  return { ...session, name: run.name, session: session.name, key: [], config, keys: [], arrays: [] };
}

// An image, a video, a histogram over time, or the elements of an array over time.
class ArrayPanel {
  constructor(entry) {
    this.entry = entry;
    this.note = h("span", { class: "note" });
    this.body = h("div", { class: "media" });
    this.element = h("section", { class: "panel" },
      h("header", {}, h("h3", { title: entry.name }, entry.name), h("small", {}, entry.kind)), this.body, this.note);
    this.load(-1);
  }

  async load(row) {
    try {
      const found = await ask("media", { run: state.run, name: this.entry.name, row });
      if (!found.rows) { this.note.textContent = "no rows yet"; return; }
      if (found.pixels) this.drawPixels(found);
      else this.drawCells(found);
    } catch (error) {
      this.note.textContent = error.message;
      this.note.classList.add("error");
    }
  }

  drawPixels(found) {
    const pixels = unpack(found.pixels);
    const [height, width, channels] = found.size.slice(-3);
    const frames = found.size.length === 4 ? found.size[0] : 1;
    const canvas = h("canvas", { width, height, class: "picture" });
    const g = canvas.getContext("2d");
    const show = (frame) => {
      const data = g.createImageData(width, height);
      const start = frame * width * height * channels;
      for (let i = 0; i < width * height; i++) {
        const at = start + i * channels;
        for (let c = 0; c < 3; c++) data.data[4 * i + c] = pixels[at + (channels >= 3 ? c : 0)];
        data.data[4 * i + 3] = channels === 4 ? pixels[at + 3] : 255;
      }
      g.putImageData(data, 0, 0);
    };
    show(0);
    const rows = this.slider ?? h("input", { type: "range", min: 0, max: found.rows - 1, value: found.row, "aria-label": "Row", onchange: (e) => this.load(Number(e.target.value)) });
    this.slider = rows;
    clearInterval(this.timer);
    if (frames > 1) {
      let frame = 0;
      this.timer = setInterval(() => { if (!canvas.isConnected) clearInterval(this.timer); else show((frame = (frame + 1) % frames)); }, 80);
    }
    replace(this.body, canvas, found.rows > 1 ? rows : null);
    this.note.textContent = `row ${found.row + 1} of ${found.rows}, step ${digits(found.step)}${frames > 1 ? `, ${frames} frames` : ""}`;
  }

  drawCells(found) {
    const cells = unpack(found.cells);
    const [columns, elements] = found.size;
    const plot = new Plot(170, `${found.name} over time`);
    replace(this.body, plot.element);
    const edges = found.edges ? unpack(found.edges) : null;
    // A histogram with the same edges in all rows has them on its axis.
    const perRow = edges ? edges.length / columns : 0;
    const fixed = edges && edges.every((e, i) => e === edges[i % perRow]);
    const y = fixed ? [0, elements] : [0, elements];
    plot.begin(found.x, y, { pad: 0 });
    let low = Infinity, high = -Infinity;
    for (const v of cells) if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
    const flipped = new Float32Array(cells.length);
    for (let c = 0; c < columns; c++) for (let e = 0; e < elements; e++) flipped[e * columns + c] = cells[c * elements + e];
    const root = found.kind === "histogram";
    plot.image(flipped, [columns, elements], found.x, y, (value, out, at) => {
      if (!Number.isFinite(value)) { out[at] = 220; out[at + 3] = 255; return; }
      let share = high > low ? (value - low) / (high - low) : 0.5;
      if (root) share = Math.sqrt(share);
      const [r, g, b] = ramp(share).match(/\d+/g).map(Number);
      out[at] = r; out[at + 1] = g; out[at + 2] = b;
      out[at + 3] = root ? 255 * Math.min(1, share * 1.6) : 255;
    });
    plot.axes("step");
    const range = `${digits(low)} to ${digits(high)}`;
    const span = fixed ? `, edges ${digits(edges[0])} to ${digits(edges[perRow - 1])}` : edges ? `, edges from the data` : "";
    this.note.textContent = found.kind === "histogram"
      ? `counts ${range} in ${elements} bins${span}, ${count(found.rows, "row")}`
      : `${found.elements} elements, ${range}, ${count(found.rows, "row")}`;
  }
}

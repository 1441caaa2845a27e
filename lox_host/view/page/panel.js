// One panel of curves: drawing, zoom, hover, and the click that isolates a run.

const LIVE_POINTS = 3; // times as many points as at first may come live before all is requested again

class CurvePanel {
  constructor(key, { height = 210, fields = () => panelFields(key), title = key } = {}) {
    Object.assign(this, { key, fields, data: null, stale: true, visible: false, asked: 0 });
    this.plot = new Plot(height, `Curves of ${key}`);
    this.note = h("span", { class: "note" });
    this.full = h("button", {
      class: "small", hidden: true, onclick: () => change({ full: !state.full }),
    });
    this.element = h("section", { class: "panel" },
      h("header", {}, h("h3", { title }, title), this.full), this.plot.element, this.note);
    this.element.panel = this;
    this.listen();
  }

  // ---- Data --------------------------------------------------------------------------------

  invalidate() {
    this.stale = true;
    if (this.visible) this.load();
  }

  // Ask for what is to be seen. While an answer is on its way, only the last question counts.
  async load(extra = {}) {
    if (this.loading) { this.again = true; return; }
    this.loading = true;
    this.stale = false;
    const fields = { ...this.fields(), x0: state.x0, x1: state.x1, ...extra };
    try {
      const began = performance.now();
      const data = await ask("panel", fields);
      this.milliseconds = performance.now() - began;
      this.accept(data, fields);
    } catch (error) {
      this.data = null;
      this.plot.begin([0, 1], [0, 1]);
      this.note.textContent = error.message;
      this.note.classList.add("error");
    }
    this.loading = false;
    if (this.again || this.stale) { this.again = false; this.load(); }
  }

  accept(data, fields) {
    for (const group of data.groups) {
      for (const name of ["x", "centre", "low", "high", "counts"]) group[name] = unpack(group[name]);
    }
    for (const line of data.lines) { line.x = unpack(line.x); line.y = unpack(line.y); }
    if (data.density) {
      data.tiles = [tileOf(data.density)];
    }
    this.data = data;
    this.span = [fields.x0, fields.x1];
    this.note.classList.remove("error");
    this.note.textContent = data.note || (data.runs ? "" : "no selected run has logged this");
    this.points = data.points;
    this.draw();
    this.element.dataset.version = data.version;
    document.dispatchEvent(new CustomEvent("drawn", { detail: this }));
  }

  // New rows: ask for what lies behind the last position, and add it.
  async grow() {
    const { data } = this;
    const last = data && data.extent ? data.extent[1] : null;
    const zoomed = state.x0 !== null || state.x1 !== null;
    const full = data && data.grown > LIVE_POINTS * Math.max(data.points, 100);
    if (!this.visible) { this.stale = true; return; }
    if (last === null || zoomed || full || this.loading || state.smooth > 1) { this.load(); return; }
    this.loading = true;
    try {
      const fresh = await ask("panel", { ...this.fields(), x0: last, x1: null });
      if (!this.append(fresh)) this.again = true;
    } catch { this.again = true; }
    this.loading = false;
    if (this.again || this.stale) { this.again = false; this.load(); }
  }

  // Add new rows to what is drawn. False if everything has to be requested again.
  append(fresh) {
    const { data } = this;
    const same = fresh.groups.length === data.groups.length && fresh.runs === data.runs &&
      fresh.lines.length === data.lines.length && fresh.diverged === data.diverged;
    if (!same) return false;
    const join = (a, b) => { const c = new a.constructor(a.length + b.length); c.set(a); c.set(b, a.length); return c; };
    const after = (xs, last) => { let i = 0; while (i < xs.length && xs[i] <= last) i++; return i; };
    const extend = (old, packed, names) => {
      const xs = unpack(packed.x);
      const from = after(xs, old.x.length ? old.x[old.x.length - 1] : -Infinity);
      for (const name of names) old[name] = join(old[name], unpack(packed[name]).slice(from));
      return xs.length - from;
    };
    let grown = 0;
    fresh.groups.forEach((group, i) => {
      grown += extend(data.groups[i], group, ["x", "centre", "low", "high", "counts"]);
    });
    fresh.lines.forEach((line, i) => extend(data.lines[i], line, ["x", "y"]));
    if (fresh.density) {
      data.tiles.push(tileOf(fresh.density));
    }
    data.grown = (data.grown || 0) + grown;
    data.extent[1] = Math.max(data.extent[1], fresh.extent[1]);
    data.y = [Math.min(data.y[0], fresh.y[0]), Math.max(data.y[1], fresh.y[1])];
    Object.assign(data, { marks: fresh.marks, note: fresh.note, rows: fresh.rows, version: fresh.version });
    this.note.textContent = data.note;
    this.draw();
    this.element.dataset.version = data.version;
    document.dispatchEvent(new CustomEvent("drawn", { detail: this }));
    return true;
  }

  // ---- Drawing -----------------------------------------------------------------------------

  range() {
    const [low, high] = this.data.extent;
    let x0 = state.x0 ?? low;
    const x1 = state.x1 ?? high;
    if (state.logx && !(x0 > 0)) x0 = Math.max((x1 > 0 ? x1 : 1) / 1e4, 1e-9);
    return [x0, x1];
  }

  draw() {
    const { data, plot } = this;
    if (!data || !data.extent) { plot.begin([0, 1], [0, 1]); return; }
    const { logx, logy } = state;
    plot.begin(this.range(), data.y, { logx, logy });
    plot.axes(data.x);
    this.palette = palette(data.palette, isOrdered());
    this.colours = data.groups.map((group) => this.palette[group.index]);
    plot.inside(() => {
      for (const tile of data.tiles || []) this.drawDensity(tile);
      this.drawLines();
      // Many bands lie above each other, and are fainter.
      const alpha = (isDark() ? 0.28 : 0.24) / (data.groups.length > 2 ? 1.7 : 1);
      data.groups.forEach((group, i) => {
        plot.band(group.x, group.low, group.high, { colour: this.colours[i], alpha });
      });
      data.groups.forEach((group, i) => {
        plot.line(group.x, group.centre, { colour: this.colours[i], width: 2 });
      });
    });
    this.drawMarks();
    const clipped = data.full_y && (data.full_y[0] < data.y[0] || data.full_y[1] > data.y[1]);
    this.full.hidden = !(clipped || state.full);
    this.full.textContent = state.full ? "fit" : "values outside: show all";
    this.full.title = data.full_y ? `all values: ${data.full_y.map((v) => digits(v)).join(" to ")}` : "";
  }

  drawDensity(tile) {
    const most = Math.max(1, ...this.data.tiles.map((other) => other.most));
    const ink = isDark() ? [170, 190, 225] : [60, 75, 105];
    const strength = isDark() ? 150 : 130;
    // The root shows single runs beside hundreds.
    this.plot.image(tile.counts, tile.size, tile.x, tile.y, (value, out, at) => {
      if (!value) return;
      out[at] = ink[0]; out[at + 1] = ink[1]; out[at + 2] = ink[2];
      out[at + 3] = 22 + strength * Math.sqrt(value / most);
    });
  }

  drawLines() {
    const { data, plot } = this;
    const isFaint = data.groups.length > 0;
    // The more lines there are, the fainter they are, or the means would drown in them.
    const alpha = isFaint ? Math.min(0.35, 3.5 / data.lines.length) : 1;
    for (const line of data.lines) {
      const colour = this.palette[line.group] ?? css("--dim");
      plot.line(line.x, line.y, { colour, width: isFaint ? 0.8 : 1.5, alpha });
    }
  }

  drawMarks() {
    const [low, high] = this.range();
    const { marks, y } = this.data;
    const size = marks.length > 40 ? 2.5 : 4;
    for (const mark of marks) {
      if (mark.x < low || mark.x > high) continue;
      this.plot.cross(mark.x, mark.y ?? y[0], css("--bad"), mark.end ? size : 2.5);
    }
  }

  // ---- Pointer and keys --------------------------------------------------------------------

  listen() {
    const { element } = this.plot;
    let from = null;
    const at = (event) => {
      const box = element.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top, event };
    };
    element.addEventListener("pointerdown", (event) => {
      if (!this.data?.extent || event.button) return;
      from = { ...at(event), pan: event.shiftKey, range: this.range() };
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener("pointermove", (event) => {
      if (!this.data?.extent) return;
      if (from && Math.abs(at(event).x - from.x) > 3) this.drag(from, at(event));
      else if (!from) this.hover(at(event));
    });
    element.addEventListener("pointerup", (event) => {
      const start = from;
      from = null;
      if (!start) return;
      const end = at(event);
      if (Math.abs(end.x - start.x) <= 3) this.isolate();
      else if (!start.pan) this.zoom(this.plot.x.value(start.x), this.plot.x.value(end.x));
      this.plot.clear();
    });
    element.addEventListener("pointerleave", () => { this.hovered = null; hideTip(); this.plot.clear?.(); });
    element.addEventListener("dblclick", () => change({ x0: null, x1: null }));
    element.addEventListener("wheel", (event) => {
      if (!this.data?.extent || !(event.ctrlKey || event.shiftKey)) return;
      event.preventDefault();
      this.scale(2 ** ((event.deltaY || event.deltaX) / 300), this.plot.x.value(at(event).x));
    }, { passive: false });
    element.addEventListener("keydown", (event) => this.press(event));
  }

  drag(from, to) {
    const { plot } = this;
    if (from.pan) {
      const move = plot.x.value(from.x) - plot.x.value(to.x);
      if (!state.logx) this.zoom(from.range[0] + move, from.range[1] + move);
      return;
    }
    plot.clear();
    const g = plot.over.getContext("2d");
    g.fillStyle = css("--accent");
    g.globalAlpha = 0.15;
    g.fillRect(Math.min(from.x, to.x), plot.y.end, Math.abs(to.x - from.x), plot.y.start - plot.y.end);
    g.globalAlpha = 1;
  }

  zoom(a, b) {
    const [low, high] = [Math.min(a, b), Math.max(a, b)];
    if (!(high > low)) return;
    const [first, last] = this.data.extent;
    const outside = low <= Math.min(first, state.x0 ?? first) && high >= Math.max(last, state.x1 ?? last);
    change(outside ? { x0: null, x1: null } : { x0: low, x1: high });
  }

  // Zoom in or out around a position.
  scale(factor, around) {
    const { x } = this.plot;
    const centre = x.isLog ? Math.log10(around) : around;
    const ends = [x.from, x.to].map((end) => centre + (end - centre) * factor);
    const [low, high] = x.isLog ? ends.map((end) => 10 ** end) : ends;
    const [first, last] = this.data.extent;
    if (low <= first && high >= last) change({ x0: null, x1: null });
    else change({ x0: Math.max(low, x.isLog ? low : first), x1: Math.min(high, last) });
  }

  press(event) {
    if (!this.data?.extent) return;
    const [low, high] = this.range();
    const middle = (low + high) / 2;
    const move = (share) => this.zoom(low + (high - low) * share, high + (high - low) * share);
    const actions = {
      "+": () => this.scale(0.5, middle), "=": () => this.scale(0.5, middle),
      "-": () => this.scale(2, middle), 0: () => change({ x0: null, x1: null }),
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), Enter: () => this.isolate(),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  // ---- Hover -------------------------------------------------------------------------------

  hover({ x, y, event }) {
    const { plot, data } = this;
    const position = plot.x.value(x), value = plot.y.value(y);
    if (x < plot.x.start || x > plot.x.end) { hideTip(); plot.clear(); return; }
    this.pointer = { x, y, position, value, event };
    this.nearestLine();
    this.showHover();
    if (data.density && !frozen) this.askNearest();
  }

  nearestLine() {
    const { data, plot, pointer } = this;
    let best = null;
    for (const line of data.lines) {
      const i = nearestIndex(line.x, pointer.position);
      const gap = Math.abs(plot.y.place(line.y[i]) - pointer.y);
      if (gap < (best?.gap ?? 40)) best = { run: line.run, example: line.example, x: line.x[i], value: line.y[i], gap };
    }
    if (data.lines.length) this.hovered = best;
  }

  async askNearest() {
    if (this.asking) { this.askAgain = true; return; }
    this.asking = true;
    const { position, value } = this.pointer;
    try {
      const found = await ask("nearest", { ...this.fields(), atx: position, aty: value });
      this.hovered = found.nearest;
      if (!document.getElementById("tip").hidden) this.showHover();
    } catch { this.hovered = null; }
    this.asking = false;
    if (this.askAgain) { this.askAgain = false; this.askNearest(); }
  }

  showHover() {
    const { plot, data, pointer, hovered } = this;
    plot.clear();
    const g = plot.over.getContext("2d");
    const rows = [];
    const seen = data.groups.map((group) => nearestIndex(group.x, pointer.position));
    data.groups.forEach((group, i) => {
      if (!group.x.length) return;
      const at = seen[i];
      const band = Number.isFinite(group.low[at]) ? ` [${digits(group.low[at])}, ${digits(group.high[at])}]` : "";
      rows.push([this.colours[i], group.label, digits(group.centre[at]) + band]);
    });
    const line = hovered && data.lines.find((other) => other.run === hovered.run && other.example === hovered.example);
    if (line) plot.inside(() => plot.line(line.x, line.y, { colour: css("--ink"), width: 1.6, context: g }), g);
    if (hovered) {
      plot.dot(hovered.x, hovered.value, { colour: css("--ink"), radius: 3.5, context: g });
      const element = hovered.example === undefined ? "" : ` [${hovered.example}]`;
      rows.push([css("--ink"), (runAt(hovered.run)?.name ?? "run") + element, digits(hovered.value)]);
    }
    g.strokeStyle = css("--faint");
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(Math.round(pointer.x) + 0.5, plot.y.end);
    g.lineTo(Math.round(pointer.x) + 0.5, plot.y.start);
    g.stroke();
    const at = data.groups.length && data.groups[0].x.length ? data.groups[0].x[seen[0]] : hovered?.x ?? pointer.position;
    showTip(pointer.event, `${data.x} ${digits(at, 6)}`, rows, hovered ? "click to isolate this run" : "");
  }

  isolate() {
    if (!this.hovered) return;
    const { uid } = runAt(this.hovered.run);
    hideTip();
    const alone = state.picks.length === 1 && state.picks[0] === uid;
    change({ picks: alone ? [] : [uid] }, { push: true });
  }
}

// ---- Helpers -------------------------------------------------------------------------------

// An image of counts, and the largest of them.
function tileOf(density) {
  const counts = unpack(density.counts);
  return { ...density, counts, most: counts.reduce((a, b) => Math.max(a, b), 0) };
}

function nearestIndex(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  return Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
}

function isOrdered() {
  const name = groupBy();
  return Boolean(overview.config.find((entry) => entry.name === name)?.numeric);
}

function showTip(event, title, rows, hint) {
  const tip = document.getElementById("tip");
  replace(tip, h("b", {}, title), rows.map(([colour, name, value]) => {
    const swatch = h("i", {});
    swatch.style.background = colour;
    return h("div", {}, swatch, h("span", {}, name), h("em", {}, value));
  }), hint ? h("small", {}, hint) : null);
  tip.hidden = false;
  const { innerWidth, innerHeight } = window;
  const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - tip.offsetWidth - 16 : event.clientX + 16;
  const top = Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

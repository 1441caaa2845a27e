// Parallel coordinates: a line for each run across its config and its result. Brushing an
// axis, or typing two numbers below it, filters all views.

class Parallel {
  constructor() {
    this.base = h("canvas", {});
    this.element = h("div", { class: "parallel" }, this.base);
    this.ranges = h("div", { class: "ranges" });
    this.base.addEventListener("pointerdown", (event) => this.down(event));
    this.base.addEventListener("pointermove", (event) => this.move(event));
    this.base.addEventListener("pointerup", (event) => this.up(event));
    this.base.addEventListener("pointerleave", hideTip);
  }

  // axes: [{name, values (by run), brush: whether it may be brushed}], runs: numbers.
  // rank: by run, from 0 for the worst to 1 for the best.
  draw(axes, runs, colourOf, rank) {
    Object.assign(this, { runs, colourOf, rank });
    const width = this.element.clientWidth || 900, height = 300;
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this.base, { width: width * ratio, height: height * ratio });
    this.base.style.width = `${width}px`;
    this.base.style.height = `${height}px`;
    const g = this.base.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    const [left, right, top, bottom] = [70, 70, 40, 20];
    this.axes = axes.map((axis, i) => {
      const x = axes.length > 1 ? left + ((width - left - right) * i) / (axes.length - 1) : width / 2;
      return { ...axis, x, ...axisScale(axis, runs, height - bottom, top) };
    });
    this.drawRuns(g);
    for (const axis of this.axes) this.drawAxis(g, axis, top, height - bottom);
    this.showRanges();
  }

  place(axis, run) {
    // Runs that share a value are spread a little, the best on top.
    const spread = axis.isDiscrete ? (0.5 - (this.rank.get(run) ?? 0)) * 16 : 0;
    return axis.place(axis.values(run)) + spread;
  }

  drawRuns(g) {
    g.lineWidth = this.runs.length > 200 ? 0.7 : 1.2;
    const alpha = this.runs.length > 200 ? 0.4 : 0.7;
    for (const run of this.runs) {
      g.strokeStyle = this.colourOf(run);
      // Runs without a finite result end below the axis.
      const isGone = this.axes[this.axes.length - 1].values(run) === null;
      g.globalAlpha = isGone ? alpha / 3 : alpha;
      g.setLineDash(isGone ? [4, 3] : []);
      g.beginPath();
      for (const axis of this.axes) g.lineTo(axis.x, this.place(axis, run));
      g.stroke();
    }
    g.globalAlpha = 1;
    g.setLineDash([]);
  }

  drawAxis(g, axis, top, bottom) {
    g.strokeStyle = css("--dim");
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(axis.x, top); g.lineTo(axis.x, bottom);
    g.stroke();
    g.font = "600 12px system-ui, sans-serif";
    g.fillStyle = css("--ink");
    g.textAlign = "center";
    g.textBaseline = "bottom";
    g.fillText(axis.name.length > 22 ? `${axis.name.slice(0, 21)}…` : axis.name, axis.x, top - 16);
    g.font = "11px system-ui, sans-serif";
    g.textAlign = "left";
    g.textBaseline = "middle";
    for (const { y, text } of axis.ticks) {
      g.fillStyle = css("--paper");
      g.globalAlpha = 0.75;
      g.fillRect(axis.x + 5, y - 7, g.measureText(text).width + 6, 14);
      g.globalAlpha = 1;
      g.fillStyle = css("--dim");
      g.fillText(text, axis.x + 8, y);
    }
    const brush = axis.brush && state.brush[axis.id];
    if (!brush) return;
    const [a, b] = brush.map((value) => axis.place(value));
    g.fillStyle = css("--accent");
    g.globalAlpha = 0.3;
    g.fillRect(axis.x - 7, Math.min(a, b), 14, Math.max(3, Math.abs(a - b)));
    g.globalAlpha = 1;
  }

  at(event) {
    const box = this.base.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  down(event) {
    const point = this.at(event);
    const axis = this.axes.find((a) => a.brush && Math.abs(a.x - point.x) < 24);
    if (!axis || frozen) return;
    this.dragged = { axis, from: point.y };
    this.base.setPointerCapture(event.pointerId);
  }

  move(event) {
    const point = this.at(event);
    if (this.dragged) return;
    const near = this.axes.find((a) => Math.abs(a.x - point.x) < 24);
    this.base.style.cursor = near?.brush ? "ns-resize" : "default";
    if (!near) { hideTip(); return; }
    let best = null;
    for (const run of this.runs) {
      const gap = Math.abs(this.place(near, run) - point.y);
      if (gap < (best?.gap ?? 8)) best = { run, gap };
    }
    if (!best) { hideTip(); return; }
    const rows = this.axes.map((a) => ["transparent", a.name, a.text(a.values(best.run))]);
    showTip(event, runAt(best.run).name, rows, "drag along an axis to filter");
  }

  up(event) {
    const { dragged } = this;
    this.dragged = null;
    if (!dragged) return;
    const { y } = this.at(event);
    const { axis, from } = dragged;
    if (Math.abs(y - from) < 4) setBrush(axis.id, null);
    else setBrush(axis.id, [axis.value(y), axis.value(from)]);
  }

  // The same as numbers, for those who have no pointer.
  showRanges() {
    const numeric = this.axes.filter((axis) => axis.brush);
    replace(this.ranges, numeric.map((axis) => {
      const brush = state.brush[axis.id] || [null, null];
      const input = (i) => h("input", {
        type: "number", step: "any", value: brush[i] === null ? "" : Number(brush[i].toPrecision(4)), disabled: Boolean(frozen),
        "aria-label": `${axis.name} ${i ? "at most" : "at least"}`, placeholder: i ? "max" : "min",
        onchange: (e) => {
          const next = [...(state.brush[axis.id] || [axis.low, axis.high])];
          next[i] = e.target.value === "" ? (i ? axis.high : axis.low) : Number(e.target.value);
          setBrush(axis.id, next);
        },
      });
      return h("label", {}, axis.name, input(0), input(1));
    }));
  }
}

function setBrush(id, range) {
  const brush = { ...state.brush };
  if (range) brush[id] = range[0] < range[1] ? range : [range[1], range[0]];
  else delete brush[id];
  change({ brush });
}

// Where values lie on a vertical axis: numbers by size, names one below the other.
function axisScale(axis, runs, bottom, top) {
  const values = [...new Set(runs.map(axis.values))].filter((v) => v !== null && v !== undefined);
  if (values.every((v) => typeof v === "number") && values.length) {
    const finite = values.filter(Number.isFinite);
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    const isLog = low > 0 && high / low >= 20;
    const scale = new Scale(low, high, bottom, top, isLog);
    const few = finite.length <= 8 ? finite.map((value) => ({ value, text: digits(value) })) : scale.ticks(5);
    return {
      low, high, isDiscrete: finite.length <= 12 && runs.length > finite.length, place: (v) => (Number.isFinite(v) ? scale.place(v) : bottom + 8), value: (y) => scale.value(y),
      ticks: few.map(({ value, text }) => ({ y: scale.place(value), text })), text: (v) => digits(v),
    };
  }
  const names = values.map(String).sort();
  const place = (v) => {
    const i = names.indexOf(String(v));
    return i < 0 ? bottom + 8 : bottom - ((bottom - top) * (i + 0.5)) / names.length;
  };
  const shown = names.length > 12 ? names.filter((_, i) => i % Math.ceil(names.length / 12) === 0) : names;
  return { isDiscrete: names.length <= 12, place, value: () => NaN, ticks: shown.map((name) => ({ y: place(name), text: name.slice(0, 16) })), text: String, brush: false };
}

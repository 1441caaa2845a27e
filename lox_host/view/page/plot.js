// Axes on a canvas, with a second canvas above for what moves with the pointer.

const MARGIN = { left: 52, right: 10, top: 8, bottom: 24 };

class Plot {
  constructor(height, label) {
    this.base = h("canvas", {});
    this.over = h("canvas", { class: "over" });
    this.element = h("div", { class: "plot", tabIndex: 0, role: "img", "aria-label": label },
      this.base, this.over);
    this.height = height;
  }

  // Fit both canvases to the element, in the pixels of the screen.
  resize() {
    const width = this.element.clientWidth || 400;
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(this.height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${this.height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.width = width;
  }

  // Begin a drawing with these ranges.
  begin([x0, x1], [y0, y1], { logx = false, logy = false, pad = 0.04 } = {}) {
    this.resize();
    const { left, right, top, bottom } = MARGIN;
    this.x = new Scale(x0, x1, left, this.width - right, logx);
    this.y = new Scale(y0, y1, this.height - bottom, top, logy);
    if (pad) {
      const room = (this.y.to - this.y.from) * pad;
      const [low, high] = [this.y.from - room, this.y.to + room];
      const wide = logy ? [10 ** low, 10 ** high] : [low, high];
      this.y = new Scale(...wide, this.height - bottom, top, logy);
    }
    this.context = this.base.getContext("2d");
    this.context.clearRect(0, 0, this.width, this.height);
    this.clear();
    return this.context;
  }

  clear() {
    this.over.getContext("2d").clearRect(0, 0, this.width, this.height);
  }

  axes(label) {
    const g = this.context;
    const [ink, line] = [css("--dim"), css("--line")];
    g.font = "11px system-ui, sans-serif";
    g.lineWidth = 1;
    g.fillStyle = ink;
    g.strokeStyle = line;
    g.textBaseline = "middle";
    g.textAlign = "right";
    for (const { value, text } of this.y.ticks(this.height / 36)) {
      const y = Math.round(this.y.place(value)) + 0.5;
      g.beginPath();
      g.moveTo(this.x.start, y);
      g.lineTo(this.x.end, y);
      g.stroke();
      g.fillText(text, this.x.start - 6, y);
    }
    g.textBaseline = "top";
    g.textAlign = "center";
    const bottom = this.y.start;
    for (const { value, text } of this.x.ticks(this.width / 62)) {
      const x = Math.round(this.x.place(value)) + 0.5;
      g.beginPath();
      g.moveTo(x, bottom);
      g.lineTo(x, bottom + 4);
      g.stroke();
      g.fillText(text, Math.min(Math.max(x, this.x.start), this.x.end - 12), bottom + 7);
    }
    g.beginPath();
    g.moveTo(this.x.start, bottom + 0.5);
    g.lineTo(this.x.end, bottom + 0.5);
    g.stroke();
    if (label) {
      g.textAlign = "right";
      g.fillStyle = css("--faint");
      g.fillText(label.length > 7 ? `${label.slice(0, 6)}…` : label, this.x.start - 8, bottom + 7);
    }
  }

  // Draw inside the axes only.
  inside(draw, context = this.context) {
    context.save();
    context.beginPath();
    context.rect(this.x.start, this.y.end, this.x.end - this.x.start, this.y.start - this.y.end);
    context.clip();
    draw(context);
    context.restore();
  }

  // A line that is broken where a value is not finite. A single point is a dot.
  line(xs, ys, { colour, width = 1, alpha = 1, context = this.context, dash = [] }) {
    const g = context;
    g.strokeStyle = g.fillStyle = colour;
    g.lineWidth = width;
    g.globalAlpha = alpha;
    g.lineJoin = "round";
    g.setLineDash(dash);
    g.beginPath();
    let open = false;
    for (let i = 0; i < xs.length; i++) {
      const y = this.y.place(ys[i]);
      if (!Number.isFinite(y)) { open = false; continue; }
      const x = this.x.place(xs[i]);
      if (open) g.lineTo(x, y); else g.moveTo(x, y);
      open = true;
    }
    g.stroke();
    if (xs.length === 1) this.dot(xs[0], ys[0], { colour, radius: 2.5, context });
    g.globalAlpha = 1;
    g.setLineDash([]);
  }

  band(xs, lows, highs, { colour, alpha }) {
    const g = this.context;
    g.fillStyle = colour;
    g.globalAlpha = alpha;
    let start = 0;
    const known = (i) => Number.isFinite(lows[i]) && Number.isFinite(highs[i]);
    const floor = this.y.start + 10; // where a logarithm has no end
    const place = (v) => { const y = this.y.place(v); return Number.isFinite(y) ? y : floor; };
    while (start < xs.length) {
      while (start < xs.length && !known(start)) start++;
      let end = start;
      while (end < xs.length && known(end)) end++;
      if (end > start) {
        g.beginPath();
        for (let i = start; i < end; i++) g.lineTo(this.x.place(xs[i]), place(highs[i]));
        for (let i = end - 1; i >= start; i--) g.lineTo(this.x.place(xs[i]), place(lows[i]));
        g.closePath();
        g.fill();
      }
      start = end;
    }
    g.globalAlpha = 1;
  }

  dot(x, y, { colour, radius = 3, context = this.context }) {
    context.fillStyle = colour;
    context.beginPath();
    context.arc(this.x.place(x), this.y.place(y), radius, 0, 7);
    context.fill();
  }

  cross(x, y, colour, size = 4) {
    const g = this.context;
    const px = this.x.place(x);
    const py = Math.min(Math.max(this.y.place(y), this.y.end + size), this.y.start - size);
    g.strokeStyle = colour;
    g.lineWidth = 1.8;
    g.beginPath();
    g.moveTo(px - size, py - size); g.lineTo(px + size, py + size);
    g.moveTo(px - size, py + size); g.lineTo(px + size, py - size);
    g.stroke();
  }

  // An image of cells, the lowest row first, between these ranges.
  image(cells, [columns, rows], [x0, x1], [y0, y1], colourOf) {
    const picture = h("canvas", { width: columns, height: rows });
    const g = picture.getContext("2d");
    const data = g.createImageData(columns, rows);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const at = 4 * ((rows - 1 - row) * columns + column);
        colourOf(cells[row * columns + column], data.data, at);
      }
    }
    g.putImageData(data, 0, 0);
    const [bottom, top] = [this.y.place(y0), this.y.place(y1)];
    this.context.imageSmoothingEnabled = true;
    if (!this.x.isLog) {
      const [left, right] = [this.x.place(x0), this.x.place(x1)];
      this.context.drawImage(picture, left, top, right - left, bottom - top);
      return;
    }
    // On a logarithmic axis each column has a width of its own.
    for (let column = 0; column < columns; column++) {
      const edge = (i) => this.x.place(Math.max(x0 + ((x1 - x0) * i) / columns, this.x.low / 2));
      const [left, right] = [edge(column), edge(column + 1)];
      if (right < this.x.start || right - left <= 0) continue;
      this.context.drawImage(picture, column, 0, 1, rows, left, top, right - left, bottom - top);
    }
  }
}

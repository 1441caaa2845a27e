// Positions on an axis, and where its ticks are.

class Scale {
  constructor(low, high, start, end, isLog) {
    if (isLog && !(high > 0)) [low, high] = [0.1, 1];
    if (isLog && !(low > 0)) low = high / 1e6;
    if (!(high > low)) {
      const half = Math.abs(low) * 0.05 || 0.5;
      [low, high] = isLog ? [low / 1.5, low * 1.5] : [low - half, low + half];
    }
    Object.assign(this, { low, high, start, end, isLog });
    this.from = isLog ? Math.log10(low) : low;
    this.to = isLog ? Math.log10(high) : high;
  }

  place(value) {
    const v = this.isLog ? (value > 0 ? Math.log10(value) : -Infinity) : value;
    return this.start + ((v - this.from) / (this.to - this.from)) * (this.end - this.start);
  }

  value(place) {
    const v = this.from + ((place - this.start) / (this.end - this.start)) * (this.to - this.from);
    return this.isLog ? 10 ** v : v;
  }

  // Round values, at most about so many.
  ticks(most) {
    if (this.isLog && this.to - this.from >= 1.5) return this.powers(most);
    const [low, high] = [this.low, this.high];
    const rough = (high - low) / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
      ticks.push({ value: i * step, text: tickText(i * step, step) });
    }
    return ticks;
  }

  powers(most) {
    const first = Math.ceil(this.from - 1e-9), last = Math.floor(this.to + 1e-9);
    const step = Math.max(1, Math.ceil((last - first + 1) / most));
    const ticks = [];
    for (let i = first; i <= last; i += step) {
      const text = i >= -3 && i <= 4 ? String(Number((10 ** i).toPrecision(6))) : `1e${i}`;
      ticks.push({ value: 10 ** i, text });
    }
    return ticks;
  }
}

function tickText(value, step) {
  if (Math.abs(value) < step * 1e-6) return "0";
  const size = Math.abs(value);
  const wide = size >= 1e4 && step >= 1e3;
  if (wide && size >= 1e9) return Number((value / 1e9).toPrecision(6)) + "G";
  if (wide && size >= 1e6) return Number((value / 1e6).toPrecision(6)) + "M";
  if (wide) return Number((value / 1e3).toPrecision(6)) + "k";
  if (step < 1e-4) return value.toExponential(1).replace("e-", "e−").replace("e+", "e");
  const places = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  return value.toFixed(places);
}

// ---- Colours -------------------------------------------------------------------------------

const isDark = () => document.documentElement.dataset.theme === "dark";
const CATEGORIES = [
  "#3b6fd4", "#e07b27", "#1f9a6d", "#c2447f", "#8a63c9", "#b8912a", "#2aa3b8", "#8c564b",
  "#7f8c2d", "#7a7f87",
];
const CATEGORIES_DARK = [
  "#6d9eff", "#ff9d52", "#48c794", "#f277ad", "#b794f6", "#e0bb55", "#5fd0e0", "#c99184",
  "#b6c45f", "#a9afb8",
];
// From the low to the high: dark blue to orange, both readable on white and on black.
const RAMP = [[70, 60, 170], [46, 120, 190], [25, 155, 145], [110, 165, 50], [225, 130, 25], [205, 50, 60]];
const RAMP_DARK = [[135, 130, 255], [85, 165, 255], [60, 205, 190], [160, 215, 95], [255, 175, 70], [255, 105, 105]];

function ramp(share) {
  const stops = isDark() ? RAMP_DARK : RAMP;
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  const mix = stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (at - i)));
  return `rgb(${mix.join(",")})`;
}

// The colours of so many groups: in order for numbers, distinct for names.
function palette(number, isOrdered) {
  const names = isDark() ? CATEGORIES_DARK : CATEGORIES;
  if (!isOrdered || number < 3) return Array.from({ length: number }, (_, i) => names[i % names.length]);
  return Array.from({ length: number }, (_, i) => ramp(i / (number - 1)));
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

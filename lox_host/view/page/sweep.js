// Config against a result: parallel coordinates, scatter plots, and the best and worst runs.

const sweep = {};

function resultKey() {
  const names = overview.keys.map((key) => key.name);
  if (names.includes(state.result)) return state.result;
  // Guess what the runs are trained for.
  const like = (words) => names.find((name) => words.test(name));
  return like(/return|reward|score|accuracy/i) ?? like(/loss|error/i) ?? names[0];
}

function isLowBetter() {
  return state.low ?? Boolean(overview.keys.find((key) => key.name === resultKey())?.low);
}

function sweepView(main) {
  const stats = [["last", "last value"], ["best", "best value"], ["mean", "mean value"]];
  const names = overview.keys.map((key) => key.name);
  if (!names.length) { replace(main, emptyMessage()); return; }
  const select = (name, label, options, now) => h("label", {}, label, h("select", {
    name, onchange: (e) => change({ [name]: e.target.value, ...(name === "result" ? { low: null } : {}) }),
  }, options.map(([value, text]) => h("option", { value, selected: value === now }, text))));
  const controls = h("div", { class: "controls", role: "toolbar", "aria-label": "Sweep" },
    select("result", "result", names.map((name) => [name, name]), resultKey()),
    select("stat", "of each run, the", stats, state.stat),
    h("label", { class: "check" }, h("input", {
      type: "checkbox", name: "low", checked: isLowBetter(), onchange: (e) => change({ low: e.target.checked }),
    }), "lower is better"),
    h("button", { id: "best", onclick: () => pickEnds(true) }, "show the best 10"),
    h("button", { id: "worst", onclick: () => pickEnds(false) }, "show the worst 10"),
    h("button", { id: "diverged", class: "bad", hidden: true }),
    h("span", { class: "note", id: "sweep-note" }));
  sweep.parallel = new Parallel();
  sweep.scatters = h("div", { class: "grid" });
  sweep.ends = h("div", { class: "ends" });
  replace(main, controls, sweep.parallel.element, sweep.parallel.ranges, sweep.ends, sweep.scatters);
  refreshSweep();
}

async function refreshSweep() {
  if (!sweep.parallel?.element.isConnected) return;
  const key = resultKey();
  try {
    await loadColumns([key]);
  } catch (error) {
    replace(sweep.ends, h("p", { class: "empty error" }, error.message));
    return;
  }
  const runs = [...table.selected];
  const result = (run) => cell(key, run);
  // The best are drawn last, and colours go by rank: a few outliers do not use up the others.
  const finite = ordered(runs, result).reverse();
  const rank = new Map(finite.map((run, i) => [run, i / Math.max(1, finite.length - 1)]));
  const colourOf = (run) => (rank.has(run) ? ramp(0.8 * rank.get(run)) : css("--bad"));
  const axes = overview.config.map((entry) => ({
    id: entry.name, name: entry.name, brush: entry.numeric, values: (run) => runAt(run).config[entry.name],
  }));
  // Filters compare last values, so only these can be brushed.
  const brush = state.stat === "last";
  sweep.parallel.draw([...axes, { id: key, name: `${key} (${state.stat})`, brush, values: result }],
    [...runs.filter((run) => !rank.has(run)), ...finite], colourOf, rank);
  const gone = runs.filter((run) => !rank.has(run));
  document.getElementById("sweep-note").textContent = count(runs.length, "run");
  const diverged = document.getElementById("diverged");
  diverged.hidden = !gone.length;
  diverged.textContent = `show the ${gone.length} without a finite value`;
  diverged.onclick = () => change({ picks: gone.map((run) => runAt(run).uid), view: "curves" }, { push: true });
  showEnds(runs, result);
  showScatters(runs, result, colourOf);
}

function ordered(runs, result) {
  const known = runs.filter((run) => result(run) !== null);
  const sign = isLowBetter() ? 1 : -1;
  return known.sort((a, b) => sign * (result(a) - result(b)));
}

function pickEnds(best) {
  const runs = ordered([...table.selected], (run) => cell(resultKey(), run));
  const chosen = best ? runs.slice(0, 10) : runs.slice(-10);
  change({ picks: chosen.map((run) => runAt(run).uid), view: "curves" }, { push: true });
}

function showEnds(runs, result) {
  const all = ordered(runs, result);
  const item = (run) => {
    const config = overview.config.map(({ name }) => `${name} ${showValue(runAt(run).config[name])}`).join(" · ");
    return h("li", {}, h("a", { href: link({ view: "run", run: runAt(run).uid }) }, runAt(run).name),
      h("b", {}, digits(result(run))), h("small", {}, config));
  };
  replace(sweep.ends, groupSummary(runs, result),
    h("section", { id: "best-runs" }, h("h3", {}, "Best runs"), h("ol", {}, all.slice(0, 5).map(item))),
    h("section", { id: "worst-runs" }, h("h3", {}, "Worst runs", h("small", {}, " of those with a finite value")), h("ol", {}, all.slice(-5).reverse().map(item))));
}

// The results of each value of the config entry that panels are grouped by, the best first.
function groupSummary(runs, result) {
  const name = groupBy();
  if (!name) return null;
  const groups = new Map();
  for (const run of runs) {
    const value = showValue(runAt(run).config[name]);
    groups.set(value, [...(groups.get(value) || []), run]);
  }
  const sign = isLowBetter() ? 1 : -1;
  const rows = [...groups].map(([value, some]) => {
    const known = some.map(result).filter((v) => v !== null);
    const mean = known.reduce((a, b) => a + b, 0) / known.length;
    const std = Math.sqrt(known.reduce((a, b) => a + (b - mean) ** 2, 0) / known.length);
    return { value, runs: some.length, gone: some.length - known.length, mean, std };
  });
  // The mean of a group leaves out its runs that diverged, so it must not win because of them.
  const order = (row) => Number(row.gone > 0) + Number(Number.isNaN(row.mean));
  rows.sort((a, b) => order(a) - order(b) || sign * (a.mean - b.mean));
  const item = ({ value, runs: number, gone, mean, std }) => h("li", {}, `${name} ${value}`,
    h("b", {}, Number.isNaN(mean) ? "–" : `${digits(mean)} ± ${digits(std, 2)}`),
    h("small", {}, count(number, "run")), gone ? h("small", { class: "bad" }, `, ${gone} not finite`) : null);
  const shown = rows.slice(0, 10);
  const more = rows.length > shown.length ? h("p", { class: "note" }, `and ${rows.length - shown.length} more`) : null;
  return h("section", { id: "by-group" }, h("h3", {}, `By ${name}`, h("small", {}, ` mean ± std over runs, best first${rows.some((row) => row.gone) ? ", those with diverged runs last" : ""}`)), h("ol", {}, shown.map(item)), more);
}

const showValue = (value) => (typeof value === "number" ? digits(value) : String(value ?? "–"));

function showScatters(runs, result, colourOf) {
  const key = resultKey();
  const known = runs.filter((run) => result(run) !== null);
  replace(sweep.scatters, overview.config.filter((entry) => entry.numeric).map((entry) => {
    const plot = new Plot(190, `${key} against ${entry.name}`);
    const points = known.filter((run) => Number.isFinite(runAt(run).config[entry.name]))
      .map((run) => ({ run, x: runAt(run).config[entry.name], y: result(run) }));
    const panel = h("section", { class: "panel" }, h("header", {}, h("h3", {}, `${key} against ${entry.name}`)), plot.element);
    requestAnimationFrame(() => drawScatter(plot, entry, points, colourOf));
    return panel;
  }));
}

function drawScatter(plot, entry, points, colourOf) {
  if (!points.length) return;
  const xs = points.map((p) => p.x), ys = points.map((p) => p.y);
  const [low, high] = [Math.min(...xs), Math.max(...xs)];
  const logx = low > 0 && high / low >= 20;
  const room = logx ? [low / 1.3, high * 1.3] : [low - (high - low) * 0.06, high + (high - low) * 0.06];
  const [bottom, top] = [Math.min(...ys), Math.max(...ys)];
  plot.begin(room, [bottom, top], { logx, logy: bottom > 0 && top / bottom >= 50 });
  plot.axes(entry.name);
  plot.context.globalAlpha = points.length > 200 ? 0.5 : 0.85;
  for (const point of points) plot.dot(point.x, point.y, { colour: colourOf(point.run), radius: 3 });
  plot.context.globalAlpha = 1;
  const nearest = (event) => {
    const box = plot.element.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = null;
    for (const point of points) {
      const gap = Math.hypot(plot.x.place(point.x) - x, plot.y.place(point.y) - y);
      if (gap < (best?.gap ?? 14)) best = { ...point, gap };
    }
    return best;
  };
  plot.element.onpointermove = (event) => {
    const best = nearest(event);
    if (!best) { hideTip(); return; }
    showTip(event, runAt(best.run).name, [[colourOf(best.run), entry.name, digits(best.x)], ["transparent", resultKey(), digits(best.y)]], "click to isolate this run");
  };
  plot.element.onpointerleave = hideTip;
  plot.element.onclick = (event) => {
    const best = nearest(event);
    if (best) change({ picks: [runAt(best.run).uid], view: "curves" }, { push: true });
  };
}

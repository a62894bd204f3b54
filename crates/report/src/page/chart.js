// Line plots that share the horizontal axis, the zoom and the cross.

const HEIGHT = 215;
const MARGIN = { left: 54, right: 12, top: 8, bottom: 24 };

const AXES = {
  step: { label: "Steps", ticks: wholeTicks, least: 3, format: (v) => `step ${number(Math.round(v), 7)}`, tick: shortTick },
  tokens: { label: "Tokens", ticks: wholeTicks, least: 3, format: (v) => `${short(v, "", 4)} tokens`, tick: shortTick },
  seconds: { label: "Time", ticks: timeTicks, least: 1e-3, format: duration, tick: durationTick },
};

// Where a step lies on the chosen axis.
function xOf(run, step) {
  if (state.x === "step") return step;
  const [steps, values] = [run.axis.step, run.axis[state.x]];
  const index = lowerBound(steps, step);
  if (index === steps.length) return values[index - 1];
  if (index === 0) return steps[0] ? (values[0] * Math.min(step, steps[0])) / steps[0] : values[0];
  const part = (step - steps[index - 1]) / (steps[index] - steps[index - 1]);
  return values[index - 1] + part * (values[index] - values[index - 1]);
}

// The common horizontal range of all plots.
function xRange() {
  if (state.zoom) return state.zoom;
  let [low, high] = [Infinity, -Infinity];
  for (const run of shownRuns()) {
    const ends = run.axis.step.length ? [run.axis.step[0], run.axis.step.at(-1)] : (run.series.val_loss || { step: [] }).step;
    for (const x of ends.map((step) => xOf(run, step)).filter(known)) [low, high] = [Math.min(low, x), Math.max(high, x)];
  }
  if (low > high) return [0, AXES[state.x].least];
  low = Math.min(low, high * 0.02);
  return [low, Math.max(high, low + AXES[state.x].least)];
}

// The vertical range of what lies in the horizontal one.
function yRange(plot, curves, [left, right], log) {
  const [values, spikes] = [[], []];
  for (const { x, value, smooth, series, run } of curves) {
    const isSpike = new Set(((plot.key && run.spikes[plot.key]) || []).map(({ step }) => step));
    x.forEach((at, i) => {
      if (at < left || at > right) return;
      if (known(value[i]) && (!log || value[i] > 0)) (isSpike.has(series.step[i]) ? spikes : values).push(value[i]);
      if (smooth && known(smooth[i]) && (!log || smooth[i] > 0)) values.push(smooth[i]);
    });
  }
  if (!values.length) values.push(...spikes);
  if (!values.length) return log ? [0.1, 1] : [0, 1];
  values.sort((a, b) => a - b);
  let [low, high] = [values[0], values.at(-1)];
  // All else would be flat below a spike that is far above it: its circle stands at the edge then.
  high = Math.max(high, Math.min(low + (high - low) * 1.5, ...(spikes.length ? [Math.max(...spikes)] : [high])));
  if (log) return high > low * 1.02 ? [low / 1.03, high * 1.03] : [low / 1.5, high * 1.5];
  // The first step and pauses are many times as slow as the others: they may leave the plot.
  if (plot.robust) [low, high] = [0, Math.min(high, values[Math.floor(values.length * 0.97)] * 1.3)];
  if (plot.zero) low = Math.min(0, low);
  if (high - low <= Math.abs(high) * 1e-9) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const room = (high - low) * 0.05;
  return [low === 0 ? 0 : low - room, high + room];
}

function linePath(x, values, { toX, toY, range: [left, right] }) {
  let [text, pen] = ["", "M"];
  for (let i = Math.max(0, lowerBound(x, left) - 1); i < x.length; i += 1) {
    const y = known(values[i]) && known(x[i]) ? toY(values[i]) : NaN;
    if (!Number.isFinite(y)) {
      pen = "M";
      continue;
    }
    text += `${pen}${toX(x[i]).toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
    if (x[i] > right) break;
  }
  return text;
}

function drawChart(node, chart) {
  const width = Math.max(220, node.parentNode.clientWidth);
  const [inner, base] = [width - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.bottom];
  const curves = drawn(chart).map((run) => curve(chart, run)).filter(Boolean);
  const validations = chart.points ? runs.map((run) => curve(chart, run, chart.points)).filter(Boolean) : [];
  const log = state.log && !chart.robust;
  const range = xRange();
  const [low, high] = yRange(chart, [...curves, ...validations], range, log);
  const scale = log ? Math.log : (v) => v;
  const toX = (v) => MARGIN.left + ((v - range[0]) / (range[1] - range[0])) * inner;
  const toY = (v) => base - ((scale(v) - scale(low)) / (scale(high) - scale(low))) * (base - MARGIN.top);
  const fromX = (px) => range[0] + ((px - MARGIN.left) / inner) * (range[1] - range[0]);
  Object.assign(chart, { node, curves, validations, toX, toY, fromX, range, over: svg("g", {}) });

  const [back, clip] = [svg("g", {}), `clip-${chart.key}`];
  back.append(svg("clipPath", { id: clip }, svg("rect", { x: MARGIN.left, y: MARGIN.top - 4, width: inner + 6, height: base - MARGIN.top + 5 })));
  const rows = log ? logTicks(low, high) : niceTicks(low, high, 4);
  // Powers of ten, and 2 and 5 times these, need no digits after their own.
  const near = (tick) => (log && rows[1] / rows[0] > 1.5 ? 10 ** Math.floor(Math.log10(tick) + 1e-9) : spacing(rows, tick));
  for (const tick of rows) {
    const y = toY(tick);
    back.append(svg("line", { class: "gridline", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    back.append(svg("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, chart.tick(tick, near(tick))));
  }
  const axis = AXES[state.x];
  const columns = axis.ticks(range[0], range[1], Math.max(3, Math.floor(inner / 95)));
  for (const tick of columns) {
    const x = toX(tick);
    back.append(svg("text", { x, y: HEIGHT - 6, "text-anchor": x > width - 30 ? "end" : "middle" }, axis.tick(tick, spacing(columns, tick))));
  }
  back.append(svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base }));

  const front = svg("g", { "clip-path": `url(#${clip})` });
  for (const run of shownRuns()) front.append(...eventMarks(run, toX, base));
  for (const one of curves) front.append(...lines(chart, one, inner, base));
  for (const one of validations) front.append(...validationMarks(one, chart));
  for (const one of curves) front.append(...spikeMarks(one.run, chart));
  fill(node, { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, "aria-label": told(chart) }, []).replaceChildren(back, front, chart.over);
}

// The lines of a run, and what is filled below them.
function lines(chart, one, inner, base) {
  const nodes = [];
  const stroke = one.run.color;
  const under = chart.under && one.run.series[chart.under];
  if (under) {
    const line = linePath(one.x, under.value.map((v) => (known(v) ? v : 0)), chart);
    const left = Math.max(one.x[0], one.x[Math.max(0, lowerBound(one.x, chart.range[0]) - 1)]);
    const [from, to] = [chart.toX(left), chart.toX(one.x.at(-1))];
    nodes.push(svg("path", { class: "under", fill: stroke, d: `${line}L${to.toFixed(1)} ${base}L${from.toFixed(1)} ${base}Z` }));
  }
  // Many values in a small plot would be one dark surface.
  const faint = Math.max(0.1, Math.min(0.28, (0.6 * inner) / one.x.length));
  if (one.smooth) nodes.push(svg("path", { class: "raw", stroke, opacity: faint, d: linePath(one.x, one.value, chart) }));
  nodes.push(svg("path", { class: "curve", stroke, d: linePath(one.x, one.smooth || one.value, chart) }));
  if (one.x.length === 1 || (inner / one.x.length > 12 && !one.smooth)) {
    one.x.forEach((x, i) => known(one.value[i]) && nodes.push(svg("circle", { cx: chart.toX(x), cy: chart.toY(one.value[i]), r: 2.4, fill: stroke })));
  }
  return nodes;
}

// The plot in words, for those who cannot see it.
function told(chart) {
  const ends = ({ run, series }) => {
    const last = series.value.findLastIndex(known);
    const first = series.value.findIndex(known);
    return `${run.name} from ${chart.format(series.value[first])} at step ${series.step[first]} to ${chart.format(series.value[last])} at step ${series.step[last]}`;
  };
  const validation = (one) => `validation of ${ends(one)}`;
  return `${chart.title}: ${[...chart.curves.map(ends), ...chart.validations.map(validation)].join("; ")}`;
}

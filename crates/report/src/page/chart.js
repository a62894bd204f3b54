// Line plots that share the horizontal axis, the zoom and the cross.

const HEIGHT = 215;
const MARGIN = { left: 54, right: 12, top: 8, bottom: 24 };

const AXES = {
  step: { label: "Steps", format: (v) => `step ${number(Math.round(v), 7)}`, tick: shortTick },
  tokens: { label: "Tokens", format: (v) => `${short(v, "", 4)} tokens`, tick: shortTick },
  seconds: { label: "Time", format: duration, tick: duration },
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

// The mean of about that share of the points, as many on either side, so that the line does not lag; fewer at the ends.
function smoothed(values, share) {
  const [last, wide] = [values.length - 1, Math.round((share * values.length) / 2)];
  const [sums, counts] = [[0], [0]];
  values.forEach((value, i) => {
    sums.push(sums[i] + (known(value) ? value : 0));
    counts.push(counts[i] + (known(value) ? 1 : 0));
  });
  return values.map((value, i) => {
    const half = Math.max(Math.min(wide, i, last - i), Math.floor(wide / 4));
    const [from, to] = [Math.max(0, i - half), Math.min(last, i + half) + 1];
    return known(value) ? (sums[to] - sums[from]) / (counts[to] - counts[from]) : null;
  });
}

// What a plot draws of a run: positions, values, the smoothed line.
function curve(chart, run) {
  const series = run.series[chart.key];
  if (!series || state.hidden.has(run)) return null;
  const x = series.step.map((step) => xOf(run, step));
  if (!x.some(known)) return null;
  const smooth = chart.smooth && state.smooth > 0 ? smoothed(series.mean || series.value, state.smooth) : null;
  return { run, series, x, value: series.value, smooth };
}

function steps125(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) ticks.push(i * step);
  return ticks;
}

// Ticks of wall time are whole minutes, hours or days.
function timeTicks(low, high, count) {
  const units = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400];
  const unit = units.find((u) => (high - low) / u <= count);
  if (!unit || high - low < count) return steps125(low, high, count);
  const ticks = [];
  for (let t = Math.ceil(low / unit) * unit; t <= high; t += unit) ticks.push(t);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const n of high / low > 300 ? [1] : [1, 2, 5]) ticks.push(n * 10 ** power);
  }
  const inside = ticks.filter((t) => t >= low && t <= high);
  return inside.length >= 3 ? inside : steps125(low, high, 4);
}

// How far the nearest tick is, or zero.
function spacing(ticks, tick) {
  return Math.min(...[0, ...ticks].filter((other) => other !== tick).map((other) => Math.abs(other - tick)));
}

// The common horizontal range of all plots.
function xRange() {
  if (state.zoom) return state.zoom;
  let [low, high] = [Infinity, -Infinity];
  for (const run of runs.filter((r) => !state.hidden.has(r))) {
    const ends = run.axis.step.length ? [run.axis.step[0], run.axis.step.at(-1)] : (run.series.val_loss || { step: [] }).step;
    for (const x of ends.map((step) => xOf(run, step)).filter(known)) [low, high] = [Math.min(low, x), Math.max(high, x)];
  }
  if (low > high) return [0, 1];
  return high > low ? [Math.min(low, high * 0.02), high] : [low - 0.5, high + 0.5];
}

// The vertical range of what lies in the horizontal one.
function yRange(chart, curves, [left, right], log) {
  const values = [];
  for (const { x, value, smooth } of curves) {
    x.forEach((at, i) => {
      if (at < left || at > right) return;
      if (known(value[i]) && (!log || value[i] > 0)) values.push(value[i]);
      if (smooth && known(smooth[i]) && (!log || smooth[i] > 0)) values.push(smooth[i]);
    });
  }
  if (!values.length) return log ? [0.1, 1] : [0, 1];
  values.sort((a, b) => a - b);
  let [low, high] = [values[0], values.at(-1)];
  if (log) return high > low * 1.02 ? [low / 1.03, high * 1.03] : [low / 1.5, high * 1.5];
  // The first step and pauses are many times as slow as the others: they may leave the plot.
  if (chart.robust) [low, high] = [0, Math.min(high, values[Math.floor(values.length * 0.97)] * 1.3)];
  if (chart.zero) low = Math.min(0, low);
  if (high - low <= Math.abs(high) * 1e-9) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const room = (high - low) * 0.05;
  return [low === 0 ? 0 : low - room, high + room];
}

function path(curves, values, toX, toY, [left, right]) {
  let [text, pen] = ["", "M"];
  const { x } = curves;
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

function drawChart(chart) {
  const width = Math.max(220, chart.node.clientWidth);
  const [inner, base] = [width - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.bottom];
  const curves = runs.map((run) => curve(chart, run)).filter(Boolean);
  const log = state.log && !chart.robust;
  const range = xRange();
  const [low, high] = yRange(chart, curves, range, log);
  const toX = (v) => MARGIN.left + ((v - range[0]) / (range[1] - range[0])) * inner;
  const scale = log ? Math.log : (v) => v;
  const toY = (v) => base - ((scale(v) - scale(low)) / (scale(high) - scale(low))) * (base - MARGIN.top);
  Object.assign(chart, { curves, toX, toY, range, fromX: (px) => range[0] + ((px - MARGIN.left) / inner) * (range[1] - range[0]) });

  const clip = `clip-${chart.key}`;
  const frame = { x: MARGIN.left, y: MARGIN.top - 4, width: inner, height: base - MARGIN.top + 5 };
  const back = svg("g", null, svg("clipPath", { id: clip }, svg("rect", frame)));
  const rows = log ? logTicks(low, high) : steps125(low, high, 4);
  for (const tick of rows) {
    const y = toY(tick);
    back.append(svg("line", { class: "gridline", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    back.append(svg("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, chart.tick(tick, spacing(rows, tick))));
  }
  const ticks = state.x === "seconds" ? timeTicks : steps125;
  const columns = ticks(range[0], range[1], Math.max(3, Math.floor(inner / 95)));
  for (const tick of columns) {
    const x = toX(tick);
    back.append(svg("text", { x, y: HEIGHT - 6, "text-anchor": x > width - 30 ? "end" : "middle" }, AXES[state.x].tick(tick, spacing(columns, tick))));
  }
  back.append(svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base }));

  const front = svg("g", { "clip-path": `url(#${clip})` });
  for (const run of runs.filter((r) => !state.hidden.has(r))) {
    // Where there are many, only their feet are drawn.
    const top = run.events.length > 40 ? base - 8 : MARGIN.top;
    for (const [step] of run.events) {
      const x = toX(xOf(run, step));
      if (known(x)) front.append(svg("line", { class: "event", x1: x, x2: x, y1: top, y2: base, stroke: run.color }));
    }
  }
  for (const one of curves) {
    const stroke = one.run.color;
    const under = chart.under && one.run.series[chart.under];
    if (under) {
      const line = path(one, under.value.map((v) => (known(v) ? v : 0)), toX, toY, range);
      const [from, to] = [toX(Math.max(one.x[0], one.x[Math.max(0, lowerBound(one.x, range[0]) - 1)])), toX(one.x.at(-1))];
      front.append(svg("path", { class: "under", fill: stroke, d: `${line}L${to.toFixed(1)} ${base}L${from.toFixed(1)} ${base}Z` }));
    }
    // Many values in a small plot would be one dark surface.
    const faint = Math.max(0.1, Math.min(0.28, (0.6 * inner) / one.x.length));
    if (one.smooth) front.append(svg("path", { class: "raw", stroke, opacity: faint, d: path(one, one.value, toX, toY, range) }));
    front.append(svg("path", { class: "curve", stroke, d: path(one, one.smooth || one.value, toX, toY, range) }));
    if (inner / one.x.length > 12 && !one.smooth) {
      one.x.forEach((x, i) => known(one.value[i]) && front.append(svg("circle", { cx: toX(x), cy: toY(one.value[i]), r: 2.4, fill: stroke })));
    }
    for (const { step, value } of one.run.spikes[chart.key] || []) {
      front.append(svg("circle", { class: "spike", cx: toX(xOf(one.run, step)), cy: toY(value), r: 3.5, stroke }));
    }
  }
  chart.over = svg("g", {});
  chart.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  chart.svg.setAttribute("height", HEIGHT);
  chart.svg.replaceChildren(back, front, chart.over);
}

// Which plots there are, and what of a run each of them shows.

const PLOTS = {
  Training: [
    { key: "loss", title: "Loss", unit: "nats per token", smooth: true, points: "val_loss", format: number, tick: plainTick },
    { key: "val_loss", title: "Validation loss", unit: "nats per token", least: 2, several: true, format: number, tick: plainTick },
    { key: "grad_norm", title: "Gradient norm", unit: "before clipping", smooth: true, format: number, tick: plainTick },
    { key: "lr", title: "Learning rate", zero: true, format: plain, tick: plainTick },
    { key: "aux_loss", title: "Auxiliary losses", smooth: true, format: plain, tick: plainTick },
  ],
  Speed: [
    { key: "tokens_per_second", about: "speed", title: "Tokens per second", smooth: true, robust: true, format: short, tick: shortTick },
    { key: "step_seconds", title: "Step time", unit: "filled: waiting for data", smooth: true, robust: true, under: "data_wait_seconds",
      format: duration, tick: durationTick },
    { key: "bubble", title: "Bubble", unit: "of the time, mean of stages", zero: true, format: percent, tick: percentTick },
    { key: "mfu", title: "MFU", unit: "of the device's peak", smooth: true, robust: true, format: percent, tick: percentTick },
    { key: "flops", unless: "mfu", title: "FLOP/s per device", smooth: true, robust: true, format: (v) => short(v, "FLOP/s"), tick: flops },
  ],
  Experts: [
    { key: "experts_cv", about: "cv", title: "Load CV", unit: "mean of layers", zero: true, format: plain, tick: plainTick },
    { key: "experts_max", about: "busiest", title: "Busiest expert", unit: "times the mean, worst layer", format: plain, tick: plainTick },
    { key: "experts_dropped", about: "dropped", title: "Dropped", unit: "of the choices, mean of layers", zero: true, format: percent, tick: percentTick },
  ],
};

// By key: a plot with what was drawn of it last.
const charts = new Map(Object.values(PLOTS).flat().map((plot) => [plot.key, { ...plot, curves: [], validations: [] }]));

// Of one run, training and validation have a colour each in one plot; of several, each run has one.
const valColor = (run) => (runs.length === 1 ? "var(--val)" : run.color);

// What has a line each in a plot: the runs, or of one run the sets that it validates on.
function drawn(plot) {
  if (plot.key !== "val_loss" || runs.length > 1) return shownRuns();
  return shownRuns().flatMap((run) => Object.entries(run.val_losses).map(([name, series], i) =>
    ({ ...run, name, isSet: true, series: { val_loss: series }, spikes: {}, color: `var(--c${i % 8})` })));
}

function shows(plot, run) {
  if (plot.several && runs.length === 1) return Object.keys(run.val_losses).length > 0;
  const series = run.series[plot.key] || (plot.points && run.series[plot.points]);
  return Boolean(series) && series.value.filter(known).length >= (plot.least || 1) && !(plot.unless in run.series);
}

// A card for each plot of a section that some run has values for.
function plotCards(section) {
  return PLOTS[section].filter((plot) => runs.some((run) => shows(plot, run))).map((plot) => {
    const drawing = svg("svg", { class: "chart", role: "img", "data-key": plot.key, "data-drawn": true });
    listen(drawing, charts.get(plot.key));
    const id = `plot-${plot.key}`;
    const title = el("h3", {}, term(plot.about || plot.key, plot.title), plot.unit ? el("small", {}, plot.unit) : null, keys(plot), tools(id, plot.title, drawing, () => linesOf(plot)));
    return el("div", { class: "card", id, "data-key": `card-${plot.key}` }, title, el("div", {}, drawing));
  });
}

// Whether a plot has two lines of a run alone.
const isPair = (plot) => runs.length === 1 && plot.points && shows({ key: plot.points }, runs[0]) && Boolean(runs[0].series[plot.key]);

// Which of them is which.
function keys(plot) {
  if (plot.several && runs.length === 1) return el("span", { class: "line-keys" }, drawn(plot).map(({ name, color }) => el("span", {}, swatch(color), name)));
  if (!isPair(plot)) return null;
  return el("span", { class: "line-keys" }, el("span", {}, swatch(runs[0].color), "training"), el("span", {}, swatch("var(--val)"), term("val_loss", "validation")));
}

// Names and colours of a plot's lines, for a picture of it.
function linesOf(plot) {
  if (isPair(plot)) return [["training", runs[0].color], ["validation", "var(--val)"]];
  return drawn(plot).filter((run) => shows(plot, run)).map(({ name, color }) => [name, color]);
}

// What a plot draws of a run: positions, values, the smoothed line.
function curve(plot, run, key = plot.key) {
  const series = run.series[key];
  if (!series || state.hidden.has(run.name)) return null;
  const x = series.step.map((step) => xOf(run, step));
  if (!x.some(known)) return null;
  const smooth = plot.smooth && key === plot.key && state.smooth > 0 ? smoothed(series.mean || series.value, state.smooth) : null;
  return { run, series, x, value: series.value, smooth };
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

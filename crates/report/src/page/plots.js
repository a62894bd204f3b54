// Which plots there are, and what the pointer does in them.

const plain = (v) => number(v, 3);
const PLOTS = {
  Training: [
    { key: "loss", title: "Training loss", unit: "nats per token", smooth: true, format: number, tick: plainTick },
    { key: "val_loss", title: "Validation loss", unit: "nats per token", format: number, tick: plainTick },
    { key: "grad_norm", title: "Gradient norm", unit: "before clipping", smooth: true, format: number, tick: plainTick },
    { key: "lr", title: "Learning rate", zero: true, format: number, tick: plainTick },
    { key: "aux_loss", title: "Balance loss", smooth: true, format: number, tick: plainTick },
  ],
  Speed: [
    { key: "tokens_per_second", title: "Tokens per second", smooth: true, robust: true, format: (v) => number(v, 4), tick: shortTick },
    { key: "step_seconds", title: "Step time", unit: "filled: waiting for data", smooth: true, robust: true, under: "data_wait_seconds",
      format: duration, tick: (v) => (v ? duration(v) : "0") },
    { key: "mfu", title: "Model FLOP utilisation", unit: "of the device's peak", smooth: true, robust: true, format: percent, tick: (v, step) => `${plainTick(v, step)}%` },
    { key: "tflops", unless: "mfu", title: "TFLOP/s per device", smooth: true, robust: true, format: number, tick: plainTick },
  ],
  Experts: [
    { key: "experts_cv", title: "Load CV", unit: "deviation over mean, mean of layers", zero: true, format: plain, tick: plainTick },
    { key: "experts_max", title: "Busiest expert", unit: "times the mean, worst layer", format: plain, tick: plainTick },
    { key: "experts_dropped", title: "Dropped", unit: "of the choices, mean of layers", zero: true, format: percent, tick: (v, step) => `${plainTick(v, step)}%` },
  ],
};

// The plots of a section that some run has values for.
function plotCards(section) {
  const has = (plot) => runs.some((run) => run.series[plot.key] && !(plot.unless in run.series));
  return PLOTS[section].filter(has).map((plot) => {
    const chart = { ...plot, svg: svg("svg", { class: "chart", role: "img", "aria-label": plot.title }) };
    chart.node = el("div", {}, chart.svg);
    charts.push(chart);
    listen(chart);
    const title = el("h3", {}, chart.title, chart.unit ? el("small", {}, chart.unit) : null);
    chart.card = el("div", { class: "card" }, title, chart.node);
    return chart.card;
  });
}

// Dragging zooms all plots, a double click shows all again.
function listen(chart) {
  let start = null;
  const at = (event) => {
    const box = chart.svg.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - box.left, MARGIN.left), box.width - MARGIN.right);
  };
  chart.svg.addEventListener("pointerdown", (event) => {
    start = event.button === 0 ? at(event) : null;
  });
  chart.svg.addEventListener("pointermove", (event) => {
    hover(chart, chart.fromX(at(event)), event);
    if (start === null) return;
    const [from, to] = [start, at(event)].sort((a, b) => a - b);
    if (to - from > 4) chart.svg.setPointerCapture(event.pointerId);
    chart.over.append(svg("rect", { class: "select", x: from, y: MARGIN.top, width: to - from, height: HEIGHT - MARGIN.bottom - MARGIN.top }));
  });
  chart.svg.addEventListener("pointerup", (event) => {
    const [from, to] = [start ?? at(event), at(event)].sort((a, b) => a - b);
    start = null;
    if (to - from > 8) zoom([chart.fromX(from), chart.fromX(to)]);
  });
  chart.svg.addEventListener("pointercancel", () => { start = null; });
  chart.svg.addEventListener("pointerleave", () => { start = null; hover(null); });
  chart.svg.addEventListener("dblclick", () => zoom(null));
}

// The point of a curve at a position, or null where the run has none near it.
function pointAt(one, x, range) {
  const index = nearest(one.x, x);
  const spacing = Math.abs((one.x[index + 1] ?? one.x[index]) - (one.x[index - 1] ?? one.x[index]));
  return Math.abs(one.x[index] - x) <= Math.max(spacing, (range[1] - range[0]) * 0.02) ? index : null;
}

// A cross in all plots; what it meets in the one under the pointer is told beside it.
function hover(chart, x, event) {
  for (const each of charts.filter((c) => !c.card.hidden)) {
    each.over.replaceChildren();
    if (!chart) continue;
    const px = each.toX(x);
    each.over.append(svg("line", { class: "cross", x1: px, x2: px, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    for (const one of each.curves) {
      const index = pointAt(one, x, each.range);
      const y = index === null ? NaN : each.toY((one.smooth || one.value)[index] ?? NaN);
      if (y >= MARGIN.top - 2 && y <= HEIGHT - MARGIN.bottom) each.over.append(svg("circle", { cx: each.toX(one.x[index]), cy: y, r: 3.2, fill: one.run.color }));
    }
  }
  if (!chart) return tip(null);
  const rows = chart.curves.map((one) => tipRow(chart, one, x)).filter(Boolean);
  tip([el("div", { class: "soft" }, AXES[state.x].format(x)), rows, eventRows(chart, x)], event);
}

function tipRow(chart, one, x) {
  const index = pointAt(one, x, chart.range);
  if (index === null) return null;
  const [value, step] = [one.value[index], one.series.step[index]];
  const mean = one.smooth && known(one.smooth[index]) ? el("span", { class: "soft" }, `smooth ${chart.format(one.smooth[index])}`) : null;
  const parts = [];
  const under = chart.under && one.run.series[chart.under];
  if (under) {
    const wait = under.value[nearest(under.step, step)];
    if (known(wait) && value > 0) parts.push(`data ${percent((wait / value) * 100)}`);
  }
  const near = (spike) => Math.abs(chart.toX(xOf(one.run, spike.step)) - chart.toX(x)) < 6;
  for (const spike of (one.run.spikes[chart.key] || []).filter(near)) parts.push(`step ${spike.step}: ${chart.format(spike.value)} is ${plain(spike.z)} deviations above those before`);
  const name = runs.length > 1 ? one.run.name : state.x === "step" ? "" : `step ${step}`;
  return el("div", {}, el("div", { class: "row" }, swatch(one.run.color), el("span", {}, name), mean, el("b", {}, known(value) ? chart.format(value) : "no value")),
    parts.length ? el("div", { class: "soft" }, parts.join(", ")) : null);
}

function eventRows(chart, x) {
  const rows = [];
  for (const run of runs.filter((r) => !state.hidden.has(r))) {
    for (const [step, text] of run.events) {
      const near = Math.abs(chart.toX(xOf(run, step)) - chart.toX(x)) < 6;
      if (near && rows.length < 4) rows.push(el("div", { class: "row" }, swatch(run.color), el("span", {}, `step ${step}: ${text}`)));
    }
  }
  return rows;
}

// Shows the box beside the pointer, inside the window.
function tip(content, event) {
  const box = document.getElementById("tip");
  box.hidden = !content;
  if (!content) return;
  fill(box, {}, []).replaceChildren(...content.flat(2).filter(Boolean));
  const [width, height] = [box.offsetWidth, box.offsetHeight];
  const right = event.clientX + 16 + width < innerWidth;
  box.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - 16 - width)}px`;
  box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 6))}px`;
}

// What the pointer does in the plots: a cross in all of them, and dragging to zoom.

function forget() {
  again = null;
  for (const chart of charts.values()) if (chart.over) chart.over.replaceChildren();
  tip(null);
}

function zoom(range) {
  state.zoom = range;
  draw();
}

// Dragging zooms all plots, a double click shows all again.
function listen(node, chart) {
  let start = null;
  const at = ({ clientX }) => {
    const box = node.getBoundingClientRect();
    return Math.min(Math.max(clientX - box.left, MARGIN.left), box.width - MARGIN.right);
  };
  const show = (place) => {
    hover(chart, chart.fromX(at(place)), place);
    if (start === null) return;
    const [from, to] = [start, at(place)].sort((a, b) => a - b);
    chart.over.append(svg("rect", { class: "select", x: from, y: MARGIN.top, width: to - from, height: HEIGHT - MARGIN.bottom - MARGIN.top }));
  };
  const move = ({ clientX, clientY }) => {
    again = () => show({ clientX, clientY });
    again();
  };
  node.addEventListener("pointerdown", (event) => {
    start = event.button === 0 && event.pointerType !== "touch" ? at(event) : null;
    move(event);
  });
  node.addEventListener("pointermove", (event) => {
    move(event);
    if (start !== null && Math.abs(at(event) - start) > 4) node.setPointerCapture(event.pointerId);
  });
  node.addEventListener("pointerup", (event) => {
    const [from, to] = [start ?? at(event), at(event)].sort((a, b) => a - b);
    start = null;
    if (to - from <= 8) return;
    const [left, right] = [chart.fromX(from), chart.fromX(to)];
    const missing = Math.max(0, AXES[state.x].least - (right - left)) / 2;
    zoom([left - missing, right + missing]);
  });
  node.addEventListener("pointercancel", () => { start = null; });
  node.addEventListener("pointerleave", (event) => {
    start = null;
    // A finger that has left the screen has left what it pointed at to be read.
    if (event.pointerType !== "touch") forget();
  });
  node.addEventListener("dblclick", () => zoom(null));
}

// The point of a curve at a position, or null where the run has none near it.
function pointAt(one, x, range) {
  const index = nearest(one.x, x);
  const spacing = Math.abs((one.x[index + 1] ?? one.x[index]) - (one.x[index - 1] ?? one.x[index]));
  return Math.abs(one.x[index] - x) <= Math.max(spacing, (range[1] - range[0]) * 0.02) ? index : null;
}

// What the cross meets in the plot under the pointer is told beside it.
function hover(chart, x, { clientX, clientY }) {
  for (const each of charts.values()) {
    if (!each.node || !each.node.isConnected || !each.node.getClientRects().length) continue;
    each.over.replaceChildren();
    const px = each.toX(x);
    each.over.append(svg("line", { class: "cross", x1: px, x2: px, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    for (const one of each.curves) {
      const index = pointAt(one, x, each.range);
      const y = index === null ? NaN : each.toY((one.smooth || one.value)[index] ?? NaN);
      if (y >= MARGIN.top - 2 && y <= HEIGHT - MARGIN.bottom) each.over.append(svg("circle", { cx: each.toX(one.x[index]), cy: y, r: 3.2, fill: one.run.color }));
    }
  }
  const rows = [...chart.curves.map((one) => tipRow(chart, one, x)), ...chart.validations.map((one) => validationRow(chart, one, x))];
  tip([el("div", { class: "soft" }, AXES[state.x].format(x)), rows.filter(Boolean), eventRows(chart, x)], clientX, clientY);
}

function tipRow(chart, one, x) {
  const index = pointAt(one, x, chart.range);
  if (index === null) return null;
  const [value, step] = [one.value[index], one.series.step[index]];
  const mean = one.smooth && known(one.smooth[index]) ? el("span", { class: "soft" }, `mean ${chart.format(one.smooth[index])}`) : null;
  const parts = [];
  const under = chart.under && one.run.series[chart.under];
  if (under) {
    const wait = under.value[nearest(under.step, step)];
    if (known(wait) && value > 0) parts.push(`data ${share(wait / value)}`);
  }
  const near = (spike) => Math.abs(chart.toX(xOf(one.run, spike.step)) - chart.toX(x)) < 6;
  for (const spike of (one.run.spikes[chart.key] || []).filter(near)) parts.push(`spike at step ${spike.step}: ${chart.format(spike.value)}, ${plain(spike.z)} deviations above the steps before`);
  const name = runs.length > 1 || one.run.isSet ? one.run.name : state.x === "step" ? "" : `step ${step}`;
  return el("div", {}, el("div", { class: "row" }, swatch(one.run.color), el("span", {}, name), mean, el("b", {}, known(value) ? chart.format(value) : "no value")),
    parts.length ? el("div", { class: "soft" }, parts.join(", ")) : null);
}

// The validation that the pointer is at.
function validationRow(chart, one, x) {
  const index = nearest(one.x, x);
  // Of several runs only what the pointer is at: each run has its own steps.
  const near = runs.length === 1 ? pointAt(one, x, chart.range) !== null : Math.abs(chart.toX(one.x[index]) - chart.toX(x)) < 8;
  if (!near || !known(one.value[index])) return null;
  return el("div", { class: "row" }, swatch(valColor(one.run)), el("span", {}, `validation, step ${one.series.step[index]}`), el("b", {}, chart.format(one.value[index])));
}

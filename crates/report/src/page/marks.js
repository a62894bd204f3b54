// Marks in the plots: validations, spikes, and what happened to the run; and the legend that tells them.

const FEET = 8;
// Beyond that many lines only their feet are drawn.
const MANY = 40;

const KINDS = {
  resume: { about: "resumed from a checkpoint", line: true },
  skip: { about: "step skipped", line: true },
  save: { about: "checkpoint saved" },
  other: { about: "other event" },
};

// Lines for resumes and skipped steps, ticks on the axis for all else.
function eventMarks(run, toX, base) {
  const many = run.marks.filter(({ kind }) => KINDS[kind].line).length > MANY;
  return run.marks.map(({ step, kind }) => {
    const x = toX(xOf(run, step));
    if (!known(x)) return null;
    const top = !KINDS[kind].line ? base - 6 : many ? base - FEET : MARGIN.top;
    return svg("line", { class: `mark ${kind}`, x1: x, x2: x, y1: top, y2: base, stroke: run.color });
  }).filter(Boolean);
}

const diamond = (x, y) => `M${x} ${y - 4.6}l4.6 4.6-4.6 4.6-4.6-4.6z`;

function validationMarks(one, { toX, toY }) {
  const nodes = [];
  const at = one.x.map((x, i) => [toX(x).toFixed(1), known(one.value[i]) ? toY(one.value[i]).toFixed(1) : NaN]).filter(([, y]) => Number.isFinite(Number(y)));
  if (at.length > 1) nodes.push(svg("path", { class: runs.length === 1 ? "curve" : "val-line", stroke: valColor(one.run), d: `M${at.map((point) => point.join(" ")).join("L")}` }));
  const room = at.length > 1 ? (at.at(-1)[0] - at[0][0]) / (at.length - 1) : Infinity;
  const marked = room > 11 ? at : at.slice(-1);
  return [...nodes, ...marked.map(([x, y]) => svg("path", { class: "val", fill: valColor(one.run), d: diamond(Number(x), Number(y)) }))];
}

function spikeMarks(run, { key, toX, toY }) {
  return (run.spikes[key] || []).map(({ step, value }) => svg("circle", { class: "spike", cx: toX(xOf(run, step)), cy: Math.max(toY(value), MARGIN.top), r: 4, stroke: run.color }));
}

// What happened within some pixels of a position, for the box beside the pointer.
function eventRows(chart, x) {
  const near = (run, step) => Math.abs(chart.toX(xOf(run, step)) - chart.toX(x)) < 6;
  const all = shownRuns().flatMap((run) => run.marks.filter(({ step }) => near(run, step)).map((mark) => [run, mark]));
  const rows = all.slice(0, 4).map(([run, { step, text }]) => el("div", { class: "row" }, swatch(run.color), el("span", {}, `step ${step}: ${text}`)));
  return all.length > 4 ? [...rows, el("div", { class: "soft" }, `and ${all.length - 4} more`)] : rows;
}

// Only what is on the page.
function legend() {
  const runsShown = shownRuns();
  const has = (test) => runsShown.some(test);
  const item = (name, about, ...drawing) => el("span", { class: "item", "data-key": name },
    svg("svg", { viewBox: "0 0 26 14", width: 26, height: 14, "aria-hidden": "true" }, ...drawing), about);
  const stroke = runsShown.length === 1 ? runsShown[0].color : "var(--soft)";
  const wave = "M1 9l4-5 4 6 4-7 4 7 4-6 4 4";
  const kinds = Object.entries(KINDS).filter(([kind]) => has((run) => run.marks.some((mark) => mark.kind === kind)));
  const anySeries = has((run) => Object.keys(run.series).length);
  return [
    anySeries && state.smooth > 0 ? item("mean", "each value, and their running mean", svg("path", { class: "raw", stroke, opacity: 0.45, d: wave }), svg("path", { class: "curve", stroke, d: "M1 7Q13 5 25 7" })) : null,
    has((run) => run.series.val_loss) ? item("val", term("val_loss", "validation"), svg("path", { class: "val", fill: runs.length === 1 ? "var(--val)" : stroke, d: diamond(13, 7) })) : null,
    has((run) => Object.values(run.spikes).some((spikes) => spikes.length)) ? item("spike", term("spike", "spike"), svg("circle", { class: "spike", cx: 13, cy: 7, r: 4, stroke })) : null,
    ...kinds.map(([kind, { about, line }]) => item(kind, about,
      svg("line", { class: `mark ${kind}`, x1: 13, x2: 13, y1: line ? 0 : 6, y2: 13, stroke }), line ? null : svg("line", { class: "axis", x1: 3, x2: 23, y1: 13, y2: 13 }))),
  ];
}

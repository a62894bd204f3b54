// Heat maps of the experts' loads: a row an expert, a column a reported step.

const LAYERS_SHOWN = 12;

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

// Blue below the mean, orange above it, in octaves: twice the mean is as far from it as half of it.
function heatColor(load, dark) {
  const middle = dark ? [40, 43, 48] : [244, 244, 241];
  if (!known(load)) return middle;
  const octaves = Math.max(-2, Math.min(2, Math.log2(Math.max(load, 1e-9))));
  const [near, far] = octaves < 0
    ? (dark ? [[52, 110, 190], [130, 190, 255]] : [[110, 160, 225], [20, 60, 140]])
    : (dark ? [[200, 105, 40], [255, 205, 120]] : [[245, 160, 80], [150, 40, 10]]);
  const part = Math.abs(octaves);
  const [from, to, t] = part < 1 ? [middle, near, part] : [near, far, part - 1];
  return from.map((c, i) => Math.round(c + (to[i] - c) * t));
}

// The layer that a canvas shows.
function layerOf(canvas) {
  const run = runs.find(({ name }) => name === canvas.dataset.of);
  return run && run.experts.find(({ layer }) => String(layer) === canvas.dataset.layer);
}

function drawHeats() {
  const dark = isDark();
  for (const canvas of document.querySelectorAll("canvas.heat")) {
    const { load, step } = layerOf(canvas);
    [canvas.width, canvas.height] = [step.length, load.length];
    const image = new ImageData(step.length, load.length);
    load.forEach((row, y) => row.forEach((value, x) => image.data.set([...heatColor(value, dark), 255], (y * step.length + x) * 4)));
    canvas.getContext("2d").putImageData(image, 0, 0);
  }
  const stops = [-2, -1, 0, 1, 2].map((octaves) => `rgb(${heatColor(2 ** octaves, dark).join(" ")})`);
  for (const bar of document.querySelectorAll(".scale i")) bar.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
}

// First and last value, if any is not zero.
function fromTo(values, format) {
  const seen = values.filter(known);
  if (!seen.some((value) => value !== 0)) return null;
  const [from, to] = [format(seen[0]), format(seen.at(-1))];
  return from === to ? to : `${from} → ${to}`;
}

const LOAD_FACTS = [["cv", "CV", two], ["max_ratio", "busiest", two], ["dropped", "dropped", share]];

function hoverHeat(canvas, { clientX, clientY }) {
  const layer = layerOf(canvas);
  if (!layer) return;
  const box = canvas.getBoundingClientRect();
  const cell = (part, cells) => Math.max(0, Math.min(cells - 1, Math.floor(part * cells)));
  const column = cell((clientX - box.left) / box.width, layer.step.length);
  const row = cell((clientY - box.top) / box.height, layer.load.length);
  const load = layer.load[row][column];
  const facts = LOAD_FACTS.filter(([key]) => known(layer[key][column])).map(([key, name, format]) => `${name} ${format(layer[key][column])}`);
  tip([
    el("div", { class: "soft" }, `layer ${layer.layer}, step ${layer.step[column]}`),
    el("div", {}, `expert ${row}: `, el("b", {}, known(load) ? `${two(load)} of the mean load` : "no value")),
    el("div", { class: "soft" }, facts.join(", ")),
  ], clientX, clientY);
}

function heatMap(run, layer) {
  const canvas = el("canvas", { class: "heat", role: "img", "data-drawn": true, "data-of": run.name, "data-layer": layer.layer,
    "aria-label": `Loads of the experts of layer ${layer.layer}`, style: `height:${Math.max(64, Math.min(200, layer.load.length * 12))}px` });
  const show = ({ clientX, clientY }) => {
    again = () => hoverHeat(canvas, { clientX, clientY });
    again();
  };
  for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, show);
  canvas.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && forget());
  const text = LOAD_FACTS.map(([key, name, format]) => [name, fromTo(layer[key], format)]).filter(([, value]) => value).map(([name, value]) => `${name} ${value}`);
  const frame = el("div", { class: "heat-frame" },
    el("div", { class: "rows" }, el("span", {}, "0"), el("span", {}, String(layer.load.length - 1))),
    canvas,
    el("div", { class: "columns" }, el("span", {}, `step ${layer.step[0]}`), el("span", {}, String(layer.step.at(-1)))));
  return el("section", { class: "card", "data-key": `layer-${layer.layer}` }, el("h3", {}, `Layer ${layer.layer}`), frame, el("div", { class: "soft" }, text.join(", ")));
}

// The heat maps of each run; those of very deep models are folded after the first.
function expertMaps() {
  return runs.filter((run) => run.experts.length).map((run) => {
    const maps = run.experts.map((layer) => heatMap(run, layer));
    const rest = maps.splice(LAYERS_SHOWN);
    const scale = el("span", { class: "scale" }, "¼", el("i", { "data-drawn": true }), "4 times the mean load");
    return el("div", { "data-run": run.name, "data-key": `maps-${run.name}` },
      el("h4", {}, runs.length > 1 ? [swatch(run.color), run.name, " "] : null, term("experts", "Load of each expert"), " ", el("small", { class: "soft" }, "rows are experts, columns steps ", scale)),
      el("div", { class: "maps" }, maps),
      rest.length ? el("details", {}, el("summary", {}, count(rest.length, "more layer")), el("div", { class: "maps" }, rest)) : null);
  });
}

// Means over the layers become plots like the others.
function expertSeries(run) {
  if (!run.experts.length) return;
  const step = run.experts[0].step;
  const over = (pick, join) => step.map((_, i) => {
    const values = run.experts.map((layer) => pick(layer)[i]).filter(known);
    return values.length ? join(values) : null;
  });
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const series = {
    experts_cv: over((layer) => layer.cv, mean),
    experts_max: over((layer) => layer.max_ratio, (values) => Math.max(...values)),
    experts_dropped: over((layer) => layer.dropped, (values) => mean(values) * 100),
  };
  for (const [key, value] of Object.entries(series)) if (value.some((v) => known(v) && v !== 0)) run.series[key] = { step, value };
}

// Heat maps of the experts' loads: a row an expert, a column a reported step.

const LAYERS_SHOWN = 12;

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

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

function drawHeat(canvas, layer) {
  const [rows, columns] = [layer.load.length, layer.step.length];
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const dark = isDark();
  layer.load.forEach((row, y) => row.forEach((load, x) => image.data.set([...heatColor(load, dark), 255], (y * columns + x) * 4)));
  context.putImageData(image, 0, 0);
}

function fromTo(values, format) {
  const [first, last] = [values.find(known), values.findLast(known)];
  if (first === undefined) return null;
  const [from, to] = [format(first), format(last)];
  return from === to ? to : `${from} → ${to}`;
}

const two = (v) => v.toFixed(2);
const share = (v) => percent(v * 100);

function heatMap(layer) {
  const canvas = el("canvas", { class: "heat", role: "img", "aria-label": `Loads of the experts of layer ${layer.layer}` });
  canvas.style.height = `${Math.max(64, Math.min(200, layer.load.length * 12))}px`;
  const show = (event) => {
    const box = canvas.getBoundingClientRect();
    const cell = (part, count) => Math.max(0, Math.min(count - 1, Math.floor(part * count)));
    const column = cell((event.clientX - box.left) / box.width, layer.step.length);
    const row = cell((event.clientY - box.top) / box.height, layer.load.length);
    const load = layer.load[row][column];
    const facts = [["CV", two, layer.cv], ["busiest", two, layer.max_ratio], ["dropped", share, layer.dropped]];
    const known_facts = facts.filter(([, , values]) => known(values[column])).map(([name, format, values]) => `${name} ${format(values[column])}`);
    tip([
      el("div", { class: "soft" }, `layer ${layer.layer}, step ${layer.step[column]}`),
      el("div", {}, `expert ${row}: `, el("b", {}, known(load) ? `${two(load)} of the mean load` : "no value")),
      el("div", { class: "soft" }, known_facts.join(", ")),
    ], event);
  };
  canvas.addEventListener("pointermove", show);
  canvas.addEventListener("pointerleave", () => tip(null));
  drawHeat(canvas, layer);
  heats.push(() => drawHeat(canvas, layer));

  const parts = [["CV", fromTo(layer.cv, two)], ["busiest", fromTo(layer.max_ratio, two)], ["dropped", fromTo(layer.dropped, share)]];
  const text = parts.filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`).join(", ");
  const frame = el("div", { class: "heat-frame" },
    el("div", { class: "rows" }, el("span", {}, "0"), el("span", {}, String(layer.load.length - 1))),
    canvas,
    el("div", { class: "columns" }, el("span", {}, `step ${layer.step[0]}`), el("span", {}, String(layer.step.at(-1)))));
  return el("section", { class: "card" }, el("h3", {}, `Layer ${layer.layer}`), frame, el("div", { class: "soft" }, text));
}

function heatScale() {
  const bar = el("i", {});
  const paint = () => {
    const stops = [-2, -1, 0, 1, 2].map((octaves) => `rgb(${heatColor(2 ** octaves, isDark()).join(" ")})`);
    bar.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
  };
  paint();
  heats.push(paint);
  return el("span", { class: "scale" }, "¼", bar, "4 times the mean load");
}

// The heat maps of each run; those of very deep models are folded after the first.
function expertMaps() {
  return runs.filter((run) => run.experts.length).map((run) => {
    const maps = run.experts.map(heatMap);
    const rest = maps.splice(LAYERS_SHOWN);
    const node = el("div", {},
      el("h4", {}, swatch(run.color), run.name, " ", el("small", { class: "soft" }, "rows are experts, columns reported steps ", heatScale())),
      el("div", { class: "maps" }, maps),
      rest.length ? el("details", {}, el("summary", {}, `${rest.length} more layers`), el("div", { class: "maps" }, rest)) : null);
    perRun.push([run, node]);
    return node;
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
  for (const [key, value] of Object.entries(series)) if (value.some(known)) run.series[key] = { step, value };
}

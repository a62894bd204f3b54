// The page from top to bottom, and its state.

const runs = JSON.parse(document.getElementById("data").textContent).runs;
const state = { x: "step", log: false, smooth: 0.03, hidden: new Set(), zoom: null };
const charts = [];
// What is to be painted again when light turns dark, and what belongs to a run that may be hidden.
const heats = [];
const perRun = [];

runs.forEach((run, index) => {
  run.color = `var(--c${index % 8})`;
  expertSeries(run);
});

const done = (run) => (run.steps && run.steps !== run.step ? `${run.step} of ${run.steps}` : String(run.step ?? "–"));
const FACTS = [
  ["Model", (run) => run.model, (v) => v],
  ["Parameters", (run) => run.parameters, (v) => short(v)],
  ["Ranks", (run) => run.ranks, String],
  ["Steps", (run) => run.step, (_, run) => done(run)],
  ["Tokens", (run) => run.tokens, (v) => short(v)],
  ["Loss", (run) => run.loss, (v) => number(v)],
  ["Val. loss", (run) => run.val_loss, (v) => number(v)],
  ["Tokens/s", (run) => run.tokens_per_second, (v) => number(v, 4)],
  ["Data wait", (run) => run.data_wait, (v) => percent(v * 100)],
  ["MFU", (run) => run.mfu, (v) => percent(v * 100)],
  ["TFLOP/s", (run) => run.tflops, plain],
  ["Time", (run) => run.seconds, (v) => duration(v)],
  ["Saving", (run) => run.saving || null, (v) => duration(v)],
  ["Skipped", (run) => run.skipped || null, String],
  ["Checkpoints", (run) => run.checkpoints.length || null, (v, run) => (v > 1 ? `${v}, to ${run.checkpoints.at(-1)}` : run.checkpoints[0])],
].filter(([, of]) => runs.some((run) => (of(run) ?? null) !== null));

const fact = ([, of, format], run) => ((of(run) ?? null) === null ? "" : format(of(run), run));

function header() {
  if (runs.length === 1) {
    const tile = (entry) => el("div", { class: entry[0] === "Model" ? "model" : null }, el("span", {}, entry[0]), el("b", {}, fact(entry, runs[0])));
    return [el("h1", {}, runs[0].name), el("div", { class: "card tiles" }, FACTS.filter((entry) => fact(entry, runs[0])).map(tile))];
  }
  const row = (run) => {
    const cells = FACTS.map((entry) => el("td", { "data-label": entry[0], class: entry[0] === "Model" ? "left model" : null }, fact(entry, run)));
    const node = el("tr", {}, el("td", { title: run.name }, swatch(run.color), run.name), cells);
    perRun.push([run, node, true]);
    return node;
  };
  const titles = FACTS.map(([title]) => el("th", { class: title === "Model" ? "left" : null }, title));
  const table = el("table", { id: "runs" }, el("thead", {}, el("tr", {}, el("th", {}, "Run"), titles)), el("tbody", {}, runs.map(row)));
  return [el("h1", {}, `${runs.length} runs`), el("div", { class: "card scroll" }, table)];
}

function bar() {
  const chip = (run) => {
    const node = el("button", { class: "chip", "aria-pressed": "true", onclick: () => {
      if (!state.hidden.delete(run)) state.hidden.add(run);
      node.setAttribute("aria-pressed", String(!state.hidden.has(run)));
      state.zoom = null;
      draw();
    } }, swatch(run.color), run.name);
    return node;
  };
  const axis = (name) => el("button", { "data-axis": name, onclick: () => { Object.assign(state, { x: name, zoom: null }); draw(); } }, AXES[name].label);
  const usable = Object.keys(AXES).filter((name) => runs.some((run) => run.axis[name].some(known)));
  const smooth = el("input", { type: "range", min: 0, max: 100, value: Math.sqrt(state.smooth / 0.25) * 100, "aria-label": "Smoothing", oninput: (event) => {
    state.smooth = (event.target.value / 100) ** 2 * 0.25;
    draw();
  } });
  const log = el("input", { type: "checkbox", onchange: (event) => { state.log = event.target.checked; draw(); } });
  return [
    runs.length > 1 ? el("div", { class: "group" }, runs.map(chip)) : null,
    el("div", { class: "choice", role: "group", "aria-label": "Horizontal axis" }, usable.map(axis)),
    el("label", {}, log, "log scale"),
    el("label", {}, "smooth", smooth),
    el("button", { id: "reset", hidden: true, onclick: () => zoom(null) }, "Show all"),
  ].filter(Boolean);
}

function memory() {
  const shown = runs.filter((run) => run.memory.length);
  const names = [...new Set(shown.flatMap((run) => run.memory.map(([name]) => name)))].sort();
  const sum = (run, column) => run.memory.reduce((total, entry) => total + (entry[column] || 0), 0);
  const most = Math.max(...shown.map((run) => sum(run, 2)), 1);
  const stack = (run, column) => el("div", { class: "bars" }, run.memory.filter((entry) => entry[column]).map((entry) => {
    const part = el("i", { title: `${entry[0]}: ${bytes(entry[column])}` });
    part.style.cssText = `width:${(entry[column] / most) * 100}%;background:var(--m${names.indexOf(entry[0]) % 8})`;
    return part;
  }));
  const line = (run, title, column) => [el("span", {}, title), stack(run, column), el("span", { class: "total" }, bytes(sum(run, column)))];
  const block = (run) => {
    const device = run.device && el("p", { class: "soft" }, `The device: ${bytes(run.device[0])} in use, ${bytes(run.device[1])} reserved.`);
    const node = el("div", {}, runs.length > 1 ? el("h4", {}, swatch(run.color), run.name) : null,
      el("div", { class: "stack" }, line(run, "at most", 2), line(run, "at rest", 1)), device);
    perRun.push([run, node]);
    return node;
  };
  const key = (name, i) => {
    const peaks = shown.length === 1 ? ` ${bytes((shown[0].memory.find((entry) => entry[0] === name) || [])[2])}` : "";
    return el("span", {}, swatch(`var(--m${i % 8})`), name, peaks);
  };
  const note = el("p", { class: "soft" }, "Categories have their highest values at different times, so that all together are less than the bar “at most”.");
  return shown.length ? [el("div", { class: "card" }, shown.map(block), el("div", { class: "keys" }, names.map(key)), note)] : [];
}

function communication() {
  const shown = runs.filter((run) => run.traffic.some(([, calls]) => calls > 0));
  const row = (run) => run.traffic.filter(([, calls]) => calls > 0).map(([name, calls, size, seconds]) => {
    const cells = [number(calls, 6), number(size / 1e6, 4), number(seconds, 4), seconds > 0 ? number(size / seconds / 1e9, 3) : "–"];
    const node = el("tr", {}, runs.length > 1 ? el("td", {}, swatch(run.color), run.name) : null, el("td", { class: "left" }, name), cells.map((cell) => el("td", {}, cell)));
    perRun.push([run, node]);
    return node;
  });
  const titles = [...(runs.length > 1 ? ["Run"] : []), "Collective", "Calls", "MB", "Seconds", "GB/s"];
  const head = titles.map((title) => el("th", { class: title === "Collective" ? "left" : null }, title));
  return shown.length ? [el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, shown.map(row))))] : [];
}

function configuration() {
  const shown = runs.filter((run) => run.config.length);
  if (!shown.length) return [];
  const maps = shown.map((run) => new Map(run.config));
  const keys = [...new Set(shown.flatMap((run) => run.config.map(([key]) => key)))];
  const differing = new Set(keys.filter((key) => new Set(maps.map((map) => map.get(key))).size > 1));
  const table = (rows) => el("div", { class: "card scroll" }, el("table", { class: "config" },
    shown.length > 1 ? el("thead", {}, el("tr", {}, el("th", {}, "Key"), shown.map((run) => el("th", {}, swatch(run.color), run.name)))) : null,
    el("tbody", {}, rows.map((key) => el("tr", { class: rows === keys && differing.has(key) ? "differs" : null }, el("td", {}, key), maps.map((map) => el("td", {}, map.get(key) ?? "")))))));
  const first = shown.length > 1
    ? [el("p", { class: "soft" }, `${differing.size} of ${keys.length} keys differ.`), differing.size ? table([...differing]) : null]
    : [];
  return [...first, el("details", {}, el("summary", {}, `All ${keys.length} keys`), table(keys))];
}

function notes() {
  const all = runs.flatMap((run) => run.notes.map((note) => el("li", {}, runs.length > 1 ? `${run.name}: ${note}` : note)));
  return all.length ? [el("ul", { class: "notes" }, all)] : [];
}

function zoom(range) {
  state.zoom = range;
  draw();
}

function draw() {
  document.getElementById("reset").hidden = !state.zoom;
  for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", String(button.dataset.axis === state.x));
  for (const [run, node, fade] of perRun) {
    if (fade) node.classList.toggle("off", state.hidden.has(run));
    else node.hidden = state.hidden.has(run);
  }
  for (const chart of charts) chart.card.hidden = !runs.some((run) => run.series[chart.key] && !state.hidden.has(run));
  for (const section of document.querySelectorAll("section.plots")) {
    section.hidden = false;
    section.hidden = ![...section.querySelectorAll(".card")].some((card) => card.getClientRects().length);
  }
  charts.filter((chart) => !chart.card.hidden).forEach(drawChart);
  tip(null);
}

function start() {
  const grid = (cards) => (cards.length ? [el("div", { class: "grid" }, cards)] : []);
  const [first, ...others] = plotCards("Training");
  const sections = [
    ["Training", first ? [first, ...grid(others)] : []],
    ["Speed", grid(plotCards("Speed"))],
    ["Load of experts", [...grid(plotCards("Experts")), ...expertMaps()]],
    ["Memory", memory(), "rank 0"],
    ["Communication", communication(), "received by rank 0"],
    ["Configuration", configuration()],
    ["Notes", notes()],
  ];
  document.getElementById("header").append(...header());
  document.getElementById("bar").append(...bar());
  const main = document.getElementById("main");
  main.replaceChildren();
  for (const [title, nodes, small] of sections) {
    const plots = nodes.some((node) => node.querySelector(".chart, .heat"));
    const head = el("h2", {}, title, small ? el("small", {}, small) : null);
    if (nodes.length) main.append(el("section", { class: plots ? "plots" : null }, head, nodes));
  }
  draw();
  let width = innerWidth;
  addEventListener("resize", () => {
    // A phone's address bar changes the height only.
    if (width !== innerWidth) draw();
    width = innerWidth;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => heats.forEach((paint) => paint()));
}

start();

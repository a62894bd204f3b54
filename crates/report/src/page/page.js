// The page from top to bottom, and its state. It may be made again at any time, of newer runs.

const state = { x: "step", log: false, smooth: 0.03, hidden: new Set(), zoom: null };
let runs = [];
// Notes of runs that are not on the page.
let leftOut = [];
let drawnOnce = false;
// The names of the runs, as the page came.
const title = document.title;

const shownRuns = () => runs.filter((run) => !state.hidden.has(run.name));

function bar() {
  const toggle = (name) => () => {
    if (!state.hidden.delete(name)) state.hidden.add(name);
    state.zoom = null;
    draw();
  };
  const chip = ({ name, color }) => el("button", { class: "chip", "data-key": name, "aria-pressed": String(!state.hidden.has(name)), onclick: toggle(name) }, swatch(color), name);
  const axis = (name) => el("button", { "data-key": name, "aria-pressed": String(name === state.x), onclick: () => { Object.assign(state, { x: name, zoom: null }); draw(); } }, AXES[name].label);
  const usable = Object.keys(AXES).filter((name) => runs.some((run) => run.axis[name].some(known)));
  const smooth = el("input", { type: "range", min: 0, max: 100, value: Math.sqrt(state.smooth / 0.25) * 100, "aria-label": "Smoothing", oninput: (event) => {
    state.smooth = (event.target.value / 100) ** 2 * 0.25;
    draw();
  } });
  const log = el("input", { type: "checkbox", onchange: (event) => { state.log = event.target.checked; draw(); } });
  return usable.length ? [
    runs.length > 1 ? el("div", { class: "group", "data-key": "runs" }, runs.map(chip)) : null,
    el("div", { class: "choice", "data-key": "axis", role: "group", "aria-label": "Horizontal axis" }, usable.map(axis)),
    el("label", { "data-key": "log" }, log, "log scale"),
    el("label", { "data-key": "smooth" }, "smooth", smooth),
    state.zoom ? el("button", { "data-key": "reset", onclick: () => zoom(null) }, "Show all") : null,
  ] : [];
}

function sections() {
  const grid = (cards) => (cards.length ? [el("div", { class: "grid" }, cards)] : []);
  const [first, ...others] = plotCards("Training");
  const parts = [
    ["Training", first ? [first, ...grid(others)] : []],
    [term("sample", "Samples"), samples()],
    ["Speed", grid(plotCards("Speed"))],
    [term("stages", "Pipeline"), stages(), "a step"],
    ["Load of experts", [...grid(plotCards("Experts")), ...expertMaps()]],
    [term("layout", "Layout"), layouts(), "of the rank with the most", "half"],
    [term("traffic", "Communication"), communication(), "received by rank 0", "half"],
    [term("memory", "Memory"), memory(), "rank 0"],
    ["Planned and measured", planned()],
    ["Configuration", configuration()],
    ["Notes", notes()],
  ];
  return parts.filter(([, nodes]) => nodes.length).map(([title, nodes, small, half]) => {
    const name = title.textContent || title;
    const plots = nodes.some((node) => node && node.querySelector(".chart, .heat"));
    return el("section", { class: plots ? "plots" : half || null, id: name.toLowerCase().replaceAll(" ", "-"), "data-key": name }, el("h2", {}, title, small ? el("small", {}, small) : null), nodes);
  });
}

// What depends on the reader's choices.
function draw() {
  renew(byId("bar"), bar());
  renew(byId("legend"), legend());
  for (const node of document.querySelectorAll("[data-run]")) {
    const off = state.hidden.has(node.dataset.run);
    if (node.dataset.fade === undefined) node.hidden = off;
    else node.classList.toggle("off", off);
  }
  const drawings = [...document.querySelectorAll("svg.chart")];
  for (const node of drawings) node.closest(".card").hidden = !shownRuns().some((run) => shows(charts.get(node.dataset.key), run));
  for (const section of document.querySelectorAll("section.plots")) {
    section.hidden = false;
    section.hidden = ![...section.querySelectorAll(".card")].some((card) => card.getClientRects().length);
  }
  for (const node of drawings) if (node.getClientRects().length) drawChart(node, charts.get(node.dataset.key));
  drawTimelines();
  if (again) again();
  else tip(null);
}

// Shows these runs, from now on.
function update(data) {
  runs = data.runs;
  leftOut = data.notes;
  runs.forEach((run, index) => {
    run.color = `var(--c${index % 8})`;
    expertSeries(run);
  });
  renew(byId("title"), runs.length === 1 ? runs[0].name : count(runs.length, "run"));
  document.title = tabTitle(runs, title);
  renew(byId("head"), head());
  renew(byId("main"), sections());
  drawHeats();
  draw();
  if (!drawnOnce) showLinked();
  drawnOnce = true;
}

function start() {
  listenForTerms();
  let width = innerWidth;
  addEventListener("resize", () => {
    // A phone's address bar changes the height only.
    if (width !== innerWidth) draw();
    width = innerWidth;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawHeats);
  const data = JSON.parse(byId("data").textContent);
  if (!data) return;
  update(data);
  renew(byId("status"), asOfThen());
}

start();

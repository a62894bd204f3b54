// A pipeline's step as a time line: a row a stage, a box for each thing that it computes.

const STAGE = { height: 26, gap: 6, left: 62, right: 150 };
// Below that width what was measured stands under a stage's name.
const STAGE_WIDE = 620;

const DOES = {
  F: { about: "forward", color: "var(--c0)" },
  B: { about: "backward", color: "var(--c4)" },
  I: { about: "backward of the input", color: "var(--c4)" },
  W: { about: "backward of the weights", color: "var(--c2)" },
};

const runOf = (node) => runs.find(({ name }) => name === node.dataset.of);

// The first chunk of a stage is the strongest in colour.
function strengths(done) {
  const chunks = [...new Set(done.map(([, chunk]) => chunk))].sort((a, b) => a - b);
  return new Map(chunks.map((chunk, i) => [chunk, 1 - (0.5 * i) / Math.max(1, chunks.length - 1)]));
}

function drawTimeline(node, { pipeline, stages }) {
  const width = Math.max(220, node.parentNode.clientWidth);
  const wide = width >= STAGE_WIDE;
  const measured = (i) => (stages[i] ? `${duration(stages[i][0])} · waits ${percent(100 * stages[i][1])}` : null);
  const row = STAGE.height + STAGE.gap + (wide || !stages.length ? 0 : 18);
  const right = wide && stages.length ? STAGE.right : 2;
  const toX = (tick) => STAGE.left + (tick / pipeline.end) * (width - STAGE.left - right);
  const height = row * pipeline.stages.length;
  const parts = pipeline.stages.map((done, i) => {
    const strength = strengths(done);
    const y = row * i;
    const boxes = done.map(([kind, chunk, micro, start, end], at) => {
      const [x, wideness] = [toX(start), toX(end) - toX(start)];
      const room = wideness > 7 * String(micro).length + 4;
      return [
        svg("rect", { class: "done", "data-at": `${i},${at}`, x, y, width: Math.max(0.5, wideness - (wideness > 4 ? 1 : 0)), height: STAGE.height, rx: wideness > 8 ? 2 : 0, fill: DOES[kind].color, "fill-opacity": strength.get(chunk) }),
        room ? svg("text", { class: "micro", x: x + (wideness - 1) / 2, y: y + STAGE.height / 2 + 4, "text-anchor": "middle" }, micro) : null,
      ];
    });
    const text = measured(i);
    return [
      svg("text", { x: 0, y: y + STAGE.height / 2 + 4 }, `stage ${i}`),
      svg("rect", { class: "waits", x: STAGE.left, y, width: width - STAGE.left - right, height: STAGE.height }),
      boxes,
      text ? svg("text", { x: wide ? width : STAGE.left, y: wide ? y + STAGE.height / 2 + 4 : y + STAGE.height + 14, "text-anchor": wide ? "end" : "start" }, text) : null,
    ];
  });
  const told = pipeline.stages.map((_, i) => `stage ${i} ${measured(i) || `waits ${share(pipeline.waits[i])}`}`).join("; ");
  fill(node, { viewBox: `0 0 ${width} ${height}`, height, "aria-label": `${pipeline.schedule}: ${told}` }, []).replaceChildren(...parts.flat(4).filter(Boolean));
}

function drawTimelines() {
  for (const node of document.querySelectorAll("svg.timeline")) if (node.getClientRects().length) drawTimeline(node, runOf(node));
}

function hoverTimeline(node, { target, clientX, clientY }) {
  const run = runOf(node);
  const at = target.closest && target.closest(".done");
  const [stage, index] = at ? at.dataset.at.split(",").map(Number) : [];
  const done = run && at && (run.pipeline.stages[stage] || [])[index];
  if (!done) {
    forget();
    return;
  }
  const [kind, chunk, micro, start, end] = done;
  const { tick, chunks } = run.pipeline;
  tip([
    el("div", {}, `stage ${stage}: ${DOES[kind].about} of micro-batch ${micro}${chunks > 1 ? `, chunk ${chunk}` : ""}`),
    tick === null ? null : el("div", { class: "soft" }, `from ${duration(start * tick)} to ${duration(end * tick)}`),
  ].filter(Boolean), clientX, clientY);
}

function timeline(run) {
  const { pipeline } = run;
  const drawing = svg("svg", { class: "timeline", role: "img", "data-of": run.name, "data-key": "drawing", "data-drawn": true });
  for (const kind of ["pointermove", "pointerdown"]) drawing.addEventListener(kind, (event) => hoverTimeline(drawing, event));
  drawing.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && forget());
  const kinds = new Set(pipeline.stages.flat().map(([kind]) => kind));
  const colors = Object.entries(DOES).filter(([kind]) => kinds.has(kind)).map(([, does]) => does);
  const keysOf = colors.map(({ about, color }) => el("span", {}, swatch(color), about));
  const batches = pipeline.drawn < pipeline.micro_batches ? `${pipeline.drawn} of ${number(pipeline.micro_batches, 7)} micro-batches` : count(pipeline.drawn, "micro-batch", "micro-batches");
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const waited = run.stages.length ? ` The run waited ${share(mean(run.stages.map(([, part]) => part)))}: there messages take time, too.` : "";
  const how = pipeline.tick === null ? "all stages taking as long" : "each stage taking as long as it was measured to";
  return [
    el("h3", {}, nameOf(run), pipeline.schedule, el("small", {}, `${count(pipeline.stages.length, "stage")}, ${batches}${pipeline.chunks > 1 ? `, ${pipeline.chunks} chunks per stage, the later ones paler` : ""}`),
      el("span", { class: "line-keys" }, keysOf, el("span", {}, swatch("var(--wait)"), "waiting")),
      tools(`pipeline-${run.name}`, `A step of ${pipeline.schedule}`, drawing, () => colors.map(({ about, color }) => [about, color]))),
    el("div", {}, drawing),
    el("p", { class: "soft" }, `Simulated, ${how}, a backward twice as long as a forward: stages wait ${share(mean(pipeline.waits))} of the step.${waited}`),
  ];
}

// A run whose schedule is not known has its numbers alone.
function stageNumbers(run) {
  const row = ([computing, waiting], i) => el("div", { class: "row" }, el("span", {}, `stage ${i}`), `${duration(computing)} · waits ${percent(100 * waiting)}`);
  return [runs.length > 1 ? el("h3", {}, nameOf(run)) : null, run.stages.map(row)];
}

function stages() {
  const shown = runs.filter((run) => run.pipeline || run.stages.length);
  return shown.map((run) => el("div", { class: "card pipeline", id: `pipeline-${run.name}`, "data-run": run.name, "data-key": run.name }, run.pipeline ? timeline(run) : stageNumbers(run)));
}

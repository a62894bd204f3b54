// What the model wrote on the way, the newest first.

// So many are shown, the others folded.
const SAMPLES_SHOWN = 3;

function sampleRow(run, [step, text]) {
  const found = (key) => {
    const series = run.series[key];
    const index = series ? nearest(series.step, step) : -1;
    return index >= 0 && series.step[index] === step && known(series.value[index]) ? number(series.value[index]) : null;
  };
  const [loss, val] = [found("loss"), found("val_loss")];
  const facts = [loss && `loss ${loss}`, val && `validation ${val}`].filter(Boolean);
  return el("div", { class: "sample-row", "data-key": `sample-${step}` },
    el("div", {}, el("b", {}, `step ${number(step, 7)}`), facts.map((fact) => el("span", { class: "soft" }, fact))), el("pre", { class: "sample" }, text.trim() || "(an empty line)"));
}

function samplesOf(run) {
  const rows = run.samples.map((sample) => sampleRow(run, sample)).reverse();
  const earlier = rows.splice(SAMPLES_SHOWN);
  return el("div", { class: "card", "data-run": run.name, "data-key": run.name }, runs.length > 1 ? el("h3", {}, nameOf(run)) : null, rows,
    earlier.length ? el("details", { "data-key": "earlier" }, el("summary", {}, count(earlier.length, "earlier sample")), earlier) : null);
}

function samples() {
  const cards = runs.filter((run) => run.samples.length).map(samplesOf);
  return cards.length ? [el("div", { class: "samples" }, cards)] : [];
}

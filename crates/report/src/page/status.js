// The progress of live runs, and the tab's title.

const light = (kind, text) => el("span", { class: `light ${kind}` }, el("i", {}), text);

const done = (run) => (run.steps && run.step !== null ? Math.min(1, run.step / run.steps) : null);

// As exact as a guess may be.
function roughly(seconds) {
  const unit = [5, 10, 60, 300, 600, 3600].findLast((u) => seconds >= 4 * u) || 5;
  return duration(Math.ceil(seconds / unit) * unit);
}

// `step 300 of 600, about 2 min left`
function course(run) {
  const left = done(run) ? (run.seconds / run.step) * (run.steps - run.step) : NaN;
  return [`step ${reached(run)}`, known(left) && left > 0 ? `about ${roughly(left)} left` : null].filter(Boolean).join(", ");
}

const progressBar = (run) => (done(run) === null ? null : el("progress", { value: done(run), max: 1, "aria-label": "Steps done" }));

// On a page that does not follow its run.
function asOfThen() {
  const [run] = runs;
  if (runs.length !== 1 || run.verdict.state !== "running") return [];
  return [light("off", `The run went on when this page was made: ${course(run)}.`), progressBar(run)];
}

// `63% · loss 1.87 · name`, so that a tab tells how far its run is.
function tabTitle(shown, name) {
  const [run] = shown;
  const parts = shown.map(done);
  const mean = parts.reduce((sum, part) => sum + part, 0) / parts.length;
  const percentage = parts.length && !parts.includes(null) ? `${Math.floor(100 * mean)}%` : null;
  return [percentage, shown.length === 1 && known(run.loss) ? `loss ${plain(run.loss)}` : null, name].filter(Boolean).join(" · ");
}

// Follows the runs while they go on. This part is on a page that is served, and on no other.

let version = null;

async function follow() {
  const begin = performance.now();
  let answers = false;
  try {
    const answer = await fetch("data", { cache: "no-store", headers: version ? { "If-None-Match": version } : {} });
    answers = answer.status === 200 || answer.status === 304;
    if (answer.status === 200) {
      const data = await answer.json();
      version = answer.headers.get("ETag");
      update(data);
    }
  } catch {
    answers = false;
  }
  renew(byId("status"), status(answers));
  // One part work, ten parts rest; a page that nobody sees asks when it is seen again.
  const rest = Math.max(answers ? 1000 : 3000, 10 * (performance.now() - begin));
  setTimeout(() => (document.hidden ? document.addEventListener("visibilitychange", follow, { once: true }) : follow()), rest);
}

const finished = (run) => run.steps !== null && run.step !== null && run.step >= run.steps;

// Seconds since the run wrote its last line.
const silent = (run) => Math.max(0, Date.now() / 1000 - (run.written ?? 0));

// Some steps may be long, and between them may be a save or a validation.
function stopped(run) {
  const perStep = run.seconds / run.step;
  return silent(run) > Math.max(60, 20 * (known(perStep) ? perStep : 0));
}

function status(answers) {
  if (!answers) return light("off", runs.length ? "The server does not answer any more; this is what it told last." : "The server does not answer.");
  if (!runs.length) return light("off", "No run.");
  const going = runs.filter((run) => !finished(run));
  if (!going.length) return light("done", runs.length === 1 ? "Finished." : "All runs are finished.");
  if (runs.length === 1) return one(runs[0]);
  const last = Math.min(...going.map(silent));
  return light(going.every(stopped) ? "off" : "on", `${going.length} of ${runs.length} runs are not finished; the last line came ${ago(last)}.`);
}

function one(run) {
  if (run.step === null) return light("wait", "Waits for the first step; the plots appear by themselves.");
  if (stopped(run)) return light("off", `No new line for ${duration(Math.round(silent(run)))}: the run was stopped, or is in a long step.`);
  const part = run.steps ? run.step / run.steps : null;
  const left = part ? (run.seconds / run.step) * (run.steps - run.step) : NaN;
  const parts = [`step ${reached(run)}`, known(left) && left > 0 ? `about ${roughly(left)} left` : null, `last line ${ago(silent(run))}`];
  return [light("on", parts.filter(Boolean).join(", ")), part ? el("progress", { value: part, max: 1, "aria-label": "Steps done" }) : null];
}

const ago = (seconds) => (seconds < 3 ? "just now" : `${duration(seconds < 120 ? Math.round(seconds) : Math.round(seconds / 60) * 60)} ago`);

// As exact as a guess may be.
function roughly(seconds) {
  const unit = [5, 10, 60, 300, 600, 3600].findLast((u) => seconds >= 4 * u) || 5;
  return duration(Math.ceil(seconds / unit) * unit);
}

const light = (kind, text) => el("span", { class: `light ${kind}` }, el("i", {}), text);

follow();

// Follows live runs. This part is on a page that is served, and on no other.

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

// Seconds since the run wrote its last line.
const silent = (run) => Math.max(0, Date.now() / 1000 - (run.written ?? 0));

const ago = (seconds) => (seconds < 3 ? "just now" : `${duration(seconds < 120 ? Math.round(seconds) : Math.round(seconds / 60) * 60)} ago`);

function status(answers) {
  if (!answers) return light("off", runs.length ? "The server does not answer any more; this is what it told last." : "The server does not answer.");
  if (!runs.length) return light("off", "No run.");
  const going = runs.filter(({ verdict }) => verdict.state !== "finished");
  if (!going.length) return light("done", runs.length === 1 ? "Finished." : "All runs are finished.");
  if (runs.length === 1) return one(runs[0]);
  const last = Math.min(...going.map(silent));
  return light(going.every(({ verdict }) => verdict.state === "stopped") ? "off" : "on", `${going.length} of ${runs.length} runs are not finished; the last line came ${ago(last)}.`);
}

function one(run) {
  if (run.verdict.state === "waiting") return light("wait", "Waits for the first step; the plots appear by themselves.");
  if (run.verdict.state === "stopped") return light("off", `No new line for ${duration(Math.round(silent(run)))}: the run was stopped, or is in a long step.`);
  return [light("on", `${course(run)}, last line ${ago(silent(run))}`), progressBar(run)];
}

follow();

// The head: what each run has reached, and how it was set up.

const LN2 = Math.log(2);

const reached = (run) => (run.step === null ? null : run.steps && run.steps !== run.step ? `${number(run.step, 7)} of ${number(run.steps, 7)}` : number(run.step, 7));

// From the best validation.
const best = (run, of) => (run.best_val ? of(run.best_val[1]) : null);

function bitsPerByte(run) {
  const perToken = (run.setups.at(-1) || {}).bytes_per_token;
  return perToken ? best(run, (loss) => plain(loss / LN2 / perToken)) : null;
}

// Where it was found, if not at the end.
function afterBest(run) {
  if (!run.best_val || run.best_val[0] === run.step) return null;
  const last = number(run.val_loss);
  return `after step ${number(run.best_val[0], 7)}${last === number(run.best_val[1]) ? "" : `, last ${last}`}`;
}


// Term, title, text; a second line below it. What does not compare is only told of a run alone.
const FACTS = [
  ["steps", "Steps", reached],
  ["tokens", "Tokens", (run) => known(run.tokens) && short(run.tokens)],
  ["time", "Time", (run) => known(run.seconds) && duration(run.seconds)],
  ["loss", "Loss", (run) => known(run.loss) && number(run.loss)],
  ["val_loss", "Best val. loss", (run) => best(run, number), afterBest],
  ["perplexity", "Perplexity", (run) => best(run, (loss) => plain(Math.exp(loss)))],
  ["bits", "Bits per byte", bitsPerByte],
  ["speed", "Tokens/s", (run) => known(run.tokens_per_second) && short(run.tokens_per_second)],
  ["data_wait", "Data wait", (run) => known(run.data_wait) && share(run.data_wait)],
  ["mfu", "MFU", (run) => known(run.mfu) && share(run.mfu)],
  ["flops", "FLOP/s", (run) => known(run.flops) && flops(run.flops)],
  ["skipped", "Skipped", (run) => run.skipped && count(run.skipped, "step")],
];
const FACTS_ALONE = [
  ...FACTS,
  ["saving", "Saving", (run) => run.saving && duration(run.saving)],
  ["checkpoints", "Checkpoints", ({ checkpoints: names }) => (names.length > 1 ? String(names.length) : names[0]), ({ checkpoints: names }) => names.length > 1 && `to ${names.at(-1)}`],
];

// `4 ranks, from step 121 on 2`: what changed from one process of the run to the next.
function overTime(run, of, again = of) {
  const parts = [];
  for (const setup of run.setups) {
    const value = of(setup);
    if (value && value !== (parts.at(-1) || {}).value) parts.push({ value, text: parts.length ? `from step ${setup.step + 1} on ${again(setup)}` : value });
  }
  const texts = parts.map(({ text }) => text);
  return texts.length > 5 ? [texts[0], `${texts.length - 3} changes`, ...texts.slice(-2)].join(", ") : texts.join(", ");
}

function dataOf(setup) {
  const tokens = [["to train on", setup.train_tokens], ["to validate on", setup.val_tokens]].filter(([, n]) => n);
  return [setup.data, ...tokens.map(([what, n], i) => `${short(n)}${i ? "" : " tokens"} ${what}`)].filter(Boolean).join(", ");
}

function batchOf({ global_batch_size: rows, seq_len: length, micro_batch_size: micro }) {
  if (!rows || !length) return null;
  return `${count(rows, "sequence")} of ${count(length, "token")}: ${count(rows * length, "token")} a step${micro ? `, in micro-batches of ${micro}` : ""}`;
}

function machineOf({ host, cpu, cores, device }) {
  return [host, cpu, cores && count(cores, "core"), device && `device ${device}`].filter(Boolean).join(", ");
}

const SETUP = [
  [null, "Model", (run) => [run.model, run.parameters && `${short(run.parameters)} parameters`].filter(Boolean).join("; ")],
  ["data", "Data", (run) => overTime(run, dataOf)],
  ["ranks", "Ranks", (run) => overTime(run, ({ ranks }) => ranks && count(ranks, "rank"), ({ ranks }) => ranks)],
  ["ranks", "Strategy", (run) => overTime(run, ({ strategy }) => strategy)],
  ["batch", "Batch", (run) => overTime(run, batchOf)],
  [null, "Machine", (run) => overTime(run, machineOf)],
  [null, "Version", (run) => overTime(run, ({ version }) => version)],
  [null, "Started", (run) => run.setups.length && run.setups[0].started && date(run.setups[0].started)],
];

function head() {
  if (runs.length === 1) return single(runs[0]);
  return comparison();
}

function single(run) {
  const tiles = FACTS_ALONE.map(([key, title, of, below]) => [key, title, of(run), below && below(run)]).filter(([, , text]) => text);
  const facts = SETUP.map(([key, title, of]) => [key, title, of(run)]).filter(([, , text]) => text);
  if (!tiles.length && !facts.length) return [];
  return el("div", { class: "card" },
    tiles.length ? el("div", { class: "tiles" }, tiles.map(([key, title, text, below]) => el("div", { "data-key": key }, el("span", {}, term(key, title)), el("b", {}, text), below ? el("small", {}, below) : null))) : null,
    el("dl", { class: "setup" }, facts.map(([key, title, text]) => [el("dt", {}, term(key, title)), el("dd", {}, text)])));
}

// A row a run; what all runs share stands below the table once.
function comparison() {
  const texts = ([, , of]) => runs.map((run) => of(run) || "");
  const shared = SETUP.filter((fact) => runs.length > 1 && new Set(texts(fact)).size === 1 && texts(fact)[0]);
  const columns = [...SETUP, ...FACTS].filter((fact) => !shared.includes(fact) && texts(fact).some(Boolean));
  const isSetup = (fact) => SETUP.includes(fact);
  const row = (run) => el("tr", { "data-run": run.name, "data-fade": true, "data-key": run.name },
    el("td", { title: run.name }, swatch(run.color), run.name),
    columns.map((fact) => el("td", { "data-label": fact[1], class: isSetup(fact) ? "left wide" : null }, fact[2](run) || (fact === FACTS[0] ? "no step yet" : ""))));
  const titles = columns.map((fact) => el("th", { class: isSetup(fact) ? "left" : null }, term(fact[0], fact[1])));
  const table = el("table", { id: "runs" }, el("thead", {}, el("tr", {}, el("th", {}, "Run"), titles)), el("tbody", {}, runs.map(row)));
  return [
    el("div", { class: "card scroll" }, table),
    shared.length ? el("div", { class: "card shared" }, el("div", { class: "soft" }, "The same in all runs"),
      el("dl", { class: "setup" }, shared.map((fact) => [el("dt", {}, term(fact[0], fact[1])), el("dd", {}, texts(fact)[0])]))) : null,
  ];
}

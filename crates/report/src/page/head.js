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

// `2 kept, the last after step 600`: those that were saved before were deleted (checkpoint.keep).
function keptOf({ saved, checkpoints: names }) {
  if (!saved) return null;
  if (!names.length) return "none kept";
  const last = number(Number(names.at(-1).replace("step-", "")), 7);
  return `${number(names.length, 7)} kept, ${names.length > 1 ? "the last " : ""}after step ${last}`;
}

// What one looks for first.
const BIG = ["loss", "val_loss", "speed"];

// How low the loss is says little without where it began.
function fromFirst(run) {
  const first = run.series.loss && run.series.loss.value.find(known);
  return known(first) && run.step > 1 ? `from ${number(first)}` : null;
}

// Term, title, text; a second line below it. What does not compare is only told of a run alone.
const FACTS = [
  ["verdict", "Verdict", (run) => (run.verdict.state === "waiting" ? null : run.verdict.title)],
  ["steps", "Steps", reached],
  ["tokens", "Tokens", (run) => known(run.tokens) && short(run.tokens)],
  ["time", "Time", (run) => known(run.seconds) && duration(run.seconds)],
  ["loss", "Loss", (run) => known(run.loss) && number(run.loss), fromFirst],
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
  ["checkpoints", "Checkpoints", ({ saved }) => saved && `${number(saved, 7)} saved`, keptOf],
];

// `4 ranks, from step 121 on 2`: what changed from one process of the run to the next.
function overTime(run, of, again = of) {
  return changes(run, of, (setup) => `from step ${setup.step + 1} on ${again(setup)}`, (n) => `${n} changes`).join(", ");
}

function changes(run, of, again, others) {
  const parts = [];
  for (const setup of run.setups) {
    const value = of(setup);
    if (value && value !== (parts.at(-1) || {}).value) parts.push({ value, text: parts.length ? again(setup) : value });
  }
  const texts = parts.map(({ text }) => text);
  return texts.length > 5 ? [texts[0], others(texts.length - 3), ...texts.slice(-2)] : texts;
}

// A line each, with comments that a shell passes over.
const commandOf = (run) => changes(run, ({ command }) => command, ({ step, command }) => `# from step ${step + 1} on\n${command}`, (n) => `# ${n} others`).join("\n");

function dataOf(setup) {
  const tokens = [["to train on", setup.train_tokens], ["to validate on", setup.val_tokens]].filter(([, n]) => n);
  return [setup.data, ...tokens.map(([what, n], i) => `${short(n)}${i ? "" : " tokens"} ${what}`)].filter(Boolean).join(", ");
}

function batchOf({ global_batch_size: rows, seq_len: length, micro_batch_size: micro }) {
  if (!rows || !length) return null;
  return `${count(rows, "sequence")} of ${count(length, "token")}: ${count(rows * length, "token")} per step${micro ? `, in micro-batches of ${micro}` : ""}`;
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
  [null, "Version", (run) => overTime(run, ({ version }) => version && `Kiln ${version}`)],
  [null, "Started", (run) => run.setups.length && run.setups[0].started && date(run.setups[0].started)],
];

function head() {
  if (runs.length === 1) return single(runs[0]);
  return comparison();
}

const verdictDot = ({ verdict }) => el("i", { class: `dot ${verdict.kind}` });

// The headline: how the run does, and the numbers that say so.
function headline(run) {
  if (run.verdict.state === "waiting") return null;
  return el("div", { class: `verdict ${run.verdict.kind}`, "data-key": "verdict" }, el("b", {}, verdictDot(run), term("verdict", run.verdict.title)), el("span", {}, run.verdict.why));
}

function tile([key, title, text, below]) {
  return el("div", { "data-key": key }, el("span", {}, term(key, title)), el("b", {}, text), below ? el("small", {}, below) : null);
}

function single(run) {
  const tiles = FACTS_ALONE.slice(1).map(([key, title, of, below]) => [key, title, of(run), below && below(run)]).filter(([, , text]) => text);
  const facts = SETUP.map(([key, title, of]) => [key, title, of(run)]).filter(([, , text]) => text);
  const command = commandOf(run);
  if (!tiles.length && !facts.length) return [];
  const isBig = ([key]) => BIG.includes(key);
  const [big, small] = [tiles.filter(isBig), tiles.filter((each) => !isBig(each))];
  return el("div", { class: "card" }, headline(run),
    big.length ? el("div", { class: "tiles big" }, big.map(tile)) : null,
    small.length ? el("div", { class: "tiles" }, small.map(tile)) : null,
    el("dl", { class: "setup" }, facts.map(([key, title, text]) => [el("dt", {}, term(key, title)), el("dd", {}, text)]),
      command ? [el("dt", {}, "Command"), el("dd", { class: "wide" }, el("code", {}, command))] : null));
}

// A row a run; what all runs share stands below the table once.
function comparison() {
  const texts = ([, , of]) => runs.map((run) => of(run) || "");
  const shared = SETUP.filter((fact) => runs.length > 1 && new Set(texts(fact)).size === 1 && texts(fact)[0]);
  const isSetup = (fact) => SETUP.includes(fact);
  const isVerdict = ([key]) => key === "verdict";
  const columns = [FACTS[0], ...SETUP, ...FACTS.slice(1)].filter((fact) => !shared.includes(fact) && (isVerdict(fact) || texts(fact).some(Boolean)));
  const cell = (run, fact) => {
    const text = fact[2](run) || (isVerdict(fact) ? "no step yet" : "");
    return isVerdict(fact) && fact[2](run) ? [verdictDot(run), text] : text;
  };
  const row = (run) => el("tr", { "data-run": run.name, "data-fade": true, "data-key": run.name },
    el("td", { title: run.name }, swatch(run.color), run.name),
    columns.map((fact) => el("td", { "data-label": fact[1], class: isSetup(fact) ? "left wide" : isVerdict(fact) ? "left" : null }, cell(run, fact))));
  const titles = columns.map((fact) => el("th", { class: isSetup(fact) || isVerdict(fact) ? "left" : null }, term(fact[0], fact[1])));
  const table = el("table", { id: "runs" }, el("thead", {}, el("tr", {}, el("th", {}, "Run"), titles)), el("tbody", {}, runs.map(row)));
  return [
    el("div", { class: "card scroll" }, table),
    shared.length ? el("div", { class: "card shared" }, el("div", { class: "soft" }, "The same in all runs"),
      el("dl", { class: "setup" }, shared.map((fact) => [el("dt", {}, term(fact[0], fact[1])), el("dd", {}, texts(fact)[0])]))) : null,
  ];
}

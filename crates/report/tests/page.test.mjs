// The parts of the page's script that need no browser: `node --test crates/report/tests/`.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const script = (name) => readFileSync(new URL(`../src/page/${name}.js`, import.meta.url), "utf8");
const names = ["niceTicks", "wholeTicks", "timeTicks", "logTicks", "percent", "duration", "flops", "overTime", "dataOf", "batchOf", "bitsPerByte", "FACTS_ALONE", "tabTitle", "course", "commandOf"];
const page = new Function(`${["format", "ticks", "head", "status"].map(script).join("\n")}\nreturn { ${names} };`)();

// The same numbers in every run.
let seed = 1;
function random() {
  seed = (seed * 48271) % 2147483647;
  return seed / 2147483647;
}

function holds(ticks, low, high) {
  const room = (high - low) * 1e-6;
  assert.ok(ticks.length >= 3 && ticks.length <= 40, `${ticks.length} ticks from ${low} to ${high}`);
  ticks.forEach((tick, i) => assert.ok(tick >= low - room && tick <= high + room && (i === 0 || tick > ticks[i - 1]), `${ticks} from ${low} to ${high}`));
}

test("every axis has three ticks or more, all inside", () => {
  for (let i = 0; i < 20000; i += 1) {
    const low = (random() - 0.3) * 10 ** (random() * 12 - 6);
    const wide = 10 ** (random() * 12 - 6);
    const count = 3 + Math.floor(random() * 12);
    holds(page.niceTicks(low, low + wide, count), low, low + wide);
    const from = Math.abs(low);
    holds(page.wholeTicks(from, from + 3 + wide, count), from, from + 3 + wide);
    holds(page.timeTicks(from, from + wide, count), from, from + wide);
    const [bottom, factor] = [10 ** (random() * 16 - 10), 1.05 + 10 ** (random() * 14 - 2)];
    holds(page.logTicks(bottom, bottom * factor), bottom, bottom * factor);
  }
});

test("steps have whole ticks", () => {
  assert.deepEqual(page.wholeTicks(9.7, 12.7, 8), [10, 11, 12]);
});

test("numbers have no more digits than they deserve", () => {
  assert.deepEqual([0, 0.000123, 0.0123, 0.4567, 12.345, 99.96].map(page.percent), ["0%", "<0.01%", "0.012%", "0.46%", "12.3%", "100%"]);
  assert.deepEqual([0, 3e-6, 0.1076, 59.96, 119.6, 3600, 90000].map(page.duration), ["0 s", "<1 ms", "108 ms", "1 min", "2 min", "1 h", "1 d 1 h"]);
  assert.deepEqual([0, 1.19e11].map(page.flops), ["0", "119 G"]);
});

test("what changed from process to process is told with its step", () => {
  const setups = [{ step: 0, ranks: 4, data: "a" }, { step: 100, ranks: 4, data: "b" }, { step: 120, ranks: 2, data: "b" }];
  assert.equal(page.overTime({ setups }, ({ ranks }) => `${ranks} ranks`, ({ ranks }) => ranks), "4 ranks, from step 121 on 2");
  assert.equal(page.overTime({ setups }, page.dataOf), "a, from step 101 on b");
  assert.equal(page.overTime({ setups: [] }, page.dataOf), "");
  const commands = [{ step: 0, command: "train --steps 9" }, { step: 9, command: "train --resume auto" }];
  assert.equal(page.commandOf({ setups: commands }), "train --steps 9\n# from step 10 on\ntrain --resume auto");
});

test("checkpoints are told as saved and kept", () => {
  const [, , saved, kept] = page.FACTS_ALONE.find(([key]) => key === "checkpoints");
  const told = (run) => [saved(run), kept(run)];
  assert.deepEqual(told({ saved: 9, checkpoints: ["step-500", "step-600"] }), ["9 saved", "2 kept, the last after step 600"]);
  assert.deepEqual(told({ saved: 1, checkpoints: ["step-3"] }), ["1 saved", "1 kept, after step 3"]);
  assert.deepEqual(told({ saved: 2, checkpoints: [] }), ["2 saved", "none kept"]);
  assert.deepEqual(told({ saved: 0, checkpoints: [] }), [0, null]);
});

test("the head tells batch, bits per byte and nothing that is zero or not known", () => {
  assert.equal(page.batchOf({ global_batch_size: 32, seq_len: 128, micro_batch_size: 8 }), "32 sequences of 128 tokens: 4,096 tokens per step, in micro-batches of 8");
  const run = { step: 2, steps: 2, best_val: [2, Math.log(4)], val_loss: Math.log(4), setups: [{ bytes_per_token: 4 }], saved: 0, checkpoints: [], saving: 0, skipped: 0, tokens: null, series: {}, verdict: { state: "finished", title: "Healthy" } };
  const told = page.FACTS_ALONE.map(([, title, of]) => [title, of(run)]).filter(([, text]) => text);
  assert.deepEqual(told, [["Verdict", "Healthy"], ["Steps", "2"], ["Best val. loss", "1.386"], ["Perplexity", "4"], ["Bits per byte", "0.5"]]);
  assert.equal(page.bitsPerByte({ ...run, setups: [{ bytes_per_token: null }] }), null);
});

test("a tab tells how far its run is", () => {
  const run = { step: 63, steps: 100, loss: 1.8712, seconds: 126 };
  assert.equal(page.tabTitle([run], "name"), "63% · loss 1.87 · name");
  assert.equal(page.tabTitle([{ ...run, step: 999, steps: 1000, loss: null }], "name"), "99% · name");
  assert.equal(page.tabTitle([{ ...run, steps: null }], "name"), "loss 1.87 · name");
  assert.equal(page.tabTitle([run, { ...run, step: 100 }], "a, b"), "81% · a, b");
  assert.equal(page.tabTitle([run, { ...run, step: null }], "a, b"), "a, b");
  assert.equal(page.tabTitle([], "none"), "none");
  assert.equal(page.course(run), "step 63 of 100, about 1 min 20 s left");
});

// Where the ticks of an axis are, at least three of them, and what stands at each.

function multiples(low, high, step) {
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) ticks.push(i * step);
  return ticks;
}

// Of the lists with three ticks or more the one whose length is nearest to `count`.
function chosen(lists, count) {
  const distance = (ticks) => Math.abs(ticks.length - count);
  return lists.filter((ticks) => ticks.length >= 3).sort((a, b) => distance(a) - distance(b))[0];
}

// Multiples of 1, 2 or 5 times a power of ten; `least`: the smallest step.
function niceTicks(low, high, count, least = 0) {
  const power = Math.floor(Math.log10((high - low) / count));
  const steps = [power - 1, power, power + 1].flatMap((p) => [1, 2, 5].map((n) => n * 10 ** p));
  return chosen(steps.filter((step) => step >= least).map((step) => multiples(low, high, step)), count) || [low, (low + high) / 2, high];
}

const wholeTicks = (low, high, count) => niceTicks(low, high, count, 1);

// Wall time has whole seconds, minutes, hours or days.
function timeTicks(low, high, count) {
  const units = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 432000, 864000];
  const lists = units.filter((unit) => (high - low) / unit < 50).map((unit) => multiples(low, high, unit));
  return chosen(lists, count) || niceTicks(low, high, count);
}

// Powers of ten, where these are few also 2 and 5 times these; of a narrow range any round numbers.
function logTicks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const powers = Array.from({ length: last - first + 1 }, (_, i) => first + i);
  const every = (n) => powers.filter((power) => power % n === 0).map((power) => 10 ** power);
  const lists = [powers.flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power)), ...[1, 2, 3, 5, 10].map(every)];
  return chosen(lists.map((ticks) => ticks.filter((t) => t >= low && t <= high)), 5) || niceTicks(low, high, 4);
}

// How far the nearest tick is, or zero.
function spacing(ticks, tick) {
  return Math.min(...[0, ...ticks].filter((other) => other !== tick).map((other) => Math.abs(other - tick)));
}

// As many digits as tell a tick apart from its neighbours, `step` away.
function plainTick(value, step) {
  if (value === 0) return "0";
  const decimals = known(step) ? Math.max(0, -Math.floor(Math.log10(step) + 1e-6)) : 3;
  return decimals > 5 || Math.abs(value) >= 1e6 ? number(value, 3) : value.toFixed(decimals);
}

function shortTick(value, step) {
  if (Math.abs(value) < 1e4) return plainTick(value, step);
  return short(value, "", known(step) ? Math.max(3, Math.ceil(Math.log10(Math.abs(value) / step)) + 1) : 3);
}

const percentTick = (value, step) => `${plainTick(value, step)}%`;
const durationTick = (value) => (value ? duration(value) : "0");

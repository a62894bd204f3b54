// Numbers as text, with no more digits than they deserve.

const known = (value) => typeof value === "number" && Number.isFinite(value);

// Some significant digits, without an exponent where that is short.
function number(value, digits = 4) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return Number(value.toPrecision(Math.min(digits, 3))).toExponential();
  return Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))).toLocaleString("en", { maximumFractionDigits: 6 });
}

const plain = (value) => number(value, 3);
const two = (value) => value.toFixed(2);

// 1234 -> 1.23K; `unit` follows the prefix.
function short(value, unit = "", digits = 3) {
  if (!known(value)) return "–";
  const prefixes = ["", "K", "M", unit ? "G" : "B", "T", "P", "E"];
  let power = 0;
  while (Math.abs(value) >= 999.5 && power + 1 < prefixes.length) {
    value /= 1000;
    power += 1;
  }
  const text = String(Number(value.toPrecision(digits)));
  return unit ? `${text} ${prefixes[power]}${unit}` : text + prefixes[power];
}

const bytes = (value) => short(value, "B");

// 1.19e11 -> `119 G`, of FLOP/s.
const flops = (value) => (value ? short(value, "F").slice(0, -1) : "0");

function percent(value) {
  if (!known(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.01) return value > 0 ? "<0.01%" : ">−0.01%";
  return `${Number(value.toPrecision(Math.abs(value) < 1 ? 2 : 3))}%`;
}

const share = (value) => percent(value * 100);

function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return "<1 ms";
  if (seconds < 1) return `${number(seconds * 1000, 3)} ms`;
  if (seconds < 59.95) return `${number(seconds, 3)} s`;
  const rounded = Math.round(seconds);
  const [days, hours, minutes] = [rounded / 86400, (rounded / 3600) % 24, (rounded / 60) % 60].map(Math.floor);
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  const rest = rounded % 60;
  return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
}

// In the reader's own time zone.
function date(text) {
  const when = new Date(text);
  return Number.isNaN(when.getTime()) ? text : when.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

// The first index whose element is not below the value.
function lowerBound(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearest(sorted, value) {
  const index = lowerBound(sorted, value);
  if (index === 0) return 0;
  if (index === sorted.length || value - sorted[index - 1] < sorted[index] - value) return index - 1;
  return index;
}

// Elements and numbers. Text always becomes a text node: what comes from files is never read as HTML.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function swatch(color) {
  const node = el("span", { class: "swatch" });
  node.style.background = color;
  return node;
}

const known = (value) => typeof value === "number" && Number.isFinite(value);

// Some significant digits, without an exponent where that is short.
function number(value, digits = 4) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return Number(value.toPrecision(Math.min(digits, 3))).toExponential();
  return Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))).toLocaleString("en", { maximumFractionDigits: 6 });
}

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

// Ticks have as many digits as tell them apart from their neighbours, `step` away.
function plainTick(value, step) {
  if (value === 0) return "0";
  const decimals = known(step) ? Math.max(0, -Math.floor(Math.log10(step) + 1e-6)) : 3;
  return decimals > 5 || Math.abs(value) >= 1e6 ? number(value, 3) : value.toFixed(decimals);
}

function shortTick(value, step) {
  if (Math.abs(value) < 1e4) return plainTick(value, step);
  return short(value, "", known(step) ? Math.max(3, Math.ceil(Math.log10(Math.abs(value) / step)) + 1) : 3);
}

const bytes = (value) => short(value, "B");
const percent = (value) => (known(value) ? `${number(value, 3)}%` : "–");

function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 1) return `${number(seconds * 1000, 3)} ms`;
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  const rest = Math.floor(seconds % 60);
  return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
}

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

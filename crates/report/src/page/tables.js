// The parts of the page that are no plots: memory, communication, configuration, notes.

const nameOf = (run) => (runs.length > 1 ? [swatch(run.color), run.name] : null);

function memory() {
  const used = (run) => run.memory.filter(([, rest, peak]) => rest > 0 || peak > 0);
  const shown = runs.filter((run) => used(run).length);
  if (!shown.length) return [];
  const names = [...new Set(shown.flatMap((run) => used(run).map(([name]) => name)))].sort();
  const sum = (run, column) => used(run).reduce((total, entry) => total + (entry[column] || 0), 0);
  const most = Math.max(...shown.map((run) => sum(run, 2)), 1);
  const color = (name) => `var(--m${names.indexOf(name) % 8})`;
  const stack = (run, column) => el("div", { class: "bars" }, used(run).filter((entry) => entry[column]).map((entry) =>
    el("i", { title: `${entry[0]}: ${bytes(entry[column])}`, style: `width:${(entry[column] / most) * 100}%;background:${color(entry[0])}` })));
  const line = (run, title, column) => (sum(run, column) ? [el("span", {}, title), stack(run, column), el("span", { class: "total" }, bytes(sum(run, column)))] : []);
  const block = (run) => el("div", { "data-run": run.name, "data-key": run.name }, runs.length > 1 ? el("h4", {}, nameOf(run)) : null,
    el("div", { class: "stack" }, line(run, "at most", 2), line(run, "at rest", 1)),
    run.device && run.device.some((size) => size > 0) ? el("p", { class: "soft" }, `The device: ${bytes(run.device[0])} in use, ${bytes(run.device[1])} reserved.`) : null);
  const peakOf = (name) => (shown.length === 1 ? ` ${bytes(used(shown[0]).find((entry) => entry[0] === name)[2])}` : "");
  return [el("div", { class: "card" }, shown.map(block), el("div", { class: "keys" }, names.map((name) => el("span", {}, swatch(color(name)), name, peakOf(name)))),
    el("p", { class: "soft" }, "Categories have their highest values at different times, so that all together are less than the bar “at most”."))];
}

function layouts() {
  const groups = (run) => (run.setups.at(-1) || {}).layout || [];
  const shown = runs.filter((run) => groups(run).length);
  if (!shown.length) return [];
  const row = (run) => groups(run).map((group) => {
    const received = Object.entries(group.received).map(([name, size]) => `${name} ${bytes(size)}`).join(", ");
    return el("tr", { "data-run": run.name, "data-key": `${run.name}/${group.over}` }, runs.length > 1 ? el("td", {}, nameOf(run)) : null,
      el("td", { class: "left" }, group.over), el("td", {}, group.ranks), el("td", {}, group.at_rest ? bytes(group.at_rest) : "–"), el("td", { class: "left wrap" }, received));
  });
  const titles = [...(runs.length > 1 ? ["Run"] : []), "Process group", "Ranks", "Resident per rank", "Received per step"];
  const head = titles.map((title) => el("th", { class: title === "Process group" || title === "Received per step" ? "left" : null }, title));
  return [el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, shown.map(row))))];
}

function communication() {
  const used = (run) => run.traffic.filter(([, , size]) => size > 0);
  const shown = runs.filter((run) => used(run).length);
  if (!shown.length) return [];
  const row = (run) => used(run).map(([name, calls, size, seconds]) => {
    const cells = [number(calls, 6), bytes(size), duration(seconds), seconds > 0 ? short(size / seconds, "B/s") : "–"];
    return el("tr", { "data-run": run.name, "data-key": `${run.name}/${name}` }, runs.length > 1 ? el("td", {}, nameOf(run)) : null, el("td", { class: "left" }, name), cells.map((cell) => el("td", {}, cell)));
  });
  const titles = [...(runs.length > 1 ? ["Run"] : []), "Collective", "Calls", "Received", "Time", "Rate"];
  const head = titles.map((title) => el("th", { class: title === "Collective" ? "left" : null }, title));
  return [el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, shown.map(row))))];
}

function planned() {
  const shown = runs.filter((run) => run.planned.length);
  if (!shown.length) return [];
  const shows = { seconds: duration, rate: (value) => short(value, "/s"), part: share, bytes };
  const difference = ({ planned, measured }) => (measured > 0 ? ((percent) => `${percent > 0 ? "+" : ""}${percent}%`)(Math.round(100 * (planned / measured - 1)) || 0) : "–");
  const row = (run) => run.planned.map((figure) => {
    const cells = [shows[figure.unit](figure.planned), shows[figure.unit](figure.measured), difference(figure)];
    return el("tr", { "data-run": run.name, "data-key": `${run.name}/${figure.name}` }, runs.length > 1 ? el("td", {}, nameOf(run)) : null, el("td", { class: "left" }, figure.name), cells.map((cell) => el("td", {}, cell)));
  });
  const titles = [...(runs.length > 1 ? ["Run"] : []), "Figure", "Planned", "Measured", "Difference"];
  const head = titles.map((title) => el("th", { class: title === "Figure" ? "left" : null }, title));
  return [el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, shown.map(row))))];
}

function configuration() {
  const shown = runs.filter((run) => run.config.length);
  if (!shown.length) return [];
  const maps = shown.map((run) => new Map(run.config));
  const keys = [...new Set(shown.flatMap((run) => run.config.map(([key]) => key)))];
  const differs = (key) => new Set(maps.map((map) => map.get(key))).size > 1;
  const common = keys.filter((key) => maps.every((map) => map.has(key)));
  const differing = common.filter(differs);
  const partial = keys.filter((key) => !common.includes(key));
  const titles = shown.length > 1 ? el("thead", {}, el("tr", {}, el("th", {}, "Key"), shown.map((run) => el("th", {}, nameOf(run) || run.name)))) : null;
  const row = (key, mark) => el("tr", { class: mark && differs(key) ? "differs" : null }, el("td", {}, key), maps.map((map) => el("td", {}, map.get(key) ?? "")));
  const table = (rows, mark) => el("div", { class: "card scroll" }, el("table", { class: "config" }, titles && titles.cloneNode(true), el("tbody", {}, rows.map((key) => row(key, mark)))));
  const folded = (key, title, rows, mark) => el("details", { "data-key": key }, el("summary", {}, title), table(rows, mark));
  const commands = runs.length > 1 ? runs.map((run) => [run, commandOf(run)]).filter(([, command]) => command) : [];
  const commandRows = commands.map(([run, command]) => [el("dt", {}, nameOf(run)), el("dd", {}, el("code", {}, command))]);
  return [
    commands.length ? el("details", { "data-key": "commands" }, el("summary", {}, "Commands"), el("div", { class: "card" }, el("dl", { class: "setup one" }, commandRows))) : null,
    shown.length > 1 ? el("p", { class: "soft" }, differing.length ? `${differing.length} of the ${count(common.length, "key")} that all runs have differ.` : "All keys that all runs have are the same.") : null,
    differing.length ? el("div", { "data-key": "differing" }, table(differing, false)) : null,
    partial.length ? folded("partial", `${count(partial.length, "key")} that not all of these models have`, partial, false) : null,
    folded("all", `All ${count(keys.length, "key")}`, keys, shown.length > 1),
  ];
}

function notes() {
  const all = [...leftOut, ...runs.flatMap((run) => run.notes.map((note) => (runs.length > 1 ? `${run.name}: ${note}` : note)))];
  return all.length ? [el("ul", { class: "notes" }, all.map((note) => el("li", {}, note)))] : [];
}

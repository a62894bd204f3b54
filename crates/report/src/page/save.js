// A plot as a file, and as a place to link to.

const HEAD = 40;
// What a picture needs of the page's style, which it leaves behind.
const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-weight", "text-anchor"];
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

const colorOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Colours of the page as they are now; a picture knows no variables.
const resolved = (color) => color.replace(/^var\((.*)\)$/, (_, name) => colorOf(name));

function styled(drawing) {
  const copy = drawing.cloneNode(true);
  const copies = copy.querySelectorAll("*");
  drawing.querySelectorAll("*").forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const look of LOOKS) copies[i].setAttribute(look, style.getPropertyValue(look));
    copies[i].removeAttribute("class");
  });
  return copy;
}

// The drawing with a title, the names of its lines, and a background. `lines`: name and colour of each.
function picture(drawing, title, lines) {
  forget();
  const { width, height } = drawing.viewBox.baseVal;
  const copy = styled(drawing);
  fill(copy, { x: 14, y: HEAD, width, height, "font-family": FONT }, []);
  const text = (x, content, weight, color) => svg("text", { x, y: 25, "font-family": FONT, "font-size": 14, "font-weight": weight, fill: color }, content);
  // Letters are about half as wide as they are high.
  let x = 18 + 8.6 * title.length + 20;
  const named = lines.map(([name, color]) => {
    const at = x;
    x += 8 * name.length + 34;
    return x < width ? [svg("rect", { x: at, y: 15, width: 11, height: 11, rx: 3, fill: resolved(color) }), text(at + 17, name, 400, colorOf("--text"))] : null;
  });
  const all = { width: width + 28, height: height + HEAD + 12 };
  return svg("svg", { ...all, viewBox: `0 0 ${all.width} ${all.height}` },
    svg("rect", { ...all, fill: colorOf("--card") }), text(18, title, 600, colorOf("--text")), named.flat(), copy);
}

const asUrl = (node) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(node))}`;

function download(url, name, ending) {
  const plain = name.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 100);
  el("a", { href: url, download: `${plain}.${ending}` }).click();
}

function downloadPng(node, name) {
  const image = new Image();
  image.onload = () => {
    const scale = 2;
    const canvas = el("canvas", { width: node.width.baseVal.value * scale, height: node.height.baseVal.value * scale });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    download(canvas.toDataURL("image/png"), name, "png");
  };
  image.src = asUrl(node);
}

// Beside a drawing's title: a link to it, and buttons that save it.
function tools(id, title, drawing, lines) {
  const name = () => `${runs.length === 1 ? runs[0].name : "runs"}-${id}`;
  const save = (how) => () => how(picture(drawing, title, lines()), name());
  return el("span", { class: "tools" },
    el("a", { href: `#${encodeURIComponent(id)}`, title: "Link to this drawing", "aria-label": `Link to ${title}` }, "#"),
    el("button", { type: "button", title: "Save as SVG", onclick: save((node, file) => download(asUrl(node), file, "svg")) }, "SVG"),
    el("button", { type: "button", title: "Save as PNG", onclick: save(downloadPng) }, "PNG"));
}

// Where the address names a part of the page, which was not there yet when the browser looked for it.
function showLinked() {
  const linked = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
  if (linked) linked.scrollIntoView();
}

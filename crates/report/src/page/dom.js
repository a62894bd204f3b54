// Elements. Text always becomes a text node: what comes from files is never read as HTML.

// The page's policy allows no style in an attribute, but a script may set it.
function assign(node, name, value) {
  if (name === "style") node.style.cssText = value;
  else node.setAttribute(name, value);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) assign(node, name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function swatch(color) {
  return el("span", { class: "swatch", style: `background:${color}` });
}

const byId = (id) => document.getElementById(id);

// Makes an element's children those that were made anew, and leaves alone what is alike: focus, scrolling, folded parts and drawings
// (`data-drawn`) stay. Siblings are told apart by `data-key`, else by their place and kind.
function renew(parent, ...fresh) {
  const keyed = new Map([...parent.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  const nodes = fill(document.createDocumentFragment(), null, fresh).childNodes;
  let at = parent.firstChild;
  for (const node of [...nodes]) {
    const key = node.dataset && node.dataset.key;
    const alike = at && at.nodeName === node.nodeName && !(at.dataset && at.dataset.key) ? at : null;
    const same = key ? keyed.get(key) : alike;
    if (!same) {
      parent.insertBefore(node, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else parent.insertBefore(same, at);
    renewOne(same, node);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function renewOne(node, fresh) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.data !== fresh.data) node.data = fresh.data;
    return;
  }
  const drawn = node.dataset.drawn !== undefined;
  for (const { name } of [...node.attributes]) if (!fresh.hasAttribute(name) && name !== "open" && !drawn) node.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (node.getAttribute(name) !== value) assign(node, name, value);
  if (!drawn) renew(node, [...fresh.childNodes]);
}

// Elements are made here and nowhere else. Text is always textContent, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = String(value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

export function refill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null));
}

let numbered = 0;

export function freshId(prefix) {
  numbered += 1;
  return `${prefix}-${numbered}`;
}

// A labelled control: {box, control}.
export function field(label, control, hint = "") {
  const id = control.id || freshId("field");
  control.id = id;
  const told = hint ? make("p", { class: "hint", id: `${id}-hint`, text: hint }) : null;
  if (told) control.setAttribute("aria-describedby", told.id);
  return { box: make("div", {}, make("label", { for: id, text: label }), control, told), control };
}

export function select(options, chosen = null) {
  const control = make("select");
  for (const [value, text] of options) {
    control.append(make("option", { value, text, selected: value === chosen }));
  }
  return control;
}

export function table(caption, headings, rows, numeric = []) {
  const kind = (at) => (numeric[at] ? "number" : null);
  const head = make("tr", {}, headings.map((text, at) =>
    make("th", { scope: "col", class: kind(at), text })));
  const body = rows.map((row) => make("tr", {}, row.map((cell, at) => {
    const inside = make("td", { class: kind(at) });
    inside.append(cell instanceof Node ? cell : String(cell));
    return inside;
  })));
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", { text: caption }), make("thead", {}, head),
      make("tbody", {}, body)));
}

// A file that is made in the browser and given to the person at it.
export function saveFile(name, text) {
  const blob = new Blob([text], { type: "application/json" });
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

let status = null;

// One sentence for everybody, also for those who hear the page.
export function say(text, bad = false) {
  status = status || byId("status");
  status.className = bad ? "status bad" : "status";
  status.textContent = text;
}

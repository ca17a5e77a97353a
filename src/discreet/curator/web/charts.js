// Pictures as SVG. Every picture has a text of its own for those who cannot see it.

import { draw, make } from "./dom.js";
import { short } from "./numbers.js";

// Drawn at the width of the screen, so that letters have the size of other text.
const width = () => Math.min(640, Math.max(300, document.documentElement.clientWidth - 70));

function picture(wide, height, label, caption, ...marks) {
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": label },
    ...marks);
  return make("figure", { class: "picture" }, svg, make("figcaption", { text: caption }));
}

// Round numbers that cover a range.
export function ticks(low, high, wanted = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const marks = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-12) + step * 1e-9; at += 1) {
    marks.push(at * step);
  }
  return marks;
}

export function gauge(used, wanted, label) {
  const spent = Math.min(1, Math.max(0, used));
  const more = Math.min(1 - spent, Math.max(0, wanted));
  return draw("svg", { viewBox: "0 0 300 18", role: "img", "aria-label": label },
    draw("rect", { class: "track", x: 0, y: 0, width: 300, height: 18 }),
    draw("rect", { class: spent > 0.9 ? "spent low" : "spent", x: 0, y: 0,
      width: 300 * spent, height: 18 }),
    draw("rect", { class: "wanted", x: 300 * spent, y: 0, width: 300 * more, height: 18 }));
}

// cells: [{label, value, low, high}]; one line for each, with its error bar.
export function errorBars(cells, caption) {
  const wide = width();
  const shown = cells.slice(0, 60);
  const numbers = shown.flatMap((cell) => [cell.low, cell.high, cell.value])
    .filter((value) => Number.isFinite(value));
  if (!numbers.length) return null;
  const bars = shown.length > 1;
  let low = Math.min(...numbers, ...(bars ? [0] : []));
  let high = Math.max(...numbers, ...(bars ? [0] : []));
  if (!(high > low)) { low -= 1; high += 1; }
  const room = 0.04 * (high - low);
  if (!bars || low < 0) low -= room;
  high += room;
  const longest = Math.max(...shown.map((cell) => cell.label.length));
  const left = Math.min(wide / 2, Math.max(24, 8 * Math.min(longest, 26) + 18));
  const line = 26;
  const height = shown.length * line + 40;
  const x = (value) => left + ((value - low) / (high - low)) * (wide - left - 16);
  const marks = ticks(low, high, wide < 450 ? 3 : 5).map((value) => [
    draw("line", { class: "grid", x1: x(value), x2: x(value), y1: 4, y2: height - 30 }),
    draw("text", { x: x(value), y: height - 12, "text-anchor": "middle", text: short(value) }),
  ]).flat();
  shown.forEach((cell, at) => {
    const y = at * line + 18;
    const name = cell.label.length > 26 ? `${cell.label.slice(0, 25)}…` : cell.label;
    marks.push(draw("text", { x: left - 8, y: y + 4, "text-anchor": "end", text: name }));
    if (!Number.isFinite(cell.value)) return;
    if (bars) {
      const from = Math.min(x(0), x(cell.value));
      marks.push(draw("rect", { class: "bar-mark", x: from, y: y - 8,
        width: Math.abs(x(cell.value) - x(0)), height: 16 }));
    }
    if (Number.isFinite(cell.low) && Number.isFinite(cell.high)) {
      marks.push(draw("path", { class: "error",
        d: `M${x(cell.low)} ${y - 6}v12M${x(cell.low)} ${y}H${x(cell.high)}M${x(cell.high)} ${y - 6}v12` }));
    }
    marks.push(draw("circle", { class: "dot", cx: x(cell.value), cy: y, r: 4.5 }));
  });
  const told = shown.map((cell) => `${cell.label}: ${short(cell.value)}`).join("; ").slice(0, 1500);
  return picture(wide, height, `${caption} ${told}`, caption, ...marks);
}

// points: [{at, used}], the oldest first.
export function historyLine(points, caption) {
  const wide = width();
  const height = 190;
  const left = 48;
  const x = (at) => left + (at / Math.max(1, points.length)) * (wide - left - 16);
  const y = (share) => 10 + (1 - share) * (height - 50);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => [
    draw("line", { class: "grid", x1: left, x2: wide - 16, y1: y(share), y2: y(share) }),
    draw("text", { x: left - 8, y: y(share) + 4, "text-anchor": "end", text: `${100 * share} %` }),
  ]).flat();
  let path = `M${x(0)} ${y(points.length ? points[0].before : 0)}`;
  points.forEach((point, at) => {
    path += `H${x(at + 0.5)}V${y(Math.min(1, point.used))}`;
  });
  path += `H${x(points.length)}`;
  marks.push(draw("path", { class: "line", d: path }));
  marks.push(draw("text", { x: left, y: height - 12, text: "first charge shown" }));
  marks.push(draw("text", { x: wide - 16, y: height - 12, "text-anchor": "end", text: "now" }));
  return picture(wide, height, caption, caption, ...marks);
}

// Answers: the value, a picture with error bars, a table, and the receipt to download.

import { errorBars } from "./charts.js";
import { receiptButton } from "./budget.js";
import { byId, make, saveFile, table } from "./dom.js";
import { down, short, up } from "./numbers.js";

const NAMES = {
  count: "Count of rows", count_persons: "Count of persons", sum: "Sum", mean: "Mean", variance: "Variance", histogram: "Histogram",
  quantile: "Quantile", group_by: "Groups", top_k: "Most frequent values",
  threshold_stream: "Threshold stream", workload: "Workload",
};

function plain(value) {
  if (typeof value === "number") return short(value, 7);
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (value && typeof value === "object") {
    return Object.entries(value).map(([name, inner]) => `${name}: ${plain(inner)}`).join(", ");
  }
  return value === null ? "no answer" : String(value);
}

// Error bars of these kinds are about ranks or counts, not about the value itself.
const OTHERWISE = ["quantile", "top_k", "threshold_stream"];

// [{label, value, low, high}] where the answer is numbers with bars of their own, else null.
export function cellsOf(answer) {
  if (OTHERWISE.includes(answer.query.kind)) return null;
  const bars = answer.errors;
  const values = Array.isArray(answer.value) ? answer.value : [answer.value];
  if (values.length !== bars.length) return null;
  const numbers = values.map((value) => {
    if (typeof value === "number") return value;
    const inner = value && typeof value === "object" ? value.value : null;
    return typeof inner === "number" ? inner : null;
  });
  if (numbers.some((value) => value === null)) return null;
  return numbers.map((value, at) => ({
    label: bars[at].label.replace("from None to", "below").replace(/from (.*) to None/, "$1 and above"),
    value,
    low: bars[at].low ?? NaN, high: bars[at].high ?? NaN,
  }));
}

function restrictions(query) {
  const parts = [];
  if (query.of) parts.push(`of ${query.of.name || "an expression"}`);
  if (query.by) {
    const by = Array.isArray(query.by) ? query.by : [query.by];
    parts.push(`by ${by.map((one) => one.name || "an expression").join(" and ")}`);
  }
  if (query.where) parts.push("with conditions");
  return parts.join(" ");
}

// text: the answer as it came, for the file to keep.
export function showAnswer(text) {
  const answer = JSON.parse(text);
  const name = NAMES[answer.query.kind] || answer.query.kind;
  const title = `${name} ${restrictions(answer.query)}`.trim();
  const confidence = answer.errors.length ? Math.round(1000 * answer.errors[0].confidence) / 10 : 0;
  const cells = cellsOf(answer);
  const single = cells && cells.length === 1 ? cells[0] : null;
  const range = single && Number.isFinite(single.low)
    ? ` from ${down(single.low, 7)} to ${up(single.high, 7)} at ${confidence} %` : "";
  const rows = cells
    ? cells.map((cell) => [cell.label, short(cell.value, 7), down(cell.low, 7), up(cell.high, 7)])
    : null;
  const parts = [
    make("h3", { text: title, tabindex: "-1" }),
    single || !cells
      ? make("p", { class: "value" }, plain(answer.value),
        range ? make("small", { text: range }) : null)
      : null,
    make("p", { class: "about", text: `${answer.about[0].toUpperCase()}${answer.about.slice(1)}.` }),
    cells ? errorBars(cells, single
      ? `The answer and its error bar at ${confidence} %.`
      : `Answers and error bars that hold together at ${confidence} %.`) : null,
    cells && !single
      ? table("The same as a table", ["Cell", "Value", "From", "To"], rows,
        [false, true, true, true])
      : null,
    cells ? null : table(`How far off, at ${confidence} %`, ["What", "From", "To"],
      answer.errors.map((bar) => [bar.label, down(bar.low, 7), up(bar.high, 7)]),
      [false, true, true]),
    make("p", { class: "hint", text: answer.answered_before
      ? "This was asked before: the same answer, at no cost."
      : `It cost epsilon ${answer.query.epsilon}${answer.query.delta
        ? ` and delta ${answer.query.delta}` : ""}; entry ${answer.receipt.entry.seq} of the ledger.` }),
    make("details", {}, make("summary", { text: "Query" }),
      make("code", { text: JSON.stringify(answer.query) })),
    make("button", { type: "button", class: "quiet", text: "Download answer and receipt",
      onclick: () =>
        saveFile(`answer-${answer.dataset}-${answer.receipt.entry.seq}.json`, text) }),
    answer.answered_before ? null
      : receiptButton(answer.dataset, answer.receipt.entry.seq, "Download the receipt"),
  ];
  const box = make("article", { class: "answer" }, parts);
  byId("answers").hidden = false;
  byId("answer-list").prepend(box);
  box.querySelector("h3").focus();
}

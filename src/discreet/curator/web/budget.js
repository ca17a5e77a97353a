// Budgets as gauges, columns and history.

import { at, send } from "./api.js";
import { gauge, historyLine } from "./charts.js";
import { byId, make, refill, saveFile, say, table } from "./dom.js";
import { budgetName, decimal, down, leftOf, short } from "./numbers.js";

// wanted: the epsilon that the question in the builder would spend.
export function showGauges(facts, wanted = 0) {
  refill(byId("gauges"), facts.budgets.map((budget) => {
    const share = wanted ? Math.min(1, wanted / decimal(budget.epsilon)) : 0;
    const used = Math.ceil(1000 * budget.used) / 10;
    const label = `${budgetName(budget.label)}: ${used} % used`;
    return make("div", { class: "gauge" },
      make("div", { class: "name", text: label }),
      gauge(budget.used, "basic" in budget.remaining ? share : 0, label),
      make("div", { class: "numbers", text:
        `Left: ${leftOf(budget)}. In all: epsilon ${down(budget.epsilon)}` +
        `${decimal(budget.delta) ? `, delta ${short(decimal(budget.delta))}` : ""}` +
        `; ${budget.charges} charge${budget.charges === 1 ? "" : "s"} so far.` }));
  }));
}

export function showColumns(facts) {
  const rows = Object.entries(facts.facts.columns).map(([name, column]) => {
    const range = column.bounds ? column.bounds.join(" to ")
      : (column.labels || []).join(", ").slice(0, 300);
    return [name, column.type, range];
  });
  refill(byId("columns"), table("What is publicly known", ["Column", "Type", "Values"], rows));
  const cap = facts.facts.rows_per_person;
  byId("dataset-facts").textContent = `Protects each ${facts.unit}` +
    `${cap ? `, at most ${cap} row${cap === 1 ? "" : "s"} each` : ""}.`;
}

function shareOf(sums, budget) {
  const shares = Object.entries(sums)
    .filter(([name]) => name !== "delta" && name in budget.spent)
    .map(([name, text]) => {
      const cap = decimal(budget.spent[name]) + decimal(budget.remaining[name]);
      return cap ? decimal(text) / cap : 1;
    });
  return shares.length ? Math.min(...shares) : 1;
}

export async function showHistory(facts) {
  const place = byId("history");
  const page = await send("GET", `${at(facts.name)}/history?limit=200`);
  if (!page.charges.length) {
    refill(place, make("p", { text: "No charges yet." }));
    return;
  }
  const own = facts.budgets.find((budget) => budget.label.startsWith("analyst:"));
  const budget = facts.budgets.length > 2 || !own ? facts.budgets[0] : own;
  const oldest = [...page.charges].reverse().filter((row) => budget.label in row.spent);
  let before = page.more ? null : 0;
  const points = oldest.map((row) => {
    const used = shareOf(row.spent[budget.label], budget);
    const point = { used, before: before === null ? used : before };
    before = used;
    return point;
  });
  const owner = page.charges.some((row) => row.outcome !== null); // analysts are not told
  const rows = page.charges.map((row) => [
    String(row.entry), row.at.slice(0, 19).replace("T", " "), row.purpose || "", row.analyst || "",
    ...(owner ? [row.outcome] : []), receiptButton(facts.name, row.entry)]);
  refill(place,
    historyLine(points, `Used share of the budget: ${budgetName(budget.label)}.`),
    table("Charges, the newest first (times in UTC)",
      ["Entry", "Time", "Question", "Analyst", ...(owner ? ["Outcome"] : []), "Receipt"],
      rows, [true]),
    page.more ? make("p", { class: "hint", text: "Older charges are not shown." }) : null);
}

export function receiptButton(dataset, entry, text = "Download") {
  return make("button", { type: "button", class: "quiet", text,
    "aria-label": `Download the receipt of entry ${entry}`, onclick: async () => {
      try {
        const receipt = await send("GET", `${at(dataset)}/receipts/${entry}`, { raw: true });
        saveFile(`receipt-${dataset}-${entry}.json`, receipt);
        say(`Receipt ${entry} was downloaded.`);
      } catch (error) {
        say(error.message, true);
      }
    } });
}

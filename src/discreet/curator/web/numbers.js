// Exact amounts arrive as text such as 9/10; people read decimals, rounded against them.

export function decimal(text) {
  const [above, below] = String(text).split("/");
  return below === undefined ? Number(above) : Number(above) / Number(below);
}

export function short(value, digits = 5) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const number = Number(value);
  if (Number.isInteger(number) && Math.abs(number) < 1e15) return number.toLocaleString("en-US");
  return String(Number(number.toPrecision(digits)));
}

export function down(value) {
  const number = decimal(value);
  const rounded = Number(number.toPrecision(4));
  return short(rounded <= number ? rounded : Number((number - Math.abs(number) * 6e-4).toPrecision(4)));
}

// What is left of a budget in words; charges go on while any of the sums has room.
export function leftOf(budget) {
  const names = { basic: "epsilon", zcdp: "rho", gdp: "mu²" };
  const sums = Object.entries(budget.remaining).filter(([name]) => name !== "delta")
    .map(([name, value]) => `${names[name] || name} ${down(value)}`);
  const delta = decimal(budget.delta) > 0 ? `, delta ${down(budget.remaining.delta)}` : "";
  return sums.join(" or ") + delta;
}

export function budgetName(label) {
  if (label === "dataset") return "Whole dataset";
  const [scope, ...rest] = label.split(":");
  return `${scope === "analyst" ? "Analyst" : "Project"} ${rest.join(":")}`;
}

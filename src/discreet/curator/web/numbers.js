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

// The nearest number of few digits on one side: at least (direction -1) or at most (1).
function towards(direction, number, digits) {
  const rounded = Number(number.toPrecision(digits));
  if (!Number.isFinite(number) || (rounded - number) * direction >= 0) return rounded;
  const step = 10 ** (Math.floor(Math.log10(Math.abs(number))) - digits + 1);
  return Number((rounded + direction * step).toPrecision(digits));
}

export function down(value, digits = 4) {
  const number = value === null || value === undefined ? NaN : decimal(value);
  return short(towards(-1, number, digits), digits);
}

export function up(value, digits = 4) {
  const number = value === null || value === undefined ? NaN : decimal(value);
  return short(towards(1, number, digits), digits);
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

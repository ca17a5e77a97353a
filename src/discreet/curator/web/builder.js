// The query builder: form controls on one side, the JSON of a query on the other.

import { field, make, refill, select } from "./dom.js";
import { ticks } from "./charts.js";

const KINDS = [
  ["count", "Count of rows"], ["count_persons", "Count of persons"], ["sum", "Sum"], ["mean", "Mean"], ["variance", "Variance"],
  ["histogram", "Histogram"], ["quantile", "Quantile"], ["group_by", "Groups"],
  ["top_k", "Most frequent values"], ["json", "Any query, as JSON"],
];
const NUMERIC = ["integer", "real", "date"];
const COMPARISONS = ["<", "<=", "==", "!=", ">=", ">"];

export class Builder {
  constructor(place, changed) {
    this.place = place;
    this.changed = changed;
    this.columns = {};
  }

  // columns: {name: {type, bounds, labels}}; unit: "person" or "row"
  show(columns, unit) {
    this.columns = columns;
    this.conditions = [];
    this.kind = select(KINDS.filter(([kind]) => unit === "person" || kind !== "count_persons"));
    this.epsilon = make("input", { inputmode: "decimal", value: "1/10", required: true,
      spellcheck: "false" });
    this.special = make("div", { class: "fields" });
    this.rows = make("div");
    this.joined = select([["all", "all of these hold"], ["any", "any of these holds"]]);
    const more = make("button", { type: "button", class: "quiet", text: "Add a condition",
      onclick: () => this.addCondition() });
    this.filter = make("fieldset", {}, make("legend", { text: "Only rows where" }),
      field("Conditions are joined so that", this.joined).box, this.rows, more);
    this.preview = make("code");
    const told = make("details", {}, make("summary", { text: "The query as JSON" }), this.preview);
    refill(this.place,
      make("div", { class: "fields" },
        field("Question", this.kind).box,
        field("Epsilon to spend", this.epsilon, "Exact: 0.1 or 1/10. More gives less noise.").box),
      this.special, this.filter, told);
    this.kind.addEventListener("change", () => { this.showSpecial(); this.tell(); });
    this.place.oninput = () => this.tell();
    this.showSpecial();
    this.tell();
  }

  names(test) {
    return Object.entries(this.columns).filter(([, column]) => test(column))
      .map(([name]) => [name, name]);
  }

  numericNames() {
    return this.names((column) => NUMERIC.includes(column.type));
  }

  labelledNames() {
    return this.names((column) => !NUMERIC.includes(column.type));
  }

  showSpecial() {
    const kind = this.kind.value;
    const parts = {};
    const put = (name, label, control, hint) => {
      parts[name] = control;
      return field(label, control, hint).box;
    };
    const text = (value, extra = {}) => make("input", { value, spellcheck: "false", ...extra });
    const of = (label = "Of column") => put("of", label, select(this.numericNames()));
    const limits = () => [
      put("lower", "Cut below at", text(""), "Not required; a tighter range means less noise."),
      put("upper", "Cut above at", text("")),
    ];
    this.parts = parts;
    this.filter.hidden = kind === "json";
    this.epsilon.closest("div").hidden = kind === "json";
    const layouts = {
      count: () => [],
      count_persons: () => [put("more_than", "With more rows than", text("0", { inputmode: "numeric" }),
        "0 counts everybody with such a row; the cap counts those of whom rows are dropped elsewhere.")],
      sum: () => [of(), ...limits()],
      mean: () => [of(), ...limits()],
      variance: () => [of(), ...limits()],
      histogram: () => [of(), put("edges", "Edges", text("", { name: "edges" }), "Increasing numbers with commas.")],
      quantile: () => [of(), put("share", "Share below it", text("1/2"), "1/2 is the median.")],
      group_by: () => [
        put("by", "By column", select(this.labelledNames())),
        put("second", "And by", select([["", "no second column"], ...this.labelledNames()])),
        put("statistic", "Statistic", select([["count", "Count of rows"], ["sum", "Sum"],
          ["mean", "Mean"]])),
        of("Of column (sum and mean)"),
        put("delta", "Delta", text(""),
          "Empty: all declared groups. With a delta such as 1e-6, groups are selected privately."),
      ],
      top_k: () => [put("by", "Of column", select(this.labelledNames())),
        put("k", "How many", text("3", { inputmode: "numeric" }))],
      json: () => [put("json", "Query", make("textarea", { spellcheck: "false" }),
        "All kinds of queries, also threshold_stream and workload.")],
    };
    refill(this.special, layouts[kind]());
    if (parts.edges) {
      const propose = () => {
        const bounds = (this.columns[parts.of.value] || {}).bounds;
        if (bounds && bounds.every((bound) => typeof bound === "number")) {
          parts.edges.value = ticks(bounds[0], bounds[1], 8).join(", ");
        }
      };
      parts.of.addEventListener("change", propose);
      propose();
    }
    if (parts.json) {
      parts.json.value = JSON.stringify(this.last || { kind: "count", epsilon: "1/10" }, null, 2);
    }
  }

  addCondition() {
    const column = select(Object.keys(this.columns).map((name) => [name, name]));
    const how = make("span");
    const value = make("span");
    const row = make("div", { class: "row" });
    const entry = { column, how: null, value: null };
    const build = () => {
      const about = this.columns[column.value];
      const numeric = NUMERIC.includes(about.type);
      const boolean = about.type === "boolean";
      entry.how = select(numeric ? COMPARISONS.map((sign) => [sign, sign])
        : boolean ? [["==", "is"]] : [["one_of", "is one of"], ["starts_with", "begins with"]]);
      if (boolean) entry.value = select([["1", "true"], ["0", "false"]]);
      else entry.value = make("input", { type: about.type === "date" ? "date" : "text",
        spellcheck: "false", list: null });
      refill(how, make("label", {}, "Test", entry.how));
      refill(value, make("label", {}, numeric || boolean ? "Value" : "Values, with commas",
        entry.value));
    };
    column.addEventListener("change", () => { build(); this.tell(); });
    const remove = make("button", { type: "button", class: "quiet", text: "Remove",
      "aria-label": "Remove this condition", onclick: () => {
        this.conditions = this.conditions.filter((other) => other !== entry);
        row.remove();
        this.tell();
        this.kind.focus();
      } });
    row.append(make("label", {}, "Column", column), how, value, remove);
    build();
    this.rows.append(row);
    this.conditions.push(entry);
    column.focus();
    this.tell();
  }

  condition(entry) {
    const name = entry.column.value;
    const about = this.columns[name];
    const text = entry.value.value.trim();
    if (!text) return null;
    const how = entry.how.value;
    if (how === "one_of") {
      return { op: "one_of", column: name,
        values: text.split(",").map((part) => part.trim()).filter((part) => part) };
    }
    if (how === "starts_with") return { op: "starts_with", column: name, prefix: text };
    const right = about.type === "date" ? { op: "day", day: text } : { op: "value", value: text };
    return { op: "compare", how, left: { op: "column", name }, right };
  }

  query() {
    const kind = this.kind.value;
    const parts = this.parts;
    if (kind === "json") return JSON.parse(parts.json.value);
    const query = { kind, epsilon: this.epsilon.value.trim() };
    const column = (control) => ({ op: "column", name: control.value });
    for (const name of ["lower", "upper", "delta", "share"]) {
      if (parts[name] && parts[name].value.trim()) query[name] = exact(parts[name].value);
    }
    if (kind === "group_by") {
      query.by = [column(parts.by)];
      if (parts.second.value) query.by.push(column(parts.second));
      query.statistic = parts.statistic.value;
      if (query.statistic !== "count") query.of = column(parts.of);
    } else if (kind === "top_k") {
      query.by = column(parts.by);
      query.k = Number(parts.k.value);
    } else if (parts.of) {
      query.of = column(parts.of);
    }
    if (parts.more_than) query.more_than = Number(parts.more_than.value);
    if (parts.edges) query.edges = parts.edges.value.split(",").map(exact).filter((part) => part);
    const conditions = this.conditions.map((entry) => this.condition(entry)).filter(Boolean);
    if (conditions.length === 1) query.where = conditions[0];
    else if (conditions.length) query.where = { op: this.joined.value, of: conditions };
    return query;
  }

  tell() {
    let query = null;
    try {
      query = this.query();
    } catch (error) {
      this.changed(null, `This is not JSON: ${error.message}`);
      return;
    }
    if (this.kind.value !== "json") this.last = query;
    this.preview.textContent = JSON.stringify(query);
    this.changed(query, "");
  }
}

// 1e-6 becomes a decimal without an exponent, which the service reads exactly.
function exact(text) {
  const trimmed = text.trim();
  const match = /^([0-9]*)\.?([0-9]*)[eE]-([0-9]{1,2})$/.exec(trimmed);
  if (!match) return trimmed;
  const digits = match[1] + match[2];
  const places = match[2].length + Number(match[3]);
  const padded = digits.padStart(places + 1, "0");
  return `${padded.slice(0, padded.length - places)}.${padded.slice(padded.length - places)}`;
}

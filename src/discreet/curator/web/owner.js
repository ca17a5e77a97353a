// What owners do: datasets, analysts, budgets, tokens.

import { at, send } from "./api.js";
import { byId, field, make, refill, say, select, table } from "./dom.js";

function text(name, extra = {}) {
  return make("input", { name, spellcheck: "false", ...extra });
}

// A form that sends what send(values) returns, says so, and calls done.
function ownForm(title, fields, action, work) {
  const form = make("form", { autocomplete: "off" }, make("h3", { text: title }),
    make("div", { class: "fields" }, fields.map(([label, control, hint]) =>
      field(label, control, hint).box)),
    make("button", { type: "submit", text: action }));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = {};
    for (const [, control] of fields) {
      values[control.name] = control.multiple
        ? [...control.selectedOptions].map((option) => option.value) : control.value.trim();
    }
    try {
      await work(values);
    } catch (error) {
      say(error.message, true);
      byId("status").scrollIntoView({ block: "nearest" });
    }
  });
  return form;
}

function named(control, name, extra = {}) {
  control.name = name;
  for (const [key, value] of Object.entries(extra)) control.setAttribute(key, value);
  return control;
}

const amounts = () => [
  ["Epsilon", text("epsilon", { required: true, value: "1" }), "Exact; it cannot be raised later."],
  ["Delta", text("delta", { required: true, value: "0" }), "Exact, for example 0.000001."],
];

function datasetForm(done) {
  return ownForm("Serve a dataset", [
    ["Name", text("name", { required: true }), "Letters, digits, dots and dashes."],
    ["File", text("source", { required: true }), "In the directory of data of this service."],
    ...amounts(),
    ["Schema (TOML)", make("textarea", { name: "schema", required: true, spellcheck: "false" })],
  ], "Serve it", async (values) => {
    const made = await send("POST", "/v1/datasets", { body: values });
    await done(made.name);
    const same = made.copies.join(", ");
    say(`${made.name} is served.` + (same && ` Warning: its file has the same content as that of `
      + `${same}; budgets of two names do not add up.`), Boolean(same));
  });
}

function analystForm(done) {
  return ownForm("Enter an analyst", [["Name", text("name", { required: true })]], "Enter",
    async (values) => {
      await send("POST", "/v1/analysts", { body: values });
      await done();
      say(`${values.name} is an analyst now. Next: a budget and a token.`);
    });
}

function budgetForm(datasets, analysts, done) {
  const who = [["", "nobody (a project)"], ...analysts.map((name) => [name, name])];
  return ownForm("Give a budget", [
    ["Dataset", named(select(datasets.map((name) => [name, name])), "dataset")],
    ["Analyst", named(select(who, analysts[0]), "analyst")],
    ["Project", text("project"), "Only where no analyst is chosen."],
    ...amounts(),
  ], "Give", async (values) => {
    const { dataset, analyst, project, ...rest } = values;
    const body = { ...rest, analyst: analyst || null, project: project || null };
    await send("POST", `${at(dataset)}/budgets`, { body });
    await done();
    say(`${analyst || project} has a budget for ${dataset}.`);
  });
}

function tokenForm(datasets, analysts, done) {
  const who = [...analysts.map((name) => [name, name]), ["", "an owner"]];
  const opened = named(select(datasets.map((name) => [name, name])), "datasets",
    { multiple: "", size: Math.min(4, Math.max(2, datasets.length)) });
  for (const option of opened.options) option.selected = true;
  return ownForm("Make a token", [
    ["For", named(select(who), "analyst")],
    ["Opens", opened, "For an owner it opens everything."],
    ["Project", text("project"), "Not required; its budget is charged as well."],
    ["Days until it expires", text("days", { value: "90", inputmode: "numeric" })],
    ["Note", text("note")],
  ], "Make the token", async (values) => {
    const role = values.analyst ? "analyst" : "owner";
    const body = { role, days: Number(values.days), note: values.note,
      analyst: values.analyst || null, project: values.project || null,
      datasets: role === "owner" ? [] : values.datasets };
    const made = await send("POST", "/v1/tokens", { body });
    await done();
    refill(byId("new-token"), make("p", { class: "good" },
      "The new token, shown this once: ", make("span", { class: "secret", text: made.text })));
    byId("new-token").scrollIntoView({ block: "nearest" });
    say("The token was made. Copy it now: it is not shown again.");
  });
}

function tokenTable(tokens, done) {
  const rows = tokens.map((token) => {
    const end = make("button", { type: "button", class: "quiet", text: "Revoke",
      "aria-label": `Revoke token ${token.id}`, onclick: async () => {
        try {
          await send("DELETE", `/v1/tokens/${token.id}`);
          await done();
          say(`Token ${token.id} is revoked.`);
        } catch (error) {
          say(error.message, true);
        }
      } });
    return [make("code", { text: token.id }), token.analyst || token.role,
      token.datasets.join(", ") || "all", token.note, token.expires.slice(0, 10),
      token.revoked ? `revoked ${token.revoked.slice(0, 10)}` : end];
  });
  return table("Tokens", ["Token", "Holder", "Opens", "Note", "Expires", ""], rows);
}

export async function showOwner(who, datasets, reload) {
  const place = byId("owner-forms");
  const [people, kept] = await Promise.all([send("GET", "/v1/analysts"), send("GET", "/v1/tokens")]);
  const again = async (dataset) => { await reload(dataset); };
  refill(place,
    make("div", { id: "new-token", role: "status", "aria-live": "polite" }),
    who.may_register ? datasetForm(again)
      : make("p", { class: "hint", text:
        "Datasets are registered at the terminal: discreet curator dataset." }),
    analystForm(again),
    datasets.length ? budgetForm(datasets, people.analysts, again) : null,
    datasets.length ? tokenForm(datasets, people.analysts, again) : null,
    tokenTable(kept.tokens, again));
}

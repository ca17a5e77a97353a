// The page: who is here, which dataset, and what happens when a form is sent.

import { at, forgetToken, hasToken, newKey, send, useToken } from "./api.js";
import { showAnswer } from "./answers.js";
import { showColumns, showGauges, showHistory } from "./budget.js";
import { Builder } from "./builder.js";
import { byId, make, refill, say } from "./dom.js";
import { decimal, short, up } from "./numbers.js";
import { showOwner } from "./owner.js";
import { verifyLedger } from "./verify.js";

const state = {
  who: null, datasets: [], facts: null, query: null, quoting: null, timer: null, answered: new Set(),
};
const builder = new Builder(byId("builder"), quoteSoon);

function showLogin() {
  byId("login").hidden = false;
  byId("desk").hidden = true;
  byId("leave").hidden = true;
  byId("who").textContent = "";
}

async function enter() {
  try {
    state.who = await send("GET", "/v1/whoami");
  } catch (error) {
    if (error.status === 401) forgetToken();
    showLogin();
    say(error.message, true);
    return;
  }
  byId("login").hidden = true;
  byId("desk").hidden = false;
  byId("leave").hidden = false;
  const name = state.who.role === "owner" ? "Owner of the data" : `Analyst ${state.who.analyst}`;
  byId("who").textContent = `${name}; this token expires on ${state.who.expires.slice(0, 10)}`;
  byId("ask").hidden = state.who.role === "owner";
  byId("owner").hidden = state.who.role !== "owner";
  say("");
  await load();
}

async function load(chosen = byId("dataset").value) {
  const { datasets } = await send("GET", "/v1/datasets");
  state.datasets = datasets;
  const names = datasets.map((facts) => facts.name);
  const current = names.includes(chosen) ? chosen : names[0];
  refill(byId("dataset"), names.map((name) =>
    make("option", { value: name, text: name, selected: name === current })));
  if (state.who.role === "owner") await showOwner(state.who, names, load);
  if (current === undefined) say("There are no datasets for this token yet.");
  else await choose(current, true);
}

async function choose(name, fresh) {
  state.facts = state.datasets.find((facts) => facts.name === name);
  showGauges(state.facts);
  showColumns(state.facts);
  if (fresh && state.who.role === "analyst") {
    builder.show(state.facts.facts.columns, state.facts.unit);
  }
  if (byId("history-details").open) await showHistory(state.facts);
}

async function renewFacts() {
  const facts = await send("GET", at(state.facts.name));
  state.datasets = state.datasets.map((one) => (one.name === facts.name ? facts : one));
  state.facts = facts;
  showGauges(facts);
  if (byId("history-details").open) await showHistory(facts);
}

// --- cost and expected error before asking --------------------------------------------

function quoteSoon(query, fault) {
  clearTimeout(state.timer);
  if (state.quoting) state.quoting.abort();
  state.query = null;
  byId("ask-button").disabled = true;
  byId("ask-button").textContent = "Ask";
  if (fault) {
    refill(byId("quote"), make("p", { class: "bad", text: fault }));
    return;
  }
  state.timer = setTimeout(() => quoteNow(query), 250);
}

function questionName(query) {
  return `${state.facts.name} ${JSON.stringify(query)}`;
}

async function quoteNow(query) {
  state.quoting = new AbortController();
  try {
    const quote = await send("POST", `${at(state.facts.name)}/quote`,
      { body: { query }, signal: state.quoting.signal });
    state.query = query;
    // The service tells of answers when some minutes have passed; this page knows its own at once.
    const known = state.answered.has(questionName(query));
    showQuote({ ...quote, answered_before: quote.answered_before || known });
  } catch (error) {
    if (error.name === "AbortError") return;
    showGauges(state.facts);
    refill(byId("quote"), make("p", { class: "bad", text: error.message }));
  }
}

function showQuote(quote) {
  const lines = quote.expected_error.slice(0, 6).map((error) => make("p", { text:
    error.half_width === null
      ? `${error.label}: how far off it will be depends on the data and is told with the answer.`
      : `${error.label}: ${error.label.startsWith("rows") ? "" : "±"}${up(error.half_width, 5)}, ` +
        `with ${short(100 * error.confidence)} % confidence.` }));
  const delta = decimal(quote.delta) ? `, delta ${short(decimal(quote.delta))}` : "";
  const cost = quote.answered_before
    ? "You were given this answer before: it is free and will be the same."
    : `This costs epsilon ${quote.epsilon}${delta}. It cannot be undone.`;
  refill(byId("quote"), make("p", {}, make("strong", { text: cost })),
    make("p", { text: `Expected error, ${quote.about}:` }), lines);
  showGauges(state.facts, quote.answered_before ? 0 : decimal(quote.epsilon));
  const button = byId("ask-button");
  button.disabled = false;
  button.textContent = quote.answered_before ? "Ask again, free"
    : `Ask, spending epsilon ${quote.epsilon}`;
}

async function ask(event) {
  event.preventDefault();
  if (!state.query) return;
  const query = state.query;
  const button = byId("ask-button");
  button.disabled = true;
  say("Asking…");
  try {
    const answer = await send("POST", `${at(state.facts.name)}/ask`,
      { body: { query }, key: newKey(), raw: true });
    say("");
    state.answered.add(questionName(query));
    showAnswer(answer);
    await renewFacts();
    builder.tell();
  } catch (error) {
    say(error.message, true);
    byId("status").scrollIntoView({ block: "nearest" });
    button.disabled = false;
  }
}

// --- what people do ------------------------------------------------------------------------

byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  useToken(byId("token").value);
  byId("token").value = "";
  await enter();
  if (state.who) byId("dataset").focus();
});
byId("leave").addEventListener("click", () => {
  forgetToken();
  location.reload();
});
byId("dataset").addEventListener("change", () => choose(byId("dataset").value, true));
byId("history-details").addEventListener("toggle", async () => {
  if (!byId("history-details").open || !state.facts) return;
  try {
    await showHistory(state.facts);
  } catch (error) {
    say(error.message, true);
  }
});
byId("ask-form").addEventListener("submit", ask);
byId("verify-form").addEventListener("submit", verifyLedger);

byId("open").disabled = false;
if (hasToken()) enter();
else showLogin();

// Replaying the ledger, with receipts that people kept.

import { send } from "./api.js";
import { byId, make, refill, say, table } from "./dom.js";

async function readReceipts(files) {
  const receipts = [];
  for (const file of files) {
    try {
      const text = await file.text();
      JSON.parse(text);
      receipts.push(text); // as it is: another way to write a number has another hash
    } catch {
      throw new Error(`${file.name} is not JSON.`);
    }
  }
  return receipts;
}

export async function verifyLedger(event) {
  event.preventDefault();
  const place = byId("verdict");
  refill(place, make("p", { text: "The ledger is being replayed…" }));
  try {
    const receipts = await readReceipts(byId("receipts").files);
    const verdict = await send("POST", "/v1/verify", {
      text: `{"receipts": [${receipts.join(",")}]}` });
    const kept = receipts.length ? ` ${receipts.length} receipts were looked for.` : "";
    const sentence = verdict.ok
      ? `✓ Everything fits${verdict.entries === null ? "" : `: ${verdict.entries} entries`}.${kept}`
      : `✗ The ledger does not fit: ${verdict.problems.length} problems in what you may see.`;
    refill(place,
      make("p", { class: verdict.ok ? "good" : "bad", text: sentence }),
      verdict.problems.length
        ? table("Problems", ["Dataset", "Entry", "What"],
          verdict.problems.map((one) => [one.dataset, one.entry ?? "", one.what]))
        : null);
  } catch (error) {
    refill(place);
    say(error.message, true);
  }
}

// Requests to the same server. The token lives in this tab only.

const KEPT = "discreet-token";
let token = sessionStorage.getItem(KEPT) || "";

export class Refused extends Error {
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

export function hasToken() {
  return token !== "";
}

export function useToken(text) {
  token = text.trim();
  sessionStorage.setItem(KEPT, token);
}

export function forgetToken() {
  token = "";
  sessionStorage.removeItem(KEPT);
}

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

// With ``raw`` the text itself is returned: numbers keep the form that hashes were made of.
async function once(method, path, { body, text, key, signal, raw }) {
  const headers = { Authorization: `Bearer ${token}` };
  const sent = text ?? (body === undefined ? undefined : JSON.stringify(body));
  if (sent !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  const response = await fetch(path, {
    method, headers, signal, cache: "no-store", credentials: "omit", redirect: "error",
    body: sent,
  });
  const received = await response.text();
  if (response.ok && raw) return received;
  let content = null;
  try {
    content = JSON.parse(received);
  } catch {
    content = null;
  }
  if (response.ok) return content;
  const problem = content || {};
  throw Object.assign(
    new Refused(response.status, problem.kind || "unknown",
      problem.message || `The service answered with status ${response.status}.`),
    { wait: Number(response.headers.get("Retry-After")) || 1 });
}

// A question that got no answer is asked again under its key, which is charged once.
export async function send(method, path, options = {}) {
  const attempts = options.key || method === "GET" ? 5 : 1;
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await once(method, path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      const again = !(error instanceof Refused) || [429, 500, 502, 503, 504].includes(error.status);
      if (!again || attempt >= attempts) {
        throw error instanceof Refused ? error
          : new Refused(0, "unreachable", "The service cannot be reached.");
      }
      await pause(Math.min(error.wait || 2 ** attempt / 4, 10));
    }
  }
}

export const at = (dataset) => `/v1/datasets/${encodeURIComponent(dataset)}`;

// What the server says about itself.

import { authorization } from "./stream.js";

/** Milliseconds between questions to a server that is not ready. */
const AGAIN = 2000;

/** `ready`, `loading`, `dead`, `closing` or `unreachable`, from `/health`. */
export async function health(fetch = globalThis.fetch) {
  let response;
  let body;
  try {
    response = await fetch("health", { cache: "no-store" });
    body = await response.text();
  } catch {
    return "unreachable";
  }
  if (response.ok) return "ready";
  if (/loading/.test(body)) return "loading";
  if (/shutting_down|closing/.test(body)) return "closing";
  return response.status === 503 ? "dead" : "unreachable";
}

/** Watches the health of the server for as long as it is not ready. */
export class HealthWatch {
  #tell;
  #timer = null;
  #asking = false;

  /** `tell` is called with each state. */
  constructor(tell) {
    this.#tell = tell;
  }

  /** Asks now, and again until the server is ready. */
  async ask() {
    if (this.#asking) return;
    this.#asking = true;
    clearTimeout(this.#timer);
    const state = await health();
    this.#asking = false;
    this.#tell(state);
    if (state === "ready") return;
    // A page that nobody looks at asks again once somebody does.
    this.#timer = setTimeout(() => document.hidden || this.ask(), AGAIN);
  }
}

/**
 * The served model as `{ name, context }`; `"unauthorized"` where a key is
 * missing or wrong, null where there is no telling.
 */
export async function servedModel(key, fetch = globalThis.fetch) {
  try {
    const response = await fetch("v1/models", { headers: authorization(key), cache: "no-store" });
    if (response.status === 401 || response.status === 403) return "unauthorized";
    const model = (await response.json()).data?.[0];
    if (typeof model?.id !== "string") return null;
    const context = Number.isSafeInteger(model.context_length) ? model.context_length : null;
    return { name: model.id, context };
  } catch {
    return null;
  }
}

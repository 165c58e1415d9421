// What the server says about itself.

import { authorization } from "./stream.js";

/** Milliseconds between questions to a server that is not ready. */
const AGAIN = 2000;

/**
 * What `/health` says: `state` is `ready`, `loading`, `dead`, `stopping` or
 * `unreachable`, `progress` the loaded share of a model that loads, or null.
 */
export async function health(fetch = globalThis.fetch) {
  const unreachable = { state: "unreachable", progress: null };
  let response;
  let body;
  try {
    response = await fetch("health", { cache: "no-store" });
    body = await response.text();
  } catch {
    return unreachable;
  }
  if (response.ok) return { state: "ready", progress: null };
  // A proxy before a server that is not there.
  if (response.status !== 503) return unreachable;
  const said = parse(body);
  const status = said?.error?.code ?? said?.status;
  if (status === "loading") {
    const { progress } = said;
    return { state: "loading", progress: progress >= 0 && progress <= 1 ? progress : null };
  }
  const stopping = status === "stopping" || status === "shutting_down";
  return { state: stopping ? "stopping" : "dead", progress: null };
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Watches the health of the server for as long as it is not ready. */
export class HealthWatch {
  #tell;
  #timer = null;
  #asking = false;

  /** `tell` is called with each answer of `health`. */
  constructor(tell) {
    this.#tell = tell;
  }

  /** Asks now, and again until the server is ready. */
  async ask() {
    if (this.#asking) return;
    this.#asking = true;
    clearTimeout(this.#timer);
    const said = await health();
    this.#asking = false;
    this.#tell(said);
    if (said.state === "ready") return;
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
    if (response.status === 401) return "unauthorized";
    const model = (await response.json()).data?.[0];
    if (typeof model?.id !== "string") return null;
    const context = Number.isSafeInteger(model.context_length) ? model.context_length : null;
    return { name: model.id, context };
  } catch {
    return null;
  }
}

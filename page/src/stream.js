// One request to the server, and its answer as it arrives.

import { brokenOff, duringStream, fromResponse, unreachable } from "./failure.js";
import { EventStream } from "./sse.js";

/** Headers that carry the key, if there is one. */
export function authorization(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/**
 * Sends `body` and hands each chunk to `onChunk`, each comment line to
 * `onComment`. Returns when the server says that it has sent everything.
 *
 * Throws a `Failure`, or what the browser throws where `signal` aborts.
 */
export async function streamAnswer(body, { key, signal, onChunk, onComment, fetch = globalThis.fetch }) {
  const response = await send(body, key, signal, fetch);
  if (!response.ok) {
    const text = await response.text().catch(() => "");
    throw fromResponse(response.status, text, response.headers.get("retry-after"));
  }
  const events = new EventStream();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      if (done) throw brokenOff();
      for (const event of events.push(value)) {
        if (event.comment !== undefined) onComment(event.comment);
        else if (event.data === "[DONE]") return;
        else onChunk(parseChunk(event.data));
      }
    }
  } finally {
    // Whoever stops reading early also tells the server to stop.
    reader.cancel().catch(() => {});
  }
}

async function send(body, key, signal, fetch) {
  try {
    return await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", ...authorization(key) },
      body: JSON.stringify(body),
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
      signal,
    });
  } catch (error) {
    throw signal?.aborted ? error : unreachable();
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    throw signal?.aborted ? error : brokenOff();
  }
}

function parseChunk(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    chunk = null;
  }
  if (chunk === null || typeof chunk !== "object") {
    throw duringStream({ message: "It sent something that is not a chunk of an answer" });
  }
  if (chunk.error) throw duringStream(chunk.error);
  return chunk;
}

/** What a comment of the server says about an answer that has not begun, in words; null if nothing. */
export function progressWords(comment) {
  const [, place] = /^queue (\d+)$/.exec(comment) ?? [];
  if (place !== undefined) return `Waiting in the queue, place ${Number(place)}…`;
  const [, done, total] = /^prefill (\d+)\/(\d+)$/.exec(comment) ?? [];
  if (total === undefined || Number(total) === 0) return null;
  return `Reading the prompt… ${Math.floor(Math.min(1, Number(done) / Number(total)) * 100)} %`;
}

import assert from "node:assert/strict";
import { test } from "node:test";

import { Failure, fromResponse, waitingTime } from "../src/failure.js";
import { health, servedModel } from "../src/server.js";
import { progressWords, streamAnswer } from "../src/stream.js";

/** A server that answers each request with `response`. */
const server = (response) => async () => response;

const stream = (...parts) =>
  new Response(new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(new TextEncoder().encode(part));
      controller.close();
    },
  }));

async function ask(fetch, options = {}) {
  const chunks = [];
  const comments = [];
  const onChunk = (chunk) => chunks.push(chunk);
  const onComment = (comment) => comments.push(comment);
  await streamAnswer({ stream: true }, { key: "", onChunk, onComment, fetch, ...options });
  return { chunks, comments };
}

const failureOf = (promise) =>
  promise.then(() => assert.fail("it did not fail"), (error) => {
    assert.ok(error instanceof Failure, String(error));
    return error;
  });

test("chunks and comments arrive in order, and nothing after the end", async () => {
  const response = stream(': prefill 1/2\n\ndata: {"n"', ':1}\n\ndata: {"n":2}\n\ndata: [DONE]\n\ndata: {"n":3}\n\n');
  const { chunks, comments } = await ask(server(response));
  assert.deepEqual(chunks, [{ n: 1 }, { n: 2 }]);
  assert.deepEqual(comments, ["prefill 1/2"]);
});

test("the key goes out as a bearer token, and only if there is one", async () => {
  const seen = [];
  const fetch = async (url, { headers }) => {
    seen.push([url, headers.authorization]);
    return stream("data: [DONE]\n\n");
  };
  await ask(fetch, { key: "secret" });
  await ask(fetch);
  assert.deepEqual(seen, [["v1/chat/completions", "Bearer secret"], ["v1/chat/completions", undefined]]);
});

test("a stream that ends too early, says an error or says nonsense is a failure in words", async () => {
  const early = await failureOf(ask(server(stream('data: {"n":1}\n\n'))));
  assert.equal(early.title, "The answer broke off.");
  const error = await failureOf(ask(server(stream('data: {"error":{"message":"generation failed: NaN"}}\n\n'))));
  assert.equal(error.detail, "Generation failed: NaN.");
  for (const data of ["nonsense", "3", "null"]) {
    const wrong = await failureOf(ask(server(stream(`data: ${data}\n\n`))));
    assert.equal(wrong.title, "The server could not go on.", data);
  }
});

test("a server that is not there is a failure in words", async () => {
  const failure = await failureOf(ask(() => Promise.reject(new TypeError("Failed to fetch"))));
  assert.equal(failure.title, "The server cannot be reached.");
});

test("stopping is no failure", async () => {
  const controller = new AbortController();
  const fetch = () => {
    controller.abort();
    return Promise.reject(controller.signal.reason);
  };
  await assert.rejects(ask(fetch, { signal: controller.signal }), { name: "AbortError" });
});

test("each status has its words and its remedy", () => {
  const body = (message, code) => JSON.stringify({ error: { message, code } });
  const of = (...args) => {
    const { title, detail, remedy, seconds } = fromResponse(...args);
    return [title, detail, remedy, seconds];
  };
  assert.deepEqual(of(401, body("a valid API key is required"), null), [
    "This server asks for an API key.", "A valid API key is required.", "key", null,
  ]);
  assert.deepEqual(of(429, body("16 requests are waiting already; try again later"), "5"), [
    "The server is busy.", "16 requests are waiting already. Try again in 5 seconds.", "wait", 5,
  ]);
  assert.deepEqual(of(503, body("the model is loading", "loading"), "1"), [
    "The model is still loading.", "Try again in a second.", "wait", 1,
  ]);
  assert.equal(of(503, body("x", "worker_dead"), null)[0], "The model has stopped.");
  assert.deepEqual(of(503, body("the request waited 9 seconds for its turn; try again later", "queue_timeout"), "5"), [
    "The server is busy.", "The request waited 9 seconds for its turn. Try again in 5 seconds.", "wait", 5,
  ]);
  assert.equal(of(504, body("x", "request_timeout"), null)[0], "The answer took too long.");
  assert.equal(of(403, body("x", "host_not_allowed"), null)[2], null);
  assert.equal(of(503, body("x", "shutting_down"), null)[0], "The server is shutting down.");
  assert.equal(of(503, "<html>", null)[1], "The server answered with status 503. Try again in a moment.");
  assert.match(of(400, body("too long", "context_length_exceeded"), null)[0], /too long/);
  assert.deepEqual(of(400, body("'temperature' must be at most 2"), null), [
    "The server does not accept this request.", "'temperature' must be at most 2.", null, null,
  ]);
  assert.equal(of(500, "", null)[1], "The server answered with status 500.");
  assert.equal(of(500, body({ not: "text" }), null)[1], "The server answered with status 500.");
});

test("a waiting time may be seconds or a date", () => {
  const now = Date.parse("2026-01-01T00:00:00Z");
  assert.equal(waitingTime("7", now), 7);
  assert.equal(waitingTime("Thu, 01 Jan 2026 00:00:30 GMT", now), 30);
  for (const header of [null, "", "soon", "-3", "0", "Wed, 31 Dec 2025 00:00:00 GMT"]) {
    assert.equal(waitingTime(header, now), null, header);
  }
});

test("comments about the queue and the prompt tell what an answer waits for", () => {
  assert.equal(progressWords("queue 3"), "Waiting in the queue, place 3…");
  assert.equal(progressWords("prefill 256/1024"), "Reading the prompt… 25 %");
  assert.equal(progressWords("prefill 9/3"), "Reading the prompt… 100 %");
  for (const comment of ["keep-alive", "prefill 1/0", "prefill x/y", "prefill 1/2 ", "queue", "queue -1"]) {
    assert.equal(progressWords(comment), null, comment);
  }
});

test("the health of the server has a word in each state", async () => {
  const state = async (status, body) => (await health(server(new Response(body, { status })))).state;
  assert.equal(await state(200, '{"status":"ready"}'), "ready");
  assert.equal(await state(503, '{"error":{"code":"loading"}}'), "loading");
  assert.equal(await state(503, '{"status":"loading"}'), "loading");
  assert.equal(await state(503, '{"error":{"code":"shutting_down"}}'), "stopping");
  assert.equal(await state(503, '{"status":"stopping"}'), "stopping");
  assert.equal(await state(503, '{"error":{"code":"worker_dead"}}'), "dead");
  assert.equal(await state(503, '{"status":"dead"}'), "dead");
  assert.equal(await state(502, "bad gateway"), "unreachable");
  assert.equal((await health(() => Promise.reject(new TypeError("no")))).state, "unreachable");
  const progress = async (said) => (await health(server(new Response(said, { status: 503 })))).progress;
  assert.equal(await progress('{"status":"loading","progress":0.25}'), 0.25);
  for (const wrong of ["7", "-1", '"half"', "null"]) {
    assert.equal(await progress(`{"status":"loading","progress":${wrong}}`), null, wrong);
  }
});

test("the served model is named, or known to be locked", async () => {
  const answer = (status, body) => servedModel("", server(new Response(body, { status })));
  assert.deepEqual(await answer(200, '{"data":[{"id":"demo","context_length":4096}]}'), { name: "demo", context: 4096 });
  assert.deepEqual(await answer(200, '{"data":[{"id":"demo"}]}'), { name: "demo", context: null });
  assert.equal(await answer(401, "{}"), "unauthorized");
  assert.equal(await answer(500, "oops"), null);
  assert.equal(await answer(200, '{"data":[]}'), null);
});

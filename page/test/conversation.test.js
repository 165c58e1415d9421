import assert from "node:assert/strict";
import { test } from "node:test";

import {
  applyChunk,
  assistantMessage,
  isEmpty,
  parseArguments,
  restore,
  tokensPerSecond,
  userMessage,
  waitsForResults,
} from "../src/conversation.js";
import { answerFigures, duration, ending, thinkingLabel } from "../src/figures.js";

const delta = (fields, finish = null) => ({ choices: [{ index: 0, delta: fields, finish_reason: finish }] });

function answerOf(...chunks) {
  const message = assistantMessage();
  chunks.forEach((chunk, index) => applyChunk(message, chunk, 100 * (index + 1)));
  return message;
}

const USAGE = {
  prompt_tokens: 1700,
  completion_tokens: 5,
  prompt_tokens_details: { cached_tokens: 16 },
  completion_tokens_details: { reasoning_tokens: 2 },
};

test("thinking, text, end and usage join into one message", () => {
  const message = answerOf(
    delta({ role: "assistant", content: "" }),
    delta({ reasoning_content: "Let me " }),
    delta({ reasoning_content: "see." }),
    delta({ content: "To" }),
    delta({ content: "kyo." }),
    delta({}, "stop"),
    { choices: [], usage: USAGE },
  );
  assert.equal(message.reasoning, "Let me see.");
  assert.equal(message.content, "Tokyo.");
  assert.equal(message.finish, "stop");
  assert.deepEqual(message.usage, { prompt: 1700, completion: 5, reasoning: 2, cached: 16 });
  assert.deepEqual(message.timing, { first: 200, last: 500, thought: 200 });
  assert.equal(tokensPerSecond(message), (4 * 1000) / 300);
  const figures = answerFigures(message, 4096).map(({ text }) => text);
  assert.deepEqual(figures, ["13.3 tokens/s", "5 tokens", "first after 0.20 s", "1,705 of 4,096 in context"]);
  assert.equal(thinkingLabel(message, false), "Thought for 0.20 s · 2 tokens");
});

test("the server's own speed is shown however short the answer, and what this page saw of a moment never", () => {
  const timed = (timings) => answerOf(delta({ content: "a" }), delta({ content: "b" }), { choices: [], usage: USAGE, timings });
  const figure = (message) => answerFigures(message, null).find(({ text }) => text.endsWith("tokens/s"));
  const measured = timed({ predicted_per_second: 83.25, predicted_n: 4, predicted_ms: 48.05 });
  assert.equal(tokensPerSecond(measured), 83.25);
  assert.match(figure(measured).title, /as the server measured it/);
  assert.equal(restore(JSON.stringify([measured]))[0].speed, 83.25);
  assert.match(figure(timed(undefined)).title, /as this page saw it/);
  assert.equal(figure(timed({ predicted_per_second: 1803.512, predicted_n: 4, predicted_ms: 2.218 })).text, "1,804 tokens/s");
  for (const odd of [{}, { predicted_per_second: 80_000, predicted_n: 1 }, { predicted_n: 0 }, { predicted_per_second: "9", predicted_n: 9 }]) {
    assert.equal(timed(odd).speed, null);
  }
  const burst = assistantMessage();
  applyChunk(burst, delta({ content: "a" }), 100);
  applyChunk(burst, { ...delta({ content: "b" }), usage: USAGE }, 149);
  assert.equal(tokensPerSecond(burst), null);
});

test("an answer that came at one moment has no speed", () => {
  assert.equal(tokensPerSecond(answerOf({ ...delta({ content: "a" }), usage: USAGE })), null);
  assert.equal(tokensPerSecond(answerOf(delta({ content: "a" }), delta({ content: "b" }))), null);
});

test("arguments of interleaved calls go to the call with their index", () => {
  const message = answerOf(
    delta({ tool_calls: [{ index: 0, id: "call_a", function: { name: "add", arguments: "" } }] }),
    delta({ tool_calls: [{ index: 1, id: "call_b", function: { name: "sub", arguments: '{"x"' } }] }),
    delta({ tool_calls: [{ index: 0, function: { arguments: '{"y": 1}' } }] }),
    delta({ tool_calls: [{ index: 1, function: { arguments: ": 2}" } }] }),
    delta({}, "tool_calls"),
  );
  const seen = message.calls.map(({ id, name, arguments: text }) => [id, name, text]);
  assert.deepEqual(seen, [["call_a", "add", '{"y": 1}'], ["call_b", "sub", '{"x": 2}']]);
  assert.deepEqual(parseArguments(message.calls[1]), { x: 2 });
  assert.ok(waitsForResults(message));
  message.calls.forEach((call) => (call.result = ""));
  assert.ok(!waitsForResults(message));
});

test("arguments that are cut off or no object have no value", () => {
  for (const text of ['{"x": ', "[1]", "null", "3", ""]) {
    assert.equal(parseArguments({ arguments: text }), null, text);
  }
});

test("chunks of the wrong shape change nothing and break nothing", () => {
  const message = answerOf(
    {}, { choices: [] }, { choices: [{}] }, { choices: "x" }, { choices: [{ delta: null }] },
    delta({ content: null, reasoning_content: 7, tool_calls: "no" }),
    delta({ content: { toString: "x" } }),
  );
  assert.ok(isEmpty(message));
  assert.equal(message.timing.first, null);
});

test("a server cannot fill the memory with calls", () => {
  const message = assistantMessage();
  for (let index = 0; index < 1000; index += 1) {
    applyChunk(message, delta({ tool_calls: [{ index, function: { arguments: "x" } }] }), 1);
  }
  assert.equal(message.calls.length, 128);
});

test("a stored conversation comes back as it was", () => {
  const answer = answerOf(
    delta({ reasoning_content: "hm" }),
    delta({ content: "x", tool_calls: [{ index: 0, id: "c", function: { name: "f", arguments: "{}" } }] }, "tool_calls"),
    { choices: [], usage: USAGE },
  );
  answer.calls[0].result = "sunny";
  answer.failure = { title: "No.", detail: "Because." };
  const messages = [userMessage("hi"), answer];
  assert.deepEqual(restore(JSON.stringify(messages)), messages);
});

test("what was still streaming when the page closed comes back as stopped", () => {
  const [message] = restore(JSON.stringify([answerOf(delta({ content: "ha" }))]));
  assert.equal(message.finish, "aborted");
  assert.equal(ending(message), "Stopped.");
});

test("a stored conversation that is broken or hostile loses only what is wrong", () => {
  assert.deepEqual(restore("{"), []);
  assert.deepEqual(restore('{"length": 3}'), []);
  assert.deepEqual(restore("null"), []);
  const saved = [null, 3, { role: "system", content: "x" }, { role: "user" }, { role: "user", content: "ok" },
    { role: "assistant", content: "a", calls: [null, { name: 3 }], usage: { prompt: -1 }, timing: { first: "x" }, failure: { title: 1 } }];
  const [user, answer, ...rest] = restore(JSON.stringify(saved));
  assert.deepEqual(rest, []);
  assert.deepEqual(user, userMessage("ok"));
  assert.equal(answer.calls.length, 2);
  assert.equal(answer.usage.prompt, 0);
  assert.equal(answer.timing.first, null);
  assert.equal(answer.failure, null);
});

test("durations are short words", () => {
  assert.deepEqual([4, 940, 1234, 61_500].map(duration), ["0.00 s", "0.94 s", "1.2 s", "1 min 1 s"]);
});

import assert from "node:assert/strict";
import { test } from "node:test";

import { assistantMessage, userMessage } from "../src/conversation.js";
import { complaint, DEFAULTS, requestBody, restoreSettings } from "../src/request.js";

const sent = (messages, settings = {}) =>
  JSON.parse(JSON.stringify(requestBody(messages, { ...DEFAULTS, ...settings }, "demo")));

function answer(fields) {
  return { ...assistantMessage(), finish: "stop", ...fields };
}

const call = (fields) => ({ index: 0, id: "call_1", name: "f", arguments: "{}", result: null, ...fields });

test("with nothing set a request asks for nothing but a stream and its usage", () => {
  assert.deepEqual(sent([userMessage("hi")]), {
    model: "demo",
    messages: [{ role: "user", content: "hi" }],
    stream: true,
    stream_options: { include_usage: true },
    enable_thinking: true,
  });
});

test("each setting has its field", () => {
  const tools = [{ type: "function", function: { name: "f" } }];
  const body = sent([userMessage("hi")], {
    system: "Be brief.", temperature: "0", topP: "0.9", maxTokens: "64",
    thinkingBudget: "128", tools: JSON.stringify(tools),
  });
  assert.deepEqual(body.messages[0], { role: "system", content: "Be brief." });
  assert.equal(body.temperature, 0);
  assert.equal(body.top_p, 0.9);
  assert.equal(body.max_tokens, 64);
  assert.equal(body.thinking_budget, 128);
  assert.deepEqual(body.tools, tools);
});

test("without thinking there is no budget for it", () => {
  const body = sent([userMessage("hi")], { thinking: false, thinkingBudget: "128" });
  assert.equal(body.enable_thinking, false);
  assert.ok(!("thinking_budget" in body));
});

test("answers go back with their thinking, calls and results", () => {
  const messages = [
    userMessage("Weather?"),
    answer({ reasoning: "A tool.", calls: [call({ result: "sunny" })], finish: "tool_calls" }),
    answer({ content: "It is sunny." }),
  ];
  assert.deepEqual(sent(messages).messages, [
    { role: "user", content: "Weather?" },
    {
      role: "assistant",
      content: "",
      reasoning_content: "A tool.",
      tool_calls: [{ id: "call_1", type: "function", function: { name: "f", arguments: "{}" } }],
    },
    { role: "tool", tool_call_id: "call_1", content: "sunny" },
    { role: "assistant", content: "It is sunny." },
  ]);
});

test("answers that never came, and calls that were cut off, do not go back", () => {
  const messages = [
    userMessage("a"),
    answer({ failure: { title: "Busy.", detail: "" } }),
    answer({ content: "x", calls: [call({ arguments: '{"a": ' })] }),
  ];
  assert.deepEqual(sent(messages).messages, [
    { role: "user", content: "a" },
    { role: "assistant", content: "x" },
  ]);
});

test("settings that the server would refuse are refused in words", () => {
  for (const [name, value] of [
    ["temperature", "2.1"], ["temperature", "-1"], ["temperature", "warm"], ["temperature", "Infinity"],
    ["topP", "0"], ["topP", "1.5"], ["maxTokens", "0"], ["maxTokens", "1.5"],
    ["thinkingBudget", "-1"], ["tools", "["], ["tools", "{}"], ["tools", "[{}]"], ["tools", "[null]"],
  ]) {
    assert.match(complaint(name, value) ?? "", /^[A-Z].*\.$/, `${name} ${value}`);
  }
  for (const [name, value] of [
    ["temperature", ""], ["temperature", "0"], ["temperature", " 0.7 "], ["topP", "1"],
    ["maxTokens", "1"], ["thinkingBudget", "0"], ["tools", ""], ["tools", "[]"], ["system", "x"],
  ]) {
    assert.equal(complaint(name, value), null, `${name} ${value}`);
  }
});

test("stored settings come back, and broken ones as defaults", () => {
  const settings = { ...DEFAULTS, temperature: "0.5", thinking: false, system: "x" };
  assert.deepEqual(restoreSettings(JSON.stringify(settings)), settings);
  const broken = { temperature: 3, topP: "9", thinking: "no", tools: "[{}]", other: 1 };
  assert.deepEqual(restoreSettings(JSON.stringify(broken)), DEFAULTS);
  for (const json of ["", "null", "[]", "3"]) assert.deepEqual(restoreSettings(json), DEFAULTS);
});

// The real OpenAI client for Node against a server with the demo model.
//
// Usage: node openai_client.mjs BASE_URL API_KEY
//
// Every check prints its name; the first that fails ends the script.

import assert from "node:assert/strict";

import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const model = "demo";
const capital = "What is the capital of Japan?";
const answer = "The capital of Japan is Tokyo.";
const weather = { role: "user", content: "What is the weather in Lisbon?" };
const parameters = {
  type: "object",
  properties: {
    city: { type: "string" },
    unit: { type: "string", enum: ["celsius", "fahrenheit"] },
  },
  required: ["city", "unit"],
};
const description = "Get the current weather for a city.";
const tool = { name: "get_weather", description, parameters };
const result = JSON.stringify({
  city: "Lisbon", temperature: 21, unit: "celsius", condition: "sunny",
});

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const greedy = { model, temperature: 0 };
const chat = (messages, fields) => ({ ...greedy, reasoning_effort: "none", messages, ...fields });
const respond = (input, fields) => ({ ...greedy, reasoning: { effort: "none" }, input, ...fields });

async function a_chat_completion_answers_and_streams() {
  const messages = [{ role: "user", content: capital }];
  const whole = await client.chat.completions.create(chat(messages));
  assert.equal(whole.choices[0].message.content, answer);
  let text = "";
  const options = { stream: true, stream_options: { include_usage: true } };
  let usage;
  for await (const chunk of await client.chat.completions.create(chat(messages, options))) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, answer);
  assert.deepEqual(usage, whole.usage);
}

async function a_chat_calls_a_tool_and_uses_its_result() {
  const tools = [{ type: "function", function: tool }];
  const stream = client.chat.completions.stream(chat([weather], { tools }));
  const { message, finish_reason } = (await stream.finalChatCompletion()).choices[0];
  assert.equal(finish_reason, "tool_calls");
  const [call] = message.tool_calls;
  assert.equal(JSON.parse(call.function.arguments).city, "Lisbon");
  const messages = [weather, message, { role: "tool", tool_call_id: call.id, content: result }];
  const whole = await client.chat.completions.create(chat(messages, { tools }));
  assert.match(whole.choices[0].message.content, /21/);
}

async function a_chat_s_demanded_call_gets_its_result() {
  const tools = [{ type: "function", function: tool }];
  for (const reasoning_effort of ["none", "high"]) {
    const demand = { tools, reasoning_effort, tool_choice: "required" };
    const stream = client.chat.completions.stream(chat([weather], demand));
    const whole = await client.chat.completions.create(chat([weather], demand));
    for (const { choices } of [whole, await stream.finalChatCompletion()]) {
      const [{ message, finish_reason }] = choices;
      assert.equal(finish_reason, "tool_calls");
      const [call] = message.tool_calls;
      assert.ok(parameters.properties.unit.enum.includes(JSON.parse(call.function.arguments).unit));
      const messages = [weather, message, { role: "tool", tool_call_id: call.id, content: result }];
      const answer = await client.chat.completions.create(chat(messages, { tools }));
      assert.match(answer.choices[0].message.content, /21/);
      const again = client.chat.completions.stream(chat(messages, { tools }));
      assert.equal(await again.finalContent(), answer.choices[0].message.content);
    }
  }
}

async function a_response_answers_and_streams() {
  const whole = await client.responses.create(respond(capital));
  assert.equal(whole.output_text, answer);
  let text = "";
  let number = 0;
  let last;
  for await (const event of await client.responses.create(respond(capital, { stream: true }))) {
    assert.equal(event.sequence_number, number++);
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.equal(text, answer);
  assert.equal(last.type, "response.completed");
  assert.deepEqual(last.response.usage, whole.usage);
}

async function a_response_calls_a_tool_and_uses_its_result() {
  const tools = [{ type: "function", strict: false, ...tool }];
  const stream = client.responses.stream(respond([weather], { tools }));
  const response = await stream.finalResponse();
  const call = response.output.find((item) => item.type === "function_call");
  assert.equal(JSON.parse(call.arguments).city, "Lisbon");
  const { parsed_arguments, ...sent } = call;
  const output = { type: "function_call_output", call_id: call.call_id, output: result };
  const whole = await client.responses.create(respond([weather, sent, output], { tools }));
  assert.match(whole.output_text, /21/);
}

async function a_response_s_demanded_call_gets_its_result() {
  const tools = [{ type: "function", strict: false, ...tool }];
  for (const effort of ["none", "high"]) {
    const demand = { tools, reasoning: { effort }, tool_choice: "required" };
    const stream = client.responses.stream(respond([weather], demand));
    const whole = await client.responses.create(respond([weather], demand));
    for (const { output } of [whole, await stream.finalResponse()]) {
      // What the client itself adds to the items of a stream does not go back.
      const items = output.map(({ parsed_arguments, ...item }) => item);
      const call = items.at(-1);
      assert.equal(call.type, "function_call");
      assert.ok(parameters.properties.unit.enum.includes(JSON.parse(call.arguments).unit));
      items.push({ type: "function_call_output", call_id: call.call_id, output: result });
      const answer = await client.responses.create(respond([weather, ...items], { tools }));
      assert.match(answer.output_text, /21/);
      const again = client.responses.stream(respond([weather, ...items], { tools }));
      assert.equal((await again.finalResponse()).output_text, answer.output_text);
    }
  }
}

async function mistakes_raise_the_clients_own_errors() {
  const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(client.responses.create(respond(capital, { background: true })), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "background");
    return true;
  });
  await assert.rejects(stranger.responses.create(respond(capital)), OpenAI.AuthenticationError);
  await assert.rejects(client.responses.retrieve("resp_1"), OpenAI.NotFoundError);
}

for (const check of [
  a_chat_completion_answers_and_streams,
  a_chat_calls_a_tool_and_uses_its_result,
  a_chat_s_demanded_call_gets_its_result,
  a_response_answers_and_streams,
  a_response_calls_a_tool_and_uses_its_result,
  a_response_s_demanded_call_gets_its_result,
  mistakes_raise_the_clients_own_errors,
]) {
  await check();
  console.log(check.name);
}

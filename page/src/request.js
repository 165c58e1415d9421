// From settings and messages to the body of a request.

import { isEmpty, parseArguments } from "./conversation.js";

/** What a request says when the user has set nothing: next to nothing. */
export const DEFAULTS = {
  system: "",
  temperature: "",
  topP: "",
  maxTokens: "",
  thinking: true,
  thinkingBudget: "",
  tools: "",
};

/** The numbers a user may set, each as typed or empty. */
const NUMBERS = {
  temperature: { label: "Temperature", min: 0, max: 2 },
  topP: { label: "Top p", min: 0, max: 1 },
  maxTokens: { label: "Longest answer", min: 1, max: 10_000_000, whole: true },
  thinkingBudget: { label: "Thinking budget", min: 0, max: 10_000_000, whole: true },
};

/** What is wrong with a setting, in words, or null. */
export function complaint(name, value) {
  if (name === "tools") return toolsComplaint(value);
  const rule = NUMBERS[name];
  if (!rule || value.trim() === "") return null;
  const number = Number(value);
  if (!Number.isFinite(number) || number < rule.min || number > rule.max) {
    return `${rule.label} must be between ${rule.min} and ${rule.max}.`;
  }
  if (name === "topP" && number === 0) return `${rule.label} must be above 0.`;
  return rule.whole && !Number.isInteger(number) ? `${rule.label} must be a whole number.` : null;
}

function toolsComplaint(value) {
  if (value.trim() === "") return null;
  let tools;
  try {
    tools = JSON.parse(value);
  } catch (error) {
    return `Tools are not valid JSON: ${error.message}.`;
  }
  if (!Array.isArray(tools)) return "Tools must be a JSON array.";
  const wrong = tools.findIndex((tool) => typeof tool?.function?.name !== "string");
  if (wrong >= 0) return `Tool ${wrong + 1} has no function.name.`;
  return null;
}

/** Settings out of what was stored: unknown names and wrong types are left out. */
export function restoreSettings(json) {
  const settings = { ...DEFAULTS };
  let saved;
  try {
    saved = JSON.parse(json);
  } catch {
    return settings;
  }
  for (const name of Object.keys(DEFAULTS)) {
    const value = saved?.[name];
    if (typeof value === typeof DEFAULTS[name] && !(value !== "" && complaint(name, String(value)))) {
      settings[name] = value;
    }
  }
  return settings;
}

/** The body of a request that continues `messages`. */
export function requestBody(messages, settings, model) {
  const number = (name) => (settings[name].trim() === "" ? undefined : Number(settings[name]));
  const tools = settings.tools.trim() === "" ? [] : JSON.parse(settings.tools);
  // What is undefined does not go out: the server has defaults of its own.
  return {
    model,
    messages: wireMessages(messages, settings.system),
    stream: true,
    stream_options: { include_usage: true },
    temperature: number("temperature"),
    top_p: number("topP"),
    max_tokens: number("maxTokens"),
    enable_thinking: settings.thinking,
    thinking_budget: settings.thinking ? number("thinkingBudget") : undefined,
    tools: tools.length > 0 ? tools : undefined,
  };
}

function wireMessages(messages, system) {
  const wire = system.trim() === "" ? [] : [{ role: "system", content: system }];
  for (const message of messages) {
    if (message.role === "user") wire.push({ role: "user", content: message.content });
    else if (!isEmpty(message)) wire.push(...wireAnswer(message));
  }
  return wire;
}

function wireAnswer(message) {
  // A call that was cut off cannot be told again.
  const calls = message.calls.filter((call) => parseArguments(call) !== null);
  const answer = { role: "assistant", content: message.content };
  if (message.reasoning) answer.reasoning_content = message.reasoning;
  if (calls.length > 0) {
    answer.tool_calls = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  const results = calls
    .filter((call) => call.result !== null)
    .map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result }));
  return [answer, ...results];
}

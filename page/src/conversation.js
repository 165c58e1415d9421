// What was said: messages as plain data, and how the parts of an answer join.
//
// A message is one of
//   { role: "user", content }
//   { role: "assistant", content, reasoning, calls, finish, usage, speed, timing, failure }
// with `calls` of { index, id, name, arguments, result }, `finish` null until
// the server says why the answer ended ("stop", "length", "tool_calls"; this
// page adds "aborted"), `usage` as the server counts, `speed` as it measured, in
// tokens per second, `timing` in milliseconds since the request was sent, and `failure` of { title, detail }.

/** Calls an answer may hold before the rest is dropped: a broken server must not fill memory. */
const MAX_CALLS = 128;

/** Milliseconds of an answer below which what this page sees of its speed says nothing: chunks may have come in one piece. */
const SHORTEST = 50;

/** Tokens after the first from which the server's own clock gives a speed. */
const FEWEST = 2;

export function userMessage(content) {
  return { role: "user", content };
}

export function assistantMessage() {
  return {
    role: "assistant",
    content: "",
    reasoning: "",
    calls: [],
    finish: null,
    usage: null,
    speed: null,
    timing: { first: null, last: null, thought: null },
    failure: null,
  };
}

/**
 * Adds one chunk of a streamed answer to `message`; `at` is the time in
 * milliseconds since the request was sent.
 */
export function applyChunk(message, chunk, at) {
  if (chunk.usage) message.usage = readUsage(chunk.usage);
  if (chunk.timings) message.speed = readSpeed(chunk.timings);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  const reasoning = text(delta.reasoning_content);
  const content = text(delta.content);
  const calls = Array.isArray(delta.tool_calls) ? delta.tool_calls : [];
  if (reasoning || content || calls.length > 0) {
    message.timing.first ??= at;
    message.timing.last = at;
  }
  if (message.reasoning && !reasoning && (content || calls.length > 0)) {
    message.timing.thought ??= at - message.timing.first;
  }
  message.reasoning += reasoning;
  message.content += content;
  for (const call of calls) applyCall(message.calls, call);
  if (typeof choice.finish_reason === "string") message.finish = choice.finish_reason;
}

function applyCall(calls, delta) {
  const index = Number.isInteger(delta.index) ? delta.index : 0;
  let call = calls.find((known) => known.index === index);
  if (!call) {
    if (calls.length >= MAX_CALLS) return;
    call = { index, id: "", name: "", arguments: "", result: null };
    calls.push(call);
  }
  call.id ||= text(delta.id);
  call.name ||= text(delta.function?.name);
  call.arguments += text(delta.function?.arguments);
}

function text(value) {
  return typeof value === "string" ? value : "";
}

function readUsage(usage) {
  return {
    prompt: count(usage.prompt_tokens),
    completion: count(usage.completion_tokens),
    reasoning: count(usage.completion_tokens_details?.reasoning_tokens),
    cached: count(usage.prompt_tokens_details?.cached_tokens),
  };
}

function readSpeed({ predicted_per_second: speed, predicted_n: tokens }) {
  return Number.isFinite(speed) && speed > 0 && tokens >= FEWEST ? speed : null;
}

function count(value) {
  return Number.isSafeInteger(value) && value >= 0 ? value : 0;
}

/** Whether an answer holds anything worth keeping or sending back. */
export function isEmpty(message) {
  return !message.content && !message.reasoning && message.calls.length === 0;
}

/** The arguments of a call as an object, or null if they are not one (cut off, say). */
export function parseArguments(call) {
  try {
    const value = JSON.parse(call.arguments);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** Whether the calls of an answer wait for results. */
export function waitsForResults(message) {
  return (
    message?.role === "assistant" &&
    message.finish === "tool_calls" &&
    message.calls.some((call) => call.result === null)
  );
}

/**
 * Tokens per second after the first one, or null where too little is known: as
 * the server measured them, or else as this page saw them arrive, with what the
 * network does.
 */
export function tokensPerSecond(message) {
  if (message.speed !== null) return message.speed;
  const { first, last } = message.timing;
  const tokens = message.usage?.completion ?? 0;
  if (first === null || last - first < SHORTEST || tokens < 2) return null;
  return ((tokens - 1) * 1000) / (last - first);
}

/** Messages out of what `JSON.stringify` made of them; anything malformed is left out. */
export function restore(json) {
  let saved;
  try {
    saved = JSON.parse(json);
  } catch {
    return [];
  }
  if (!Array.isArray(saved)) return [];
  return saved.map(restoreMessage).filter((message) => message !== null);
}

function restoreMessage(saved) {
  if (typeof saved?.content !== "string") return null;
  if (saved.role === "user") return userMessage(saved.content);
  if (saved.role !== "assistant") return null;
  const message = assistantMessage();
  message.content = saved.content;
  message.reasoning = text(saved.reasoning);
  // What was still streaming when the page went away has no end of its own.
  message.finish = text(saved.finish) || "aborted";
  if (saved.usage) {
    for (const key of ["prompt", "completion", "reasoning", "cached"]) {
      message.usage ??= {};
      message.usage[key] = count(saved.usage[key]);
    }
  }
  if (Number.isFinite(saved.speed) && saved.speed > 0) message.speed = saved.speed;
  for (const key of ["first", "last", "thought"]) {
    const value = saved.timing?.[key];
    if (Number.isFinite(value)) message.timing[key] = value;
  }
  if (typeof saved.failure?.title === "string") {
    message.failure = { title: saved.failure.title, detail: text(saved.failure.detail) };
  }
  for (const call of Array.isArray(saved.calls) ? saved.calls : []) {
    message.calls.push({
      index: message.calls.length,
      id: text(call?.id),
      name: text(call?.name),
      arguments: text(call?.arguments),
      result: typeof call?.result === "string" ? call.result : null,
    });
  }
  return message;
}

// Counts and times as short words.

import { tokensPerSecond } from "./conversation.js";

export function duration(milliseconds) {
  const seconds = milliseconds / 1000;
  if (seconds < 1) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

function tokens(count) {
  return `${count.toLocaleString("en")} ${count === 1 ? "token" : "tokens"}`;
}

/** What is known of an answer, most telling first: `{ text, title, lesser }` of each figure. */
export function answerFigures(message, context) {
  const figures = [];
  const { usage, timing } = message;
  const speed = tokensPerSecond(message);
  if (speed !== null) {
    const shown = speed < 100 ? speed.toFixed(1) : Math.round(speed).toLocaleString("en");
    figures.push({ text: `${shown} tokens/s`, title: `Speed after the first token, as ${message.speed === null ? "this page saw" : "the server measured"} it` });
  }
  if (usage) figures.push({ text: tokens(usage.completion), title: "Tokens of the answer, with its thinking" });
  if (timing.first !== null) {
    const text = `first after ${duration(timing.first)}`;
    figures.push({ text, title: "Time to the first token", lesser: true });
  }
  if (usage) {
    const all = usage.prompt + usage.completion;
    const of = context ? ` of ${context.toLocaleString("en")}` : "";
    figures.push({
      text: `${all.toLocaleString("en")}${of} in context`,
      title: `Prompt ${tokens(usage.prompt)}, of which ${usage.cached} were cached; answer ${tokens(usage.completion)}`,
    });
  }
  return figures;
}

/** How an answer ended, where that is worth a word. */
export function ending(message) {
  if (message.finish === "aborted") return "Stopped.";
  if (message.finish === "length") return "Cut off: the longest allowed answer was reached.";
  if (message.finish === "content_filter") return "Cut off by a filter.";
  return null;
}

/** The heading of the folded thinking. */
export function thinkingLabel(message, running) {
  const over = message.content !== "" || message.calls.length > 0 || !running;
  if (!over) return "Thinking…";
  const { thought, first, last } = message.timing;
  const time = thought ?? (first === null ? null : last - first);
  const took = time === null ? "Thought" : `Thought for ${duration(time)}`;
  const reasoning = message.usage?.reasoning ?? 0;
  return reasoning > 0 ? `${took} · ${tokens(reasoning)}` : took;
}

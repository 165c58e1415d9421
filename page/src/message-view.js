// How one message looks. The page's parts that change while an answer streams
// are written in place, so that what is selected or unfolded stays so.

import { parseArguments, waitsForResults } from "./conversation.js";
import { copyButton, element, icon } from "./dom.js";
import { answerFigures, ending, thinkingLabel } from "./figures.js";
import { Prose } from "./prose.js";

/** The view of a user's message. */
export class UserView {
  #message;
  #hooks;
  #actions = element("div", { class: "actions" });

  /** `hooks`: `announce(text)` and `onEdit()`. */
  constructor(message, hooks) {
    this.#message = message;
    this.#hooks = hooks;
    this.node = element(
      "article",
      { class: "message user" },
      element("h2", { class: "offscreen" }, "You"),
      element("div", { class: "bubble" }, message.content),
      this.#actions,
    );
    this.setLast(false);
  }

  /** Only the last message can be edited. */
  setLast(last) {
    const { announce, onEdit } = this.#hooks;
    const actions = [copyButton(() => this.#message.content, "Copy message", announce)];
    if (last) actions.push(labelled("edit", "Edit", "Edit message", onEdit));
    this.#actions.replaceChildren(...actions);
  }
}

function labelled(drawing, caption, label, onclick) {
  const attributes = { type: "button", class: "quiet", "aria-label": label, onclick };
  return element("button", attributes, icon(drawing), element("span", {}, caption));
}

/** The view of an answer, from its first moment to its last. */
export class AnswerView {
  #message;
  #hooks;
  #prose;
  #thinking;
  #thinkingText = document.createTextNode("");
  #thinkingLabel = element("span");
  #content = element("div", { class: "prose" });
  #calls = element("div", { class: "calls" });
  #waiting = element("p", { class: "waiting" });
  #foot = element("footer", { class: "foot" });
  #frame = null;
  #earliest = 0;

  /**
   * `hooks`: `markdown`, `announce(text)`, `onRetry()`, `onResults(message)`,
   * and `context()`, the size of the model's context or null.
   */
  constructor(message, hooks) {
    this.#message = message;
    this.#hooks = hooks;
    this.#prose = new Prose(this.#content, hooks.markdown, hooks.announce);
    this.#thinking = element(
      "details",
      { class: "thinking", hidden: true },
      element("summary", {}, this.#thinkingLabel),
      element("div", { class: "thinking-text" }, this.#thinkingText),
    );
    this.node = element(
      "article",
      { class: "message answer", "aria-busy": "true" },
      element("h2", { class: "offscreen" }, "Answer"),
      this.#thinking,
      this.#content,
      this.#calls,
      this.#waiting,
      this.#foot,
    );
    this.progress("Waiting for the model…");
  }

  /** What is going on before the first token. */
  progress(words) {
    if (this.#waiting.textContent !== words) this.#waiting.textContent = words;
  }

  /** Shows the message as it is by the next frame; long ones less often, so that typing stays smooth. */
  update() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      if (performance.now() < this.#earliest) {
        this.update();
        return;
      }
      const start = performance.now();
      this.#show(true);
      const end = performance.now();
      this.#earliest = end + 3 * (end - start);
    });
  }

  /** Shows the message as it ended. */
  finish() {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
    this.#show(false);
    this.node.setAttribute("aria-busy", "false");
  }

  /** The first field for the result of a call, or null where none is asked for. */
  get resultField() {
    return this.#calls.querySelector("textarea");
  }

  /** Only the last answer can be tried again, and takes the results of its calls. */
  setLast(last) {
    this.#foot.replaceChildren(...this.#footing(last));
    const { calls } = this.#message;
    const views = calls.map((call) => callView(call, false));
    const form = last && waitsForResults(this.#message);
    this.#calls.replaceChildren(...(form ? [this.#resultForm(views)] : views));
  }

  #show(running) {
    const message = this.#message;
    this.#thinking.hidden = message.reasoning === "";
    const shown = this.#thinkingText.data;
    // Appending leaves what a reader has selected alone.
    if (message.reasoning.startsWith(shown)) {
      this.#thinkingText.appendData(message.reasoning.slice(shown.length));
    } else {
      this.#thinkingText.data = message.reasoning;
    }
    const label = thinkingLabel(message, running);
    if (this.#thinkingLabel.textContent !== label) this.#thinkingLabel.textContent = label;
    const thinking = running && message.content === "" && message.calls.length === 0;
    this.#thinking.classList.toggle("live", thinking);
    this.#prose.show(message.content, !running);
    if (running) this.#calls.replaceChildren(...message.calls.map((call) => callView(call, true)));
    const silent = message.content === "" && message.reasoning === "" && message.calls.length === 0;
    this.#waiting.hidden = !(running && silent);
  }

  /** Lets the user play the tools: a field for the result of each call. */
  #resultForm(list) {
    const { calls } = this.#message;
    const fields = calls.map((call, index) => {
      const field = element("textarea", { rows: "2", required: true, spellcheck: "false" });
      const label = element("label", { class: "result" }, `Result of ${call.name}`, field);
      list[index].append(label);
      return field;
    });
    const send = element("button", { type: "submit", class: "plain-button" }, "Send results");
    const keys = element("p", { class: "keys" }, element("kbd", {}, "Ctrl"), " ", element("kbd", {}, "Enter"), " sends the results");
    const onsubmit = (event) => {
      event.preventDefault();
      calls.forEach((call, index) => {
        call.result = fields[index].value;
      });
      this.#hooks.onResults(this.#message);
    };
    const form = element("form", { class: "results", onsubmit }, ...list, send, keys);
    form.addEventListener("keydown", (event) => {
      // Results have lines of their own: Enter starts one.
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    return form;
  }

  #footing(last) {
    const message = this.#message;
    const parts = [];
    if (message.failure) {
      const { title, detail } = message.failure;
      const words = element("div", { class: "failure", role: "group", "aria-label": "Error" });
      words.append(element("strong", {}, title), " ", detail);
      parts.push(words);
    }
    const end = ending(message);
    if (end) parts.push(element("p", { class: "ending" }, end));
    const line = element("div", { class: "foot-line" });
    const actions = element("div", { class: "actions" });
    if (message.content) {
      actions.append(copyButton(() => message.content, "Copy answer", this.#hooks.announce));
    }
    if (last) {
      const caption = message.failure ? "Try again" : "Retry";
      actions.append(labelled("retry", caption, `${caption}: answer anew`, this.#hooks.onRetry));
    }
    line.append(actions);
    const figures = answerFigures(message, this.#hooks.context());
    if (figures.length > 0) {
      const list = figures.map(({ text, title, lesser }) =>
        element("li", { title, class: lesser ? "lesser" : null }, text),
      );
      line.append(element("ul", { class: "figures", "aria-label": "Figures" }, ...list));
    }
    if (line.textContent !== "") parts.push(line);
    return parts;
  }
}

function callView(call, running) {
  const parsed = parseArguments(call);
  const shown = parsed === null ? call.arguments : JSON.stringify(parsed, null, 2);
  const note = parsed === null && !running ? " (cut off)" : "";
  const name = call.name || "…";
  const view = element(
    "section",
    { class: "call", "aria-label": `Tool call ${name}` },
    element("p", { class: "call-name" }, icon("tool"), element("code", {}, name), note),
    element("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" }, element("code", {}, shown)),
  );
  if (call.result !== null) {
    view.append(
      element("p", { class: "call-name" }, "Result"),
      element("pre", { tabindex: "0", role: "group", "aria-label": "Result" }, element("code", {}, call.result)),
    );
  }
  return view;
}

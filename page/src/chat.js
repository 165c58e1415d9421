// The conversation on the screen, and the one request that may be running.

import {
  applyChunk,
  assistantMessage,
  isEmpty,
  userMessage,
} from "./conversation.js";
import { Failure } from "./failure.js";
import { AnswerView, UserView } from "./message-view.js";
import { requestBody } from "./request.js";
import { saveConversation } from "./store.js";
import { progressWords, streamAnswer } from "./stream.js";

/** Characters of an answer that are read out when it is complete. */
const READ_OUT = 1000;

/** Owns the messages, their views and the running request. */
export class Chat {
  #messages = [];
  #views = [];
  #running = null;
  #list;
  #hooks;

  /**
   * `list` is the element for the messages. `hooks`: `markdown`,
   * `announce(text)`, `settings()`, `key()`, `model()`, `context()`,
   * `changed(chat)` after each change, `edit(text)`, `failed(failure)`,
   * `resultsWanted(field)` when an answer calls tools, and `unsaved()` when the browser does not keep the conversation.
   */
  constructor(list, hooks) {
    this.#list = list;
    this.#hooks = hooks;
  }

  get running() {
    return this.#running !== null;
  }

  get messages() {
    return this.#messages;
  }

  /** Shows `messages` in place of what was there. */
  load(messages) {
    this.stop();
    this.#messages = messages;
    this.#views = [];
    this.#list.replaceChildren();
    for (const message of messages) {
      const view = this.#add(message);
      if (message.role === "assistant") view.finish();
    }
    this.#settle();
  }

  /** Replaces the conversation and keeps what replaced it. */
  replace(messages) {
    this.load(messages);
    this.#save();
  }

  /** Says `text`; with `instead`, in place of the last message of the user. */
  async send(text, instead) {
    if (this.running) return;
    if (instead) this.#cut(this.#lastUser());
    this.#append(userMessage(text));
    await this.#answer();
  }

  /** Asks for the last answer anew. */
  async retry() {
    if (this.running || this.#messages.at(-1)?.role !== "assistant") return;
    this.#cut(this.#messages.length - 1);
    await this.#answer();
  }

  /** Ends the running answer; what has come stays. */
  stop() {
    this.#running?.abort();
  }

  /** Keeps what has come so far, for a page that may be going away. */
  saveUnfinished() {
    if (this.running) this.#save();
  }

  /** Ends the running answer on a page that is going away, before the browser does, which would look like a failure. */
  leave() {
    this.saveUnfinished();
    this.stop();
  }

  async #answer() {
    const message = assistantMessage();
    const { key, settings, model } = this.#hooks;
    const body = requestBody(this.#messages, settings(), model());
    const view = this.#append(message);
    const controller = new AbortController();
    this.#running = controller;
    this.#settle();
    this.#save();
    const start = performance.now();
    let failure = null;
    try {
      await streamAnswer(body, {
        key: key(),
        signal: controller.signal,
        onChunk: (chunk) => {
          applyChunk(message, chunk, performance.now() - start);
          view.update();
        },
        onComment: (comment) => {
          const words = progressWords(comment);
          if (words !== null) view.progress(words);
        },
      });
    } catch (error) {
      if (!controller.signal.aborted) failure = asFailure(error);
    }
    // What was replaced meanwhile is nobody's concern any more.
    if (this.#running === controller) this.#running = null;
    if (!this.#messages.includes(message)) return;
    message.finish ??= failure ? "error" : "aborted";
    if (failure) message.failure = { title: failure.title, detail: failure.detail };
    view.finish();
    this.#settle();
    this.#save();
    if (view.resultField) this.#hooks.resultsWanted(view.resultField);
    this.#readOut(message);
    if (failure) this.#hooks.failed(failure);
  }

  #readOut(message) {
    const { announce } = this.#hooks;
    if (message.failure) announce(`${message.failure.title} ${message.failure.detail}`);
    else if (message.finish === "aborted") announce("Stopped.");
    else if (message.calls.length > 0) {
      announce(`The model calls ${message.calls.map((call) => call.name).join(", ")}.`);
    } else if (isEmpty(message)) announce("The answer is empty.");
    else {
      const text = message.content;
      announce(`Answer: ${text.length > READ_OUT ? `${text.slice(0, READ_OUT)}…` : text}`);
    }
  }

  #append(message) {
    this.#messages.push(message);
    return this.#add(message);
  }

  #add(message) {
    const view = message.role === "user" ? this.#userView(message) : this.#answerView(message);
    this.#views.push(view);
    this.#list.append(view.node);
    return view;
  }

  #userView(message) {
    const { announce, edit } = this.#hooks;
    return new UserView(message, { announce, onEdit: () => edit(message.content) });
  }

  #answerView(message) {
    const { announce, context, markdown } = this.#hooks;
    return new AnswerView(message, {
      announce,
      context,
      markdown,
      onRetry: () => this.retry(),
      onResults: () => this.#answer(),
    });
  }

  #cut(length) {
    this.#messages.length = length;
    for (const view of this.#views.splice(length)) view.node.remove();
  }

  #lastUser() {
    return Math.max(0, this.#messages.findLastIndex((message) => message.role === "user"));
  }

  /** Gives the last messages, and only them, their buttons. */
  #settle() {
    const user = this.#lastUser();
    this.#views.forEach((view, index) => {
      const streaming = this.running && index === this.#views.length - 1;
      if (streaming) return;
      const last = this.#messages[index].role === "user" ? user : this.#views.length - 1;
      view.setLast(!this.running && index === last);
    });
    this.#hooks.changed(this);
  }

  #save() {
    if (!saveConversation(this.#messages)) this.#hooks.unsaved();
  }
}

function asFailure(error) {
  if (error instanceof Failure) return error;
  console.error(error);
  return new Failure("This page failed.", String(error?.message ?? error));
}

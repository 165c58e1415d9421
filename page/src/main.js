// The page: puts its parts together and listens to the user.

import { Chat } from "./chat.js";
import { createMarkdown } from "./markdown.js";
import { Notices } from "./notices.js";
import { HealthWatch, servedModel } from "./server.js";
import { keyDialog, settingsDialog } from "./settings-dialog.js";
import * as store from "./store.js";

const $ = (id) => document.getElementById(id);
const input = $("input");

let settings = store.loadSettings();
let key = store.loadKey();
let model = null;
let editing = false;
let cleared = null;
/** Whether the view follows the answer as it grows. */
let following = true;
let announced = false;

const notices = new Notices($("notice"), $("notice-text"), $("notice-detail"), $("notice-action"));

function announce(text) {
  // The same words twice would not be read a second time.
  announced = !announced;
  $("announcement").textContent = announced ? text : `${text}\u00a0`;
}

const chat = new Chat($("messages"), {
  announce,
  markdown: createMarkdown(window),
  settings: () => settings,
  key: () => key,
  model: () => model?.name ?? "lily",
  context: () => model?.context ?? null,
  changed,
  edit: startEditing,
  failed(failure) {
    if (failure.remedy === "key") askKey.ask(key !== "");
    else watch.ask();
  },
  resultsWanted(field) {
    // Whoever is writing or reading something else meanwhile is left alone.
    const { activeElement } = document;
    const free = activeElement === document.body || (activeElement === input && input.value === "");
    if (free) focusOn(field);
  },
  unsaved() {
    notices.set("store", "This browser does not keep the conversation: its storage is full or off.");
  },
});

const watch = new HealthWatch(({ state, progress }) => {
  const detail = progress === null ? "" : `${Math.floor(progress * 100)} %`;
  const words = {
    ready: null,
    loading: "The model is loading…",
    dead: "The model has stopped. The server must be started again.",
    stopping: "The server is shutting down.",
    unreachable: "The server cannot be reached.",
  };
  notices.set("health", words[state], { detail });
  if (state === "ready" && model === null) meetModel();
});

const askKey = keyDialog((given) => {
  key = given;
  store.saveKey(key);
  meetModel();
  if (chat.messages.at(-1)?.failure) chat.retry();
});

const settingsForm = settingsDialog({
  current: () => ({ settings, key }),
  save(changedSettings, changedKey) {
    settings = changedSettings;
    if (!store.saveSettings(settings)) {
      notices.set("store", "This browser does not keep the settings: its storage is full or off.");
    }
    if (changedKey !== key) {
      key = changedKey;
      store.saveKey(key);
      meetModel();
    }
    announce("Settings saved.");
    // A question for a new key has the focus for itself.
    if (!document.querySelector("dialog[open]")) focusInput();
  },
});

async function meetModel() {
  const met = await servedModel(key);
  if (met === "unauthorized") {
    askKey.ask(key !== "");
    return;
  }
  if (met === null) return;
  model = met;
  $("model").textContent = model.name;
  document.title = `${model.name} · lily`;
}

function changed() {
  const { running, messages } = chat;
  $("empty").hidden = messages.length > 0;
  $("clear").disabled = messages.length === 0;
  const stopHadFocus = document.activeElement === $("stop");
  $("stop").hidden = !running;
  $("send").hidden = running;
  if (stopHadFocus && !running) focusInput();
  settleInput();
  if (following) scrollToEnd();
}

/** Puts the focus where one would go on typing. */
function focusInput() {
  focusOn(input);
}

/** Focuses a field, unless that opens a keyboard over the screen. */
function focusOn(field) {
  if (!matchMedia("(pointer: coarse)").matches) field.focus();
}

function settleInput() {
  $("send").disabled = input.value.trim() === "";
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

function submit() {
  const text = input.value;
  if (text.trim() === "" || chat.running) return;
  const instead = editing;
  stopEditing();
  forgetCleared();
  input.value = "";
  following = true;
  chat.send(text, instead);
}

function startEditing(text) {
  editing = true;
  input.value = text;
  settleInput();
  input.focus();
  const cancel = () => {
    input.value = "";
    stopEditing();
    settleInput();
    focusInput();
  };
  notices.set("edit", "Sending replaces your last message.", { caption: "Cancel", action: cancel });
}

function stopEditing() {
  editing = false;
  notices.set("edit", null);
}

function clear() {
  cleared = [...chat.messages];
  stopEditing();
  chat.replace([]);
  const undo = () => {
    const messages = cleared;
    forgetCleared();
    chat.replace(messages);
    focusInput();
  };
  notices.set("cleared", "The conversation was cleared.", { caption: "Undo", action: undo });
  focusInput();
}

function forgetCleared() {
  cleared = null;
  notices.set("cleared", null);
}

function scrollToEnd() {
  scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
}

function atEnd() {
  const { scrollHeight } = document.documentElement;
  return scrollY + innerHeight >= scrollHeight - 60;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
input.addEventListener("input", settleInput);
input.addEventListener("keydown", (event) => {
  // Enter also confirms what an input method suggests.
  const composing = event.isComposing || event.keyCode === 229;
  if (event.key !== "Enter" || event.shiftKey || composing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (chat.running) chat.stop();
  else if (editing) notices.act("edit");
});
$("stop").addEventListener("click", () => chat.stop());
$("clear").addEventListener("click", clear);
$("open-settings").addEventListener("click", () => settingsForm.open());
for (const example of $("examples").children) {
  example.addEventListener("click", () => {
    input.value = example.textContent;
    submit();
    focusInput();
  });
}
$("to-end").addEventListener("click", () => {
  following = true;
  scrollToEnd();
  focusInput();
});
addEventListener("scroll", () => {
  following = atEnd();
  $("to-end").hidden = following;
}, { passive: true });
const growth = new ResizeObserver(([{ target }]) => {
  // Someone who unfolds something at the end wants to see its beginning.
  const followed = chat.running || target !== $("messages");
  if (following && followed) scrollToEnd();
  $("to-end").hidden = atEnd();
});
growth.observe($("messages"));
growth.observe($("notice"));
document.addEventListener("visibilitychange", () => {
  if (document.hidden) chat.saveUnfinished();
  else watch.ask();
});
addEventListener("pagehide", () => chat.leave());
store.onConversationChanged(() => {
  if (!chat.running) chat.load(store.loadConversation());
});

chat.load(store.loadConversation());
watch.ask();
focusInput();

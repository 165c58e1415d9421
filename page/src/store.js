// What outlives the page: conversation and settings in the browser, the key in this tab alone.

import { restore } from "./conversation.js";
import { restoreSettings } from "./request.js";

const CONVERSATION = "lily.conversation";
const SETTINGS = "lily.settings";
const KEY = "lily.key";

// Browsers may forbid or fill up their storage; the page works without it.
function attempt(action, otherwise) {
  try {
    return action();
  } catch {
    return otherwise;
  }
}

export function loadConversation() {
  return restore(attempt(() => localStorage.getItem(CONVERSATION), null) ?? "[]");
}

/** Whether the conversation could be kept. */
export function saveConversation(messages) {
  return attempt(() => {
    if (messages.length === 0) localStorage.removeItem(CONVERSATION);
    else localStorage.setItem(CONVERSATION, JSON.stringify(messages));
    return true;
  }, false);
}

/** Calls `changed` when another tab has changed the conversation. */
export function onConversationChanged(changed) {
  addEventListener("storage", (event) => {
    if (event.storageArea === localStorage && event.key === CONVERSATION) changed();
  });
}

export function loadSettings() {
  return restoreSettings(attempt(() => localStorage.getItem(SETTINGS), null) ?? "{}");
}

export function saveSettings(settings) {
  return attempt(() => {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
    return true;
  }, false);
}

export function loadKey() {
  return attempt(() => sessionStorage.getItem(KEY), null) ?? "";
}

export function saveKey(key) {
  attempt(() => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)), null);
}

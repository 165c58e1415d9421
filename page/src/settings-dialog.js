// The settings as a form.

import { complaint, DEFAULTS } from "./request.js";

const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the current weather for a city.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" } },
        required: ["city"],
      },
    },
  },
];

/** Wires the dialog. `current()` gives `{ settings, key }`, `save(settings, key)` takes them. */
export function settingsDialog({ current, save }) {
  const dialog = document.getElementById("settings");
  const form = document.getElementById("settings-form");
  const words = document.getElementById("settings-complaint");
  const fields = form.elements;
  const names = Object.keys(DEFAULTS);

  function fill(settings) {
    for (const name of names) {
      if (fields[name].type === "checkbox") fields[name].checked = settings[name];
      else fields[name].value = settings[name];
    }
    fields.thinkingBudget.disabled = !settings.thinking;
    document.getElementById("tools-field").open = settings.tools !== "";
    complain(null, null);
  }

  function complain(name, text) {
    for (const other of names) fields[other].removeAttribute("aria-invalid");
    words.textContent = text ?? "";
    if (name === null) return;
    if (name === "tools") document.getElementById("tools-field").open = true;
    fields[name].setAttribute("aria-invalid", "true");
    fields[name].focus();
  }

  function read() {
    const values = {};
    for (const name of names) {
      const field = fields[name];
      values[name] = field.type === "checkbox" ? field.checked : field.value;
    }
    return values;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const settings = read();
    for (const name of names) {
      const text = typeof settings[name] === "string" ? complaint(name, settings[name]) : null;
      if (text) {
        complain(name, text);
        return;
      }
    }
    dialog.close();
    save(settings, fields.key.value.trim());
  });
  fields.thinking.addEventListener("change", () => {
    fields.thinkingBudget.disabled = !fields.thinking.checked;
  });
  document.getElementById("settings-reset").addEventListener("click", () => fill(DEFAULTS));
  document.getElementById("settings-cancel").addEventListener("click", () => dialog.close());
  document.getElementById("tools-example").addEventListener("click", () => {
    fields.tools.value = JSON.stringify(EXAMPLE, null, 2);
    fields.tools.focus();
  });

  return {
    open() {
      const { settings, key } = current();
      fill(settings);
      fields.key.value = key;
      dialog.showModal();
    },
  };
}

/** Wires the question for a key; `use(key)` is called with what was typed. */
export function keyDialog(use) {
  const dialog = document.getElementById("key-dialog");
  const input = document.getElementById("key-input");
  const words = document.getElementById("key-complaint");
  document.getElementById("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(key)) {
      words.textContent = key === "" ? "Enter the key." : "A key has only visible ASCII characters.";
      input.focus();
      return;
    }
    dialog.close();
    use(key);
  });
  document.getElementById("key-cancel").addEventListener("click", () => dialog.close());
  return {
    /** `refused`: a key was given, and the server does not take it. */
    ask(refused) {
      if (dialog.open) return;
      input.value = "";
      words.textContent = refused ? "The server did not accept that key." : "";
      dialog.showModal();
      input.focus();
    },
  };
}

// Small helpers to make nodes. Text goes in as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. Attributes that are null or false are left out, `onclick` and the
 * like become listeners.
 */
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const ICONS = {
  copy: ["M9 9h10v10H9z", "M15 9V5H5v10h4"],
  check: ["M5 12.5l4.5 4.5L19 7.5"],
  retry: ["M19 12a7 7 0 1 1-2.2-5.1", "M19.5 4v4h-4"],
  edit: ["M5 19l1-4L16 5l3 3L9 18z", "M14 7l3 3"],
  tool: ["M14 7a4 4 0 0 1 5-3l-2.5 2.5 1 1L20 5a4 4 0 0 1-5 5l-8 8-2-2 8-8z"],
};

/** A line drawing of 24 by 24, hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  for (const line of ICONS[name]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", line);
    svg.append(path);
  }
  return svg;
}

/** Puts `text` into the clipboard; false where the browser does not let it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from plain HTTP addresses have no clipboard interface.
    const area = element("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

/** A button that copies what `text()` gives, and says so. */
export function copyButton(text, label, announce) {
  const caption = element("span", {}, "Copy");
  const button = element("button", { type: "button", class: "quiet copy", "aria-label": label });
  const drawing = icon("copy");
  button.append(drawing, caption);
  let timer;
  button.addEventListener("click", async () => {
    const done = await copy(text());
    caption.textContent = done ? "Copied" : "Not copied";
    button.firstChild.replaceWith(icon(done ? "check" : "copy"));
    announce(done ? "Copied." : "The browser did not allow copying.");
    clearTimeout(timer);
    timer = setTimeout(() => {
      caption.textContent = "Copy";
      button.firstChild.replaceWith(drawing);
    }, 2000);
  });
  return button;
}

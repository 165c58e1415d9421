// A text of Markdown that grows: only what changed is made anew.

import { copyButton, element } from "./dom.js";

/** Shows Markdown in `container` as it streams. */
export class Prose {
  #container;
  #markdown;
  #announce;
  #shown = [];

  constructor(container, markdown, announce) {
    this.#container = container;
    this.#markdown = markdown;
    this.#announce = announce;
  }

  /** Shows `text`. With `complete`, blocks that later text gave another meaning are made anew too. */
  show(text, complete) {
    const blocks = this.#markdown.blocks(text);
    let same = 0;
    if (!complete) {
      while (same < blocks.length && blocks[same].raw === this.#shown[same]?.raw) same += 1;
    }
    for (const { nodes } of this.#shown.splice(same)) nodes.forEach((node) => node.remove());
    for (const block of blocks.slice(same)) {
      const fragment = block.nodes();
      this.#dress(fragment);
      const nodes = [...fragment.childNodes];
      this.#container.append(fragment);
      this.#shown.push({ raw: block.raw, nodes });
    }
  }

  /** Gives code a heading with a copy button, and wide things a place to scroll in. */
  #dress(fragment) {
    for (const pre of fragment.querySelectorAll("pre")) {
      const code = pre.textContent.replace(/\n$/, "");
      const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "text";
      const figure = element("div", { class: "code" });
      const name = element("span", { class: "code-language" }, language);
      const button = copyButton(() => code, `Copy code (${language})`, this.#announce);
      pre.replaceWith(figure);
      scrollable(pre, `Code, ${language}`);
      figure.append(element("div", { class: "code-head" }, name, button), pre);
    }
    for (const table of fragment.querySelectorAll("table")) {
      const frame = element("div", { class: "table" });
      table.replaceWith(frame);
      scrollable(frame, "Table");
      frame.append(table);
    }
  }
}

/** Makes what may be wider than the page reachable by keyboard. */
function scrollable(node, label) {
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", label);
}

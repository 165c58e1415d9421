// Markdown from a model, which may say anything, as nodes that can do nothing.
//
// Two locks: the Markdown renderer escapes raw HTML, so that it shows as it was
// written, and what comes out passes a sanitiser that knows only the few
// elements below. The page's content security policy is the third.

import createDOMPurify from "dompurify";
import { Marked } from "marked";

import { highlight } from "./highlight.js";

const SANITISER = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
    "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  // Those that hold no address; the expression below is for the others.
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** Classes that the page's style knows; others could make an answer look like the page itself. */
const CLASSES = /^(?:hljs(?:-[a-z_-]+)?|language-[\w+#-]{1,32}|math|[a-z]+_)$/;

/** Formulas are shown as they are written, so Markdown must not read them. */
const FORMULA = /^(?:\\\((?:[^\\]|\\(?!\))){1,2000}\\\)|\\\[(?:[^\\]|\\(?!\])){1,2000}\\\]|\$\$[^$]{1,2000}\$\$)/;

function escape(text) {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

const renderer = {
  html({ text, block }) {
    const shown = escape(text.trimEnd());
    return block ? `<p>${shown.replaceAll("\n", "<br>")}</p>` : shown;
  },
  image({ href, text }) {
    // Nothing is loaded from elsewhere; whoever wants the picture may follow the link.
    return `<a href="${escape(href)}">${escape(text || href)}</a>`;
  },
  heading({ tokens, depth }) {
    // The page has headings of levels 1 and 2 itself.
    const level = Math.min(depth + 2, 6);
    return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
  },
  code({ text, lang }) {
    const language = /^[\w+#-]{1,32}/.exec(lang ?? "")?.[0].toLowerCase() ?? "";
    const code = highlight(text, language) ?? escape(text);
    return `<pre><code class="hljs language-${language || "text"}">${code}\n</code></pre>`;
  },
  checkbox({ checked }) {
    return checked ? "☑ " : "☐ ";
  },
};

function formula(level) {
  return {
    name: `formula-${level}`,
    level,
    start(text) {
      const at = text.search(level === "block" ? /^ {0,3}(?:\\\[|\$\$)/m : /\\[([]|\$\$/);
      return at < 0 ? undefined : at;
    },
    tokenizer(text) {
      const indent = level === "block" ? /^ {0,3}/.exec(text)[0].length : 0;
      const found = FORMULA.exec(text.slice(indent));
      if (!found || (level === "block" && found[0].startsWith("\\("))) return undefined;
      return { type: `formula-${level}`, raw: text.slice(0, indent) + found[0], text: found[0] };
    },
    renderer({ text }) {
      const code = `<code class="math">${escape(text)}</code>`;
      return level === "block" ? `<p>${code}</p>` : code;
    },
  };
}

/** The second lock alone: a function that makes harmless nodes of any HTML. */
export function createSanitiser(window) {
  const purify = createDOMPurify(window);
  purify.addHook("uponSanitizeAttribute", (node, attribute) => {
    if (attribute.attrName !== "class") return;
    const kept = attribute.attrValue.split(/\s+/).filter((name) => CLASSES.test(name));
    attribute.attrValue = kept.join(" ");
    attribute.keepAttr = kept.length > 0;
  });
  purify.addHook("afterSanitizeAttributes", (node) => {
    if (node.nodeName !== "A" || !node.hasAttribute("href")) return;
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  });
  return (html) => purify.sanitize(html, SANITISER);
}

/** A renderer for the document of `window`. */
export function createMarkdown(window) {
  const marked = new Marked({ gfm: true, breaks: true, renderer });
  marked.use({ extensions: [formula("block"), formula("inline")] });
  const sanitise = createSanitiser(window);

  function plain(text) {
    const fragment = window.document.createDocumentFragment();
    const paragraph = window.document.createElement("p");
    paragraph.className = "plain";
    paragraph.textContent = text;
    fragment.append(paragraph);
    return fragment;
  }

  return {
    /**
     * The blocks of a text, in order: `raw` is a block's source, `nodes()` makes
     * a fragment of it. Text that Markdown cannot be read from is one block.
     */
    blocks(text) {
      let tokens;
      try {
        tokens = marked.lexer(text);
      } catch {
        // Thousands of nested quotes, for example, exhaust the stack.
        return [{ raw: text, nodes: () => plain(text) }];
      }
      return tokens
        .filter((token) => token.type !== "space" && token.type !== "def")
        .map((token) => ({
          raw: token.raw,
          nodes: () => {
            try {
              return sanitise(marked.parser([token]));
            } catch {
              return plain(token.raw);
            }
          },
        }));
    },
  };
}

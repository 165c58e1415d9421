import assert from "node:assert/strict";
import { test } from "node:test";

import { JSDOM } from "jsdom";

import { createMarkdown, createSanitiser } from "../src/markdown.js";

const { window } = new JSDOM("");
const markdown = createMarkdown(window);

/** The nodes that a text becomes. */
function render(text) {
  const container = window.document.createElement("div");
  for (const block of markdown.blocks(text)) container.append(block.nodes());
  return container;
}

const html = (text) => render(text).innerHTML.trimEnd();

const HARMLESS = new Set(
  "a blockquote br code del em h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul".split(" "),
);
const ATTRIBUTES = new Set("align class href rel start target title".split(" "));

/** Nothing in `node` can run, load, or look like the page itself. */
function assertInert(node, source) {
  for (const element of node.querySelectorAll("*")) {
    const name = element.nodeName.toLowerCase();
    assert.ok(HARMLESS.has(name), `<${name}> from ${source}`);
    for (const { name: attribute, value } of element.attributes) {
      assert.ok(ATTRIBUTES.has(attribute), `${attribute}="${value}" from ${source}`);
      if (attribute === "href") assert.match(value, /^(https?:\/\/|mailto:)/i, `from ${source}`);
      if (attribute === "class") assert.match(value, /^(plain$|hljs|language-|math$)/, `from ${source}`);
    }
  }
}

const HOSTILE = [
  "<img src=x onerror=alert(1)>",
  "<script>alert(1)</script>",
  "<svg onload=alert(1)><a xlink:href='javascript:alert(1)'>x</a></svg>",
  "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
  "<math><mtext><table><mglyph><style><!--</style><img title=\"--><img src onerror=alert(1)>\">",
  "<style>body{display:none}</style>",
  "<a href='javascript:alert(1)' style='position:fixed;inset:0'>x</a>",
  "<form action=https://example.com><input name=key></form>",
  "<div class='notice shown' id='composer'>The server asks for your key</div>",
  "<base href=https://example.com>",
  "<meta http-equiv=refresh content='0;url=https://example.com'>",
  "[x](javascript:alert(1))",
  "[x](JaVaScRiPt:alert(1))",
  "[x](java\nscript:alert(1))",
  "[x](&#106;avascript:alert(1))",
  "[x](&#x6A;avascript&colon;alert(1))",
  "[x](data:text/html;base64,PHNjcmlwdD4=)",
  "[x](vbscript:msgbox(1))",
  "[x](//example.com/relative)",
  "[x](v1/models)",
  "[x](\u0001javascript:alert(1))",
  "[x](https://example.com \"onmouseover=alert(1)\")",
  "[x](https://example.com\"onmouseover=alert(1))",
  "[x]: javascript:alert(1)\n\n[x]",
  "<javascript:alert(1)>",
  "![x](https://example.com/spy.png)",
  "![x\"onerror=alert(1)](https://example.com/\"onerror=alert(1))",
  "![x](javascript:alert(1))",
  "![x][y]\n\n[y]: data:image/svg+xml,<svg/onload=alert(1)>",
  "```\"><img src=x onerror=alert(1)>\ncode\n```",
  "```html\n<img src=x onerror=alert(1)>\n```",
  "```js\"onmouseover=\"alert(1)\n</code></pre><script>alert(1)</script>\n```",
  "    <script>alert(1)</script>",
  "`<img src=x onerror=alert(1)>`",
  "# <img src=x onerror=alert(1)>",
  "- <img src=x onerror=alert(1)>\n- [ ] <script>",
  "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| [x](javascript:alert(1)) | c |",
  "> <img src=x onerror=alert(1)>",
  "**<img src=x onerror=alert(1)>**",
  "\\(<img src=x onerror=alert(1)>\\)",
  "$$<script>alert(1)</script>$$",
  "\\[\n<script>alert(1)</script>\n\\]",
  "<!--<img src=\"--><img src=x onerror=alert(1)>\">",
  "<![CDATA[<img src=x onerror=alert(1)>]]>",
  "<?php <img src=x onerror=alert(1)> ?>",
  "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
  "<template><script>alert(1)</script></template>",
  "&lt;img src=x onerror=alert(1)&gt;",
  "<a id=x name=createElement>clobber</a>",
];

test("nothing that a model may write can run, load or disguise itself", () => {
  for (const source of HOSTILE) assertInert(render(source), source);
});

test("hostile pieces stay inert in every pair", () => {
  for (const first of HOSTILE) {
    for (const second of HOSTILE) {
      for (const glue of ["", "\n"]) assertInert(render(first + glue + second), first + glue + second);
    }
  }
});

test("hostile pieces stay inert while they stream, cut off anywhere", () => {
  for (const source of HOSTILE) {
    for (let end = 1; end < source.length; end += 1) {
      assertInert(render(source.slice(0, end)), source.slice(0, end));
    }
  }
});

test("the sanitiser alone holds should the renderer ever fail", () => {
  const sanitise = createSanitiser(window);
  for (const source of HOSTILE) assertInert(sanitise(source), source);
  const fake = sanitise('<p class="notice shown hljs-keyword" id="composer" style="top:0">x</p>');
  assert.equal(fake.firstChild.outerHTML, '<p class="hljs-keyword">x</p>');
});

test("raw HTML shows as it was written", () => {
  assert.equal(render("<b>bold</b> & <div>x</div>").textContent.trimEnd(), "<b>bold</b> & <div>x</div>");
  assert.equal(render("<div>\n  <p>x</p>\n</div>").querySelector("p").textContent.includes("<p>x</p>"), true);
});

test("Markdown looks as one expects", () => {
  assert.equal(html("*a* **b** ~~c~~ `d`"), "<p><em>a</em> <strong>b</strong> <del>c</del> <code>d</code></p>");
  assert.equal(html("one\ntwo"), "<p>one<br>two</p>");
  assert.match(html("3. a\n4. b"), /^<ol start="3">\s*<li>a<\/li>\s*<li>b<\/li>\s*<\/ol>$/);
  assert.equal(render("- [x] done\n- [ ] not").textContent.replace(/\s+/g, " ").trim(), "☑ done ☐ not");
  const cells = render("| a | b |\n|---|--:|\n| 1 | 2 |").querySelectorAll("td");
  assert.deepEqual([...cells].map((cell) => cell.getAttribute("align")), [null, "right"]);
});

test("headings stay below those of the page", () => {
  const names = [...render("# a\n\n## b\n\n###### c").children].map((node) => node.nodeName);
  assert.deepEqual(names, ["H3", "H4", "H6"]);
});

test("links open elsewhere and tell nothing", () => {
  const link = render("[x](https://example.com/?a=1&b=2)").querySelector("a");
  assert.equal(link.getAttribute("href"), "https://example.com/?a=1&b=2");
  assert.equal(link.getAttribute("target"), "_blank");
  assert.equal(link.getAttribute("rel"), "noopener noreferrer nofollow");
});

test("pictures become links", () => {
  const picture = render("![a cat](https://example.com/cat.png)");
  assert.equal(picture.querySelector("img"), null);
  assert.equal(picture.querySelector("a").textContent, "a cat");
});

test("code keeps every character and gets colours where the language is known", () => {
  const code = 'fn main() { println!("<b>&amp;"); }';
  const rust = render(`\`\`\`rust\n${code}\n\`\`\``).querySelector("code");
  assert.equal(rust.textContent, `${code}\n`);
  assert.equal(rust.className, "hljs language-rust");
  assert.ok(rust.querySelector(".hljs-keyword"));
  const unknown = render(`\`\`\`klingon\n${code}\n\`\`\``).querySelector("code");
  assert.equal(unknown.textContent, `${code}\n`);
  assert.equal(unknown.querySelector("span"), null);
  const open = render("```python\nx = 1").querySelector("code");
  assert.equal(open.textContent, "x = 1\n");
});

test("formulas keep every character", () => {
  for (const formula of ["\\(a_1 * b_2 * c\\)", "$$x_i^2 * y_i$$", "\\[a_1*b*c\\]"]) {
    const node = render(`so ${formula} holds`);
    assert.equal(node.querySelector(".math").textContent, formula);
    assert.equal(node.querySelector("em"), null);
  }
  const block = "\\[\nx = 1\n- y\n\\]";
  assert.equal(render(`so\n\n${block}\n\nholds`).querySelector(".math").textContent, block);
  assert.equal(render("it costs $5 or $6").querySelector(".math"), null);
  assert.equal(render("a \\[ never closed").querySelector(".math"), null);
});

test("text that no parser can read is shown plainly", () => {
  const quotes = `${"> ".repeat(20_000)}x`;
  assert.ok(render(quotes).textContent.includes("x"));
  assertInert(render(quotes), "nested quotes");
});

test("long hostile texts come to an end", () => {
  for (const piece of ["[", "![", "*a ", "`", "\\(", "\\[", "$$", "<", "<a ", "|a", "- ", "](", "_*", "&#", "~~"]) {
    const text = piece.repeat(20_000 / piece.length);
    assertInert(render(text), piece);
  }
});

test("the blocks of a text do not change when more of it comes", () => {
  const text = "# Title\n\nOne *two*.\n\n- a\n- b\n\n```js\nlet x;\n```\n\nEnd.";
  const final = markdown.blocks(text).map((block) => block.raw);
  const partial = markdown.blocks(text.slice(0, text.indexOf("End"))).map((block) => block.raw);
  assert.deepEqual(partial.slice(0, 3), final.slice(0, 3));
});

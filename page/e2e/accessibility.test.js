import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Gate, launch, serveDemo, Visitor } from "./harness.js";

let browser;
let server;

before(async () => {
  [browser, server] = await Promise.all([launch(), serveDemo()]);
});

after(async () => {
  await browser?.close();
  await server?.stop();
});

const VARIETY = `# Title

Text with **weight**, \`code\`, a [link](https://example.com) and \\(x_1\\).

## Part

1. one
2. two
   - [x] done

> A quote.

| a | b |
|---|--:|
| 1 | 2 |

\`\`\`python
# A comment
def half(x: int = 4) -> float:
    return x / 2  # "half"
\`\`\`

\`\`\`diff
- out
+ in
\`\`\`

![picture](https://example.com/x.png)`;

/** Walks through what the page can look like; `look` is called in each state. */
async function tour(visitor, gate, look) {
  const { page } = visitor;
  await page.getByText("lily-demo").waitFor();
  await look("the empty page");

  gate.script(
    { choices: [{ delta: { reasoning_content: "Let me think." } }] },
    { choices: [{ delta: { content: VARIETY } }] },
    { choices: [{ delta: {}, finish_reason: "length" }] },
    { choices: [], usage: { prompt_tokens: 10, completion_tokens: 90, completion_tokens_details: { reasoning_tokens: 3 } } },
  );
  await visitor.ask("Show me everything.");
  await visitor.answer().locator("summary").click();
  await look("an answer with everything");

  const call = { index: 0, id: "call_1", function: { name: "get_weather", arguments: '{"city": "Lisbon"}' } };
  gate.script({ choices: [{ delta: { tool_calls: [call] } }] }, { choices: [{ delta: {}, finish_reason: "tool_calls" }] });
  await visitor.ask("What is the weather?");
  await look("a call of a tool");

  gate.instead.set("/v1/chat/completions", { status: 429, headers: { "retry-after": "5" }, body: "{}" });
  await visitor.ask("And now?");
  await page.getByRole("button", { name: "Edit message" }).focus();
  await page.keyboard.press("Enter");
  await look("an error, and a message being edited");
  await page.keyboard.press("Escape");

  gate.instead.clear();
  gate.holdAfter(6);
  await visitor.say("What is 127 + 58?");
  await visitor.answer().getByText("Thinking…").waitFor();
  await look("an answer that streams");
  gate.release();
  await visitor.done();

  await page.getByRole("button", { name: "New chat" }).click();
  await look("a conversation that can be brought back");

  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByText("Tools", { exact: true }).click();
  await page.getByLabel("Temperature").fill("9");
  await page.getByRole("button", { name: "Save" }).click();
  await look("the settings");
}

const VIEWS = {
  light: { colorScheme: "light" },
  dark: { colorScheme: "dark" },
  phone: { viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true },
  "forced colours": { forcedColors: "active" },
};

for (const [name, options] of Object.entries(VIEWS)) {
  test(`axe finds nothing wrong: ${name}`, async () => {
    const gate = await Gate.before(server.port);
    // axe-core itself needs what the page's policy forbids; nothing transient may be half visible.
    const more = { bypassCSP: true, reducedMotion: "reduce", expected: [/status of 429/] };
    const visitor = await Visitor.visit(browser, gate, { ...options, ...more });
    try {
      const faults = {};
      await tour(visitor, gate, async (state) => {
        const found = await visitor.accessibilityFaults();
        if (found.length > 0) faults[state] = found;
      });
      assert.deepEqual(faults, {});
      await visitor.leave();
    } finally {
      await visitor.context.close();
      gate.close();
    }
  });
}

test("axe finds nothing wrong with the question for a key", async () => {
  const locked = await serveDemo("--api-key", "open-sesame");
  const gate = await Gate.before(locked.port);
  const visitor = await Visitor.visit(browser, gate, { bypassCSP: true, expected: [/status of 401/] });
  try {
    await visitor.page.getByRole("dialog").waitFor();
    await visitor.page.keyboard.press("Enter");
    await visitor.page.getByText("Enter the key.").waitFor();
    assert.deepEqual(await visitor.accessibilityFaults(), []);
    await visitor.leave();
  } finally {
    await visitor.context.close();
    gate.close();
    await locked.stop();
  }
});

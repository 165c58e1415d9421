import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Gate, launch, serveDemo, until, Visitor } from "./harness.js";

let browser;
let server;

before(async () => {
  [browser, server] = await Promise.all([launch(), serveDemo()]);
});

after(async () => {
  await browser?.close();
  await server?.stop();
});

/** A test with a page of its own, which in the end must have behaved. */
function visit(name, body, options) {
  test(name, async () => {
    const gate = await Gate.before(server.port);
    let visitor;
    try {
      visitor = await Visitor.visit(browser, gate, options);
      await body(visitor, gate);
      await visitor.leave();
    } finally {
      await visitor?.context.close();
      gate.close();
    }
  });
}

const text = (locator) => locator.innerText();

visit("a question is answered as it streams, with its thinking folded", async (visitor, gate) => {
  const { page } = visitor;
  await page.getByText("lily-demo").waitFor();
  gate.holdAfter(8);
  await visitor.say("What is 127 + 58?");
  const thinking = visitor.answer().locator("details.thinking");
  await thinking.getByText("Thinking…").waitFor();
  assert.equal(await thinking.getAttribute("open"), null);
  assert.equal(await visitor.answer().getAttribute("aria-busy"), "true");
  assert.ok(!(await visitor.answer().locator(".thinking-text").textContent()).includes("Result"));
  assert.ok(await page.getByRole("button", { name: "Stop" }).isVisible());
  gate.release();
  await visitor.done();
  assert.equal(await text(visitor.answer().locator(".prose")), "127 + 58 = 185.");
  assert.equal(await visitor.answer().getAttribute("aria-busy"), "false");
  assert.match(await text(thinking.locator("summary")), /^Thought for [\d.]+ s · \d+ tokens$/);
  await thinking.locator("summary").click();
  assert.match(await text(thinking.locator(".thinking-text")), /Result: 185/);
  const figures = await text(visitor.answer().locator(".figures"));
  assert.match(figures, /[\d,.]+ tokens\/s/);
  assert.match(figures, /\d+ tokens/);
  assert.match(figures, /first after [\d.]+ s/);
  assert.match(figures, /\d+ of [\d,]+ in context/);
});

visit("a folded thinking that is opened while it streams stays open", async (visitor, gate) => {
  gate.holdAfter(6);
  await visitor.say("What is 127 + 58?");
  const thinking = visitor.answer().locator("details.thinking");
  await thinking.locator("summary").click();
  gate.release();
  await visitor.done();
  assert.equal(await thinking.getAttribute("open"), "");
});

visit("stop ends the answer at the server too, and what came is kept", async (visitor, gate) => {
  const { page } = visitor;
  gate.holdAfter(8);
  await visitor.say("What is 127 + 58?");
  await visitor.answer().getByText("Thinking…").waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await visitor.done();
  await until(() => gate.abandoned === 1, "the end of the request");
  await visitor.answer().getByText("Stopped.").waitFor();
  assert.ok((await visitor.answer().locator(".thinking-text").textContent()).length > 0);
  gate.release();
  // The server is free for the next one.
  await visitor.ask("What is the capital of Japan?");
  assert.equal(await text(visitor.answer().locator(".prose")), "The capital of Japan is Tokyo.");
});

visit("retry replaces the last answer and asks the same again", async (visitor, gate) => {
  const { page } = visitor;
  await visitor.ask("What is the capital of Japan?");
  await visitor.ask("What is the capital of Poland?");
  assert.equal(await page.getByRole("button", { name: "Retry" }).count(), 1);
  await page.getByRole("button", { name: "Retry" }).click();
  await until(() => gate.asked.length === 3, "the third request");
  await visitor.done();
  assert.deepEqual(gate.asked[2], gate.asked[1]);
  assert.equal(await page.locator("article").count(), 4);
  assert.match(await text(visitor.answer().locator(".prose")), /Warsaw/);
});

visit("the last message can be edited, and editing can be cancelled", async (visitor, gate) => {
  const { page } = visitor;
  const field = page.getByRole("textbox", { name: "Message" });
  await visitor.ask("What is the capital of Japan?");
  await page.getByRole("button", { name: "Edit message" }).focus();
  await page.keyboard.press("Enter");
  assert.equal(await field.inputValue(), "What is the capital of Japan?");
  await page.keyboard.press("Escape");
  assert.equal(await field.inputValue(), "");
  await page.getByRole("button", { name: "Edit message" }).focus();
  await page.keyboard.press("Enter");
  await page.getByText("Sending replaces your last message.").waitFor();
  await visitor.ask("What is the capital of Poland?");
  assert.equal(await page.locator("article").count(), 2);
  assert.match(await text(visitor.answer().locator(".prose")), /Warsaw/);
  assert.equal(gate.asked[1].messages.length, 1);
});

visit("everything can be done with the keyboard alone", async (visitor, gate) => {
  const { page } = visitor;
  await page.getByText("lily-demo").waitFor();
  const focused = () => page.evaluate(() => {
    const { activeElement } = document;
    return activeElement.getAttribute("aria-label") ?? (activeElement.textContent.trim() || activeElement.id);
  });
  const press = async (...keys) => {
    for (const key of keys) await page.keyboard.press(key);
  };
  assert.equal(await focused(), "input");
  await page.keyboard.type("What is 127");
  await press("Shift+Enter");
  await page.keyboard.type("+ 58?");
  assert.equal(await page.locator("#input").inputValue(), "What is 127\n+ 58?");
  gate.holdAfter(5);
  await press("Enter");
  await visitor.answer().getByText("Thinking…").waitFor();
  await press("Escape");
  await visitor.done();
  await visitor.answer().getByText("Stopped.").waitFor();
  gate.release();
  assert.equal(await focused(), "input");
  // Back to the buttons of the answer, and on to another try.
  await press("Shift+Tab");
  assert.equal(await focused(), "Retry: answer anew");
  await press("Enter");
  await until(() => gate.asked.length === 2, "the second request");
  await visitor.done();
  assert.match(await text(visitor.answer().locator(".prose")), /185/);
  // From the top: the order in which things come.
  await page.locator("body").evaluate((body) => {
    body.tabIndex = -1;
    body.focus();
    body.removeAttribute("tabindex");
  });
  const order = [];
  for (let steps = 0; steps < 12 && order.at(-1) !== "input"; steps += 1) {
    await press("Tab");
    order.push(await focused());
    const outline = await page.evaluate(() => {
      const seen = document.activeElement.id === "input" ? document.querySelector(".composer") : document.activeElement;
      return getComputedStyle(seen).outlineStyle;
    });
    assert.notEqual(outline, "none", `focus on ${order.at(-1)} is not visible`);
  }
  order[5] = order[5].replace(/^Thought for.*/, "Thought");
  assert.deepEqual(order, [
    "Skip to the message field", "New chat", "Settings", "Copy message", "Edit message",
    "Thought", "Copy answer", "Retry: answer anew", "input",
  ]);
  // A dialog keeps the focus and gives it back.
  await page.getByRole("button", { name: "Settings" }).focus();
  await press("Enter");
  assert.ok(await page.getByRole("dialog", { name: "Settings" }).isVisible());
  await press("Escape");
  assert.equal(await page.getByRole("dialog").count(), 0);
  assert.equal(await focused(), "Settings");
});

visit("a finished answer is read out once, not token by token", async (visitor) => {
  const { page } = visitor;
  await page.evaluate(() => {
    globalThis.heard = [];
    const region = document.getElementById("announcement");
    new MutationObserver(() => globalThis.heard.push(region.textContent.trim())).observe(region, {
      childList: true, characterData: true, subtree: true,
    });
  });
  await visitor.ask("What is the capital of Japan?");
  assert.deepEqual(await page.evaluate(() => globalThis.heard), ["Answer: The capital of Japan is Tokyo."]);
  const live = await page.locator("#messages [aria-live], #messages [role=log], #messages [role=status]").count();
  assert.equal(live, 0, "a live region among the messages");
});

visit("code has its language, colours and a button that copies it", async (visitor) => {
  const { page } = visitor;
  await visitor.ask("How do I check if a string starts with a prefix in Rust?");
  const code = visitor.answer().locator(".code");
  assert.equal(await text(code.locator(".code-language")), "rust");
  assert.ok((await code.locator(".hljs-keyword").count()) > 0);
  await code.getByRole("button", { name: "Copy code (rust)" }).click();
  await code.getByText("Copied").waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(copied, (await code.locator("code").textContent()).trimEnd());
});

visit("settings reach the server, and those it would refuse are refused here", async (visitor, gate) => {
  const { page } = visitor;
  const open = () => page.getByRole("button", { name: "Settings" }).click();
  await open();
  const dialog = page.getByRole("dialog", { name: "Settings" });
  await dialog.getByLabel("Temperature").fill("3");
  await dialog.getByRole("button", { name: "Save" }).click();
  await dialog.getByText("Temperature must be between 0 and 2.").waitFor();
  assert.equal(await dialog.getByLabel("Temperature").getAttribute("aria-invalid"), "true");
  await dialog.getByLabel("Temperature").fill("0");
  await dialog.getByLabel("Top p").fill("0.9");
  await dialog.getByLabel("Longest answer").fill("40");
  await dialog.getByLabel("System prompt").fill("You are a helpful AI assistant.");
  await dialog.getByLabel("Think before answering").uncheck();
  assert.ok(await dialog.getByLabel("Thinking budget, in tokens").isDisabled());
  await dialog.getByRole("button", { name: "Save" }).click();
  assert.equal(await page.evaluate(() => document.activeElement.id), "input");
  await visitor.ask("What is the capital of Japan?");
  const [{ messages, model, ...fields }] = gate.asked;
  assert.equal(model, "lily-demo");
  assert.deepEqual(messages.map(({ role }) => role), ["system", "user"]);
  assert.deepEqual(fields, {
    stream: true, stream_options: { include_usage: true },
    temperature: 0, top_p: 0.9, max_tokens: 40, enable_thinking: false,
  });
  assert.equal(await text(visitor.answer().locator(".prose")), "The capital of Japan is Tokyo.");
  assert.ok(await visitor.answer().locator("details.thinking").isHidden());
  await page.reload();
  await open();
  assert.equal(await dialog.getByLabel("Longest answer").inputValue(), "40");
  await dialog.getByRole("button", { name: "Back to defaults" }).click();
  await dialog.getByRole("button", { name: "Save" }).click();
  await page.getByRole("button", { name: "Retry" }).click();
  await until(() => gate.asked.length === 2, "the second request");
  assert.equal(gate.asked[1].enable_thinking, true);
  await visitor.done();
});

visit("an answer cut off by its limit says so", async (visitor) => {
  const { page } = visitor;
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Longest answer").fill("5");
  await page.getByRole("button", { name: "Save" }).click();
  await visitor.ask("What is 127 + 58?");
  await visitor.answer().getByText("Cut off: the longest allowed answer was reached.").waitFor();
});

visit("the calls of tools are shown, and take their results", async (visitor, gate) => {
  const { page } = visitor;
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByText("Tools", { exact: true }).click();
  await page.getByRole("button", { name: "Insert an example" }).click();
  await page.getByLabel("Temperature").fill("0");
  await page.getByRole("button", { name: "Save" }).click();
  await visitor.ask("What is the weather in Lisbon?");
  const call = visitor.answer().getByRole("region", { name: "Tool call get_weather" });
  assert.deepEqual(JSON.parse(await text(call.locator("pre"))), { city: "Lisbon" });
  const result = call.getByLabel("Result of get_weather");
  await until(() => result.evaluate((field) => field === document.activeElement), "the focus in the result");
  await result.fill('{"temperature": 21,');
  await page.keyboard.press("End");
  await page.keyboard.press("Enter");
  await page.keyboard.type('"condition": "sunny"}');
  await page.keyboard.press("Control+Enter");
  await until(() => gate.asked.length === 2, "the second request");
  await visitor.done();
  assert.deepEqual(gate.asked[1].messages.map(({ role }) => role), ["user", "assistant", "tool"]);
  assert.match(await text(visitor.answer().locator(".prose")), /Lisbon.*21/);
  assert.equal(await page.getByRole("button", { name: "Send results" }).count(), 0);
});

visit("the conversation outlives the page, and clearing it can be undone", async (visitor) => {
  const { page } = visitor;
  await visitor.ask("What is the capital of Japan?");
  await page.reload();
  assert.equal(await text(visitor.answer().locator(".prose")), "The capital of Japan is Tokyo.");
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await page.locator("article").count(), 0);
  await page.getByRole("heading", { name: "What would you like to know?" }).waitFor();
  await page.getByRole("button", { name: "Undo" }).click();
  assert.equal(await page.locator("article").count(), 2);
  await page.getByRole("button", { name: "New chat" }).click();
  await page.reload();
  assert.equal(await page.locator("article").count(), 0);
  assert.equal(await page.evaluate(() => localStorage.getItem("lily.conversation")), null);
});

visit("two tabs show the same conversation", async (visitor) => {
  const other = await visitor.open();
  await visitor.ask("What is the capital of Japan?");
  await other.getByText("The capital of Japan is Tokyo.").last().waitFor();
  await visitor.say("What is the capital of Poland?", other);
  await visitor.done(other);
  await visitor.page.getByText(/Warsaw/).last().waitFor();
  assert.equal(await visitor.page.locator("article").count(), 4);
});

visit("an answer that was streaming when the page closed is kept as far as it came", async (visitor, gate) => {
  gate.holdAfter(6);
  await visitor.say("What is 127 + 58?");
  await visitor.answer().getByText("Thinking…").waitFor();
  await visitor.page.reload();
  await visitor.answer().getByText("Stopped.").waitFor();
  assert.ok((await visitor.answer().locator(".thinking-text").textContent()).length > 0);
  gate.release();
});

visit("on a phone nothing is wider than the screen", async (visitor, gate) => {
  const { page } = visitor;
  const wide = `${"wide ".repeat(200)}${"w".repeat(500)}`;
  const table = `|${"column|".repeat(30)}\n|${"---|".repeat(30)}\n|${"cell|".repeat(30)}`;
  const content = `${wide}\n\n\`\`\`js\n${wide}\n\`\`\`\n\n${table}\n\n\`${"c".repeat(300)}\``;
  gate.script({ choices: [{ delta: { content, reasoning_content: wide } }] }, { choices: [{ delta: {}, finish_reason: "stop" }] });
  await visitor.ask(wide);
  await visitor.answer().locator("summary").click();
  const { width, screen } = await page.evaluate(() => ({
    width: document.documentElement.scrollWidth, screen: innerWidth,
  }));
  assert.ok(width <= screen, `${width} > ${screen}`);
  for (const button of await page.getByRole("button").all()) {
    if (!(await button.isVisible())) continue;
    const box = await button.boundingBox();
    assert.ok(box.height >= 24 && box.width >= 24, `a button of ${box.width} × ${box.height}`);
  }
}, { viewport: { width: 360, height: 700 }, isMobile: true, hasTouch: true });

visit("who wants less motion gets none", async (visitor, gate) => {
  gate.holdAfter(6);
  await visitor.say("What is 127 + 58?");
  await visitor.answer().getByText("Thinking…").waitFor();
  const moving = await visitor.page.evaluate(() =>
    document.getAnimations().filter((animation) => animation.playState === "running").length,
  );
  assert.equal(moving, 0);
  gate.release();
  await visitor.done();
}, { reducedMotion: "reduce" });

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

async function visit(options, body) {
  const gate = await Gate.before(options.port ?? server.port);
  let visitor;
  try {
    visitor = await Visitor.visit(browser, gate, { expected: options.expected });
    await body(visitor, gate);
    await visitor.leave();
  } finally {
    await visitor?.context.close();
    gate.close();
  }
}

const HOSTILE = [
  "<img src=x onerror=\"window.broken=1\">",
  "<script>window.broken=1</script>",
  "<svg onload=\"window.broken=1\"></svg>",
  "<iframe srcdoc=\"<script>parent.broken=1</script>\"></iframe>",
  "[click](javascript:window.broken=1)",
  "[click](data:text/html,<script>opener.broken=1</script>)",
  "![spy](https://example.com/spy.png)",
  "<link rel=stylesheet href=https://example.com/x.css>",
  "```\"><img src=x onerror=window.broken=1>\n<script>window.broken=1</script>\n```",
  "<style>body{display:none}</style>",
].join("\n\n");

async function assertUnharmed({ page }) {
  for (const link of await page.locator("article a[href]").all()) {
    assert.match(await link.getAttribute("href"), /^https?:/);
  }
  const foreign = "article :is(script, img, iframe, style, link, form:not(.results), object, embed, svg:not(.icon))";
  assert.equal(await page.locator(foreign).count(), 0);
  assert.equal(await page.evaluate(() => window.broken), undefined);
  assert.ok(await page.locator("#input").isVisible());
}

test("what a user types is text, whatever it says", () =>
  visit({}, async (visitor) => {
    await visitor.ask(HOSTILE);
    assert.equal(await visitor.page.locator(".bubble").textContent(), HOSTILE);
    await assertUnharmed(visitor);
  }));

test("what a model says and thinks can do nothing", () =>
  visit({}, async (visitor, gate) => {
    const call = { index: 0, id: HOSTILE, function: { name: HOSTILE, arguments: HOSTILE } };
    gate.script(
      ...[...HOSTILE].map((character) => ({ choices: [{ delta: { content: character } }] })),
      { choices: [{ delta: { reasoning_content: HOSTILE, tool_calls: [call] } }] },
      { choices: [{ delta: {}, finish_reason: "tool_calls" }] },
    );
    await visitor.ask("Hello");
    assert.match(await visitor.answer().locator(".prose").textContent(), /<script>window\.broken=1<\/script>/);
    await visitor.answer().locator("summary").click();
    await assertUnharmed(visitor);
  }));

test("what the browser has stored can do nothing", () =>
  visit({}, async (visitor) => {
    const calls = [{ name: HOSTILE, arguments: HOSTILE, result: HOSTILE }];
    const failure = { title: HOSTILE, detail: HOSTILE };
    const stored = [
      { role: "user", content: HOSTILE },
      { role: "assistant", content: HOSTILE, reasoning: HOSTILE, calls, finish: "stop", failure },
    ];
    await visitor.page.evaluate((json) => localStorage.setItem("lily.conversation", json), JSON.stringify(stored));
    await visitor.page.reload();
    await visitor.answer().waitFor();
    await assertUnharmed(visitor);
  }));

test("what a server says of itself and of errors can do nothing", () =>
  visit({ expected: [/status of 400/] }, async (visitor, gate) => {
    const body = JSON.stringify({ error: { message: HOSTILE } });
    gate.instead.set("/v1/chat/completions", { status: 400, headers: {}, body });
    gate.instead.set("/v1/models", { status: 200, headers: {}, body: JSON.stringify({ data: [{ id: HOSTILE }] }) });
    await visitor.page.reload();
    await visitor.ask("Hello");
    await visitor.answer().getByText("The server does not accept this request.").waitFor();
    await assertUnharmed(visitor);
  }));

test("should markup get through after all, the page's policy stops it", () =>
  visit({ expected: [/Content Security Policy|Trusted(HTML|Script)/i] }, async (visitor) => {
    const { page } = visitor;
    const outcome = await page.evaluate(async () => {
      const attempts = {};
      try {
        document.body.insertAdjacentHTML("beforeend", "<p id=smuggled></p>");
        attempts.html = "went through";
      } catch (error) {
        attempts.html = error.name;
      }
      const script = document.createElement("script");
      try {
        script.textContent = "window.broken = 1";
        document.body.append(script);
      } catch (error) {
        attempts.script = error.name;
      }
      const image = new Image();
      const failed = new Promise((resolve) => image.addEventListener("error", () => resolve("blocked")));
      image.src = "https://example.com/spy.png";
      attempts.image = await failed;
      attempts.fetch = await fetch("https://example.com/").then(() => "went through", () => "blocked");
      const paragraph = document.createElement("p");
      paragraph.setAttribute("style", "position: fixed");
      document.body.append(paragraph);
      attempts.position = getComputedStyle(paragraph).position;
      return attempts;
    });
    assert.equal(outcome.html, "TypeError");
    assert.equal(outcome.position, "static");
    assert.equal(outcome.image, "blocked");
    assert.equal(outcome.fetch, "blocked");
    assert.equal(await page.evaluate(() => window.broken), undefined);
    // The browser reports those as requests although none leaves it.
    visitor.requests = visitor.requests.filter((url) => !url.startsWith("https://example.com/"));
  }));

test("a server with a key asks for it, and the key stays in the tab", async () => {
  const locked = await serveDemo("--api-key", "open-sesame");
  try {
    await visit({ port: locked.port, expected: [/status of 401/] }, async (visitor, gate) => {
      const { page } = visitor;
      const dialog = page.getByRole("dialog", { name: "This server asks for an API key" });
      await dialog.waitFor();
      await page.keyboard.press("Escape");
      await visitor.ask("What is the capital of Japan?");
      await dialog.waitFor();
      await dialog.getByLabel("API key").fill("wrong");
      await page.keyboard.press("Enter");
      await dialog.getByText("The server did not accept that key.").waitFor();
      await dialog.getByLabel("API key").fill("open-sesame");
      await page.keyboard.press("Enter");
      // The question that failed is asked again by itself.
      await visitor.answer().getByText("The capital of Japan is Tokyo.").first().waitFor();
      await visitor.done();
      assert.equal(await page.locator("article").count(), 2);
      const stored = await page.evaluate(() => [
        JSON.stringify(localStorage), sessionStorage.getItem("lily.key"), document.cookie,
      ]);
      assert.ok(!stored[0].includes("sesame"), "the key is in localStorage");
      assert.deepEqual(stored.slice(1), ["open-sesame", ""]);
      await page.reload();
      await page.getByText("lily-demo").waitFor();
      await visitor.ask("What is the capital of Poland?");
      assert.match(await visitor.answer().locator(".prose").innerText(), /Warsaw/);
      assert.ok(gate.asked.length >= 4);
    });
  } finally {
    await locked.stop();
  }
});

test("a busy server, one that loads and one that fails say so in words", () =>
  visit({ expected: [/status of (429|503|500)/] }, async (visitor, gate) => {
    const { page } = visitor;
    const answerWith = (status, code, message, headers = {}) => {
      const body = JSON.stringify({ error: { message, code } });
      gate.instead.set("/v1/chat/completions", { status, headers, body });
    };
    answerWith(429, "queue_full", "16 requests are waiting already; try again later", { "retry-after": "5" });
    await visitor.ask("What is the capital of Japan?");
    const failure = visitor.answer().getByRole("group", { name: "Error" });
    assert.match(await failure.innerText(), /^The server is busy\. 16 requests .*Try again in 5 seconds\.$/);
    answerWith(503, "loading", "the model is loading", { "retry-after": "5" });
    await page.getByRole("button", { name: "Try again" }).click();
    await failure.getByText("The model is still loading.").waitFor();
    answerWith(500, null, "generation failed: the logits are not finite");
    await page.getByRole("button", { name: "Try again" }).click();
    await failure.getByText("Generation failed: the logits are not finite.").waitFor();
    gate.instead.clear();
    await page.getByRole("button", { name: "Try again" }).click();
    await visitor.answer().locator(".prose").getByText("Tokyo").waitFor();
    assert.equal(await page.locator("article").count(), 2);
  }));

test("an error within a stream keeps what came before it", () =>
  visit({}, async (visitor, gate) => {
    gate.script({ choices: [{ delta: { content: "Half an" } }] }, { error: { message: "generation failed: lost" } });
    await visitor.ask("Hello");
    assert.equal(await visitor.answer().locator(".prose").innerText(), "Half an");
    await visitor.answer().getByText("Generation failed: lost.").waitFor();
  }));

test("a model that loads, stops and comes back is announced above the field", () =>
  visit({ expected: [/status of 503/] }, async (visitor, gate) => {
    const { page } = visitor;
    const health = (said) => {
      const body = JSON.stringify(said);
      gate.instead.set("/health", { status: 503, headers: {}, body });
    };
    health({ status: "loading", progress: 0.437 });
    await page.reload();
    const notice = page.locator("#notice");
    await notice.getByText("The model is loading… 43 %").first().waitFor();
    health({ status: "dead" });
    await notice.getByText("The model has stopped. The server must be started again.").waitFor();
    gate.instead.clear();
    await until(async () => (await notice.innerText()) === "", "the end of the notice");
  }));

test("a server that is gone is told from one that refuses, and the conversation stays", async () => {
  const mortal = await serveDemo();
  await visit({ port: mortal.port, expected: [/Failed to load resource/] }, async (visitor, gate) => {
    const { page } = visitor;
    await visitor.ask("What is the capital of Japan?");
    gate.holdAfter(4);
    await visitor.say("What is 127 + 58?");
    await visitor.answer().getByText("Thinking…").waitFor();
    gate.breakOff();
    await visitor.done();
    await visitor.answer().getByText("The answer broke off.").waitFor();
    gate.release();
    await mortal.stop();
    await page.getByRole("button", { name: "Try again" }).click();
    await visitor.answer().getByText("The server cannot be reached.").waitFor();
    await page.locator("#notice").getByText("The server cannot be reached.").waitFor();
    assert.equal(await page.locator("article").count(), 4);
  });
});

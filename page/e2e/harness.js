// A browser, a `lily serve` with the demo model, and a gate between the two that
// can hold an answer, replace one, and see what the page does.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { accessSync, constants, readFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { once } from "node:events";
import { delimiter, join } from "node:path";

import { chromium } from "playwright-core";

const AXE = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

/** How long anything may take that should happen at once, in milliseconds; only a failure waits for it. */
const PATIENCE = 30_000;

function findChromium() {
  if (process.env.CHROMIUM) return process.env.CHROMIUM;
  for (const folder of (process.env.PATH ?? "").split(delimiter)) {
    for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
      try {
        accessSync(join(folder, name), constants.X_OK);
        return join(folder, name);
      } catch {
        // Another folder may have it.
      }
    }
  }
  throw new Error("no Chromium in PATH; CHROMIUM can name one");
}

export function launch() {
  // Chromium's sandbox does not start for root, whom containers tend to be.
  const args = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
  return chromium.launch({ executablePath: findChromium(), args });
}

/** Starts `lily serve` with the demo model; `{ port, stop() }`. */
export async function serveDemo(...flags) {
  const program = process.env.LILY_BIN ?? new URL("../../target/debug/lily", import.meta.url).pathname;
  // None of the caller's settings.
  const env = Object.entries(process.env).filter(([name]) => !name.startsWith("LILY_"));
  const child = spawn(program, ["serve", "--port", "0", ...flags], {
    env: Object.fromEntries(env),
    stdio: ["ignore", "ignore", "pipe"],
  });
  let said = "";
  child.stderr.setEncoding("utf8");
  const port = await new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("exit", () => reject(new Error(`lily serve ended: ${said}`)));
    child.stderr.on("data", (text) => {
      said += text;
      const found = /at https?:\/\/[\d.]+:(\d+)/.exec(said);
      if (found) resolve(Number(found[1]));
    });
  });
  return {
    port,
    async stop() {
      child.kill("SIGKILL");
      if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
    },
  };
}

/** Stands between page and server; what passes may be held or replaced. */
export class Gate {
  /** Bodies of the chat requests that came, in order. */
  asked = [];
  /** Chat requests that the page gave up. */
  abandoned = 0;
  /** Path → `{ status, headers, body }` that is answered in place of the server. */
  instead = new Map();
  #upstream;
  #server;
  #holdAfter = Infinity;
  #held = [];
  #open = new Set();

  static async before(port) {
    const gate = new Gate();
    gate.#upstream = port;
    gate.#server = createServer((incoming, outgoing) => gate.#pass(incoming, outgoing));
    gate.#server.listen(0, "127.0.0.1");
    await once(gate.#server, "listening");
    gate.url = `http://127.0.0.1:${gate.#server.address().port}/`;
    return gate;
  }

  close() {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  /** Lets through the next answers only up to their `count`th event. */
  holdAfter(count) {
    this.#holdAfter = count;
  }

  /** Lets go what was held. */
  release() {
    this.#holdAfter = Infinity;
    for (const go of this.#held.splice(0)) go();
  }

  /** Breaks the connections of the running answers. */
  breakOff() {
    for (const outgoing of this.#open) outgoing.destroy();
  }

  /** Answers chat requests with these chunks instead of the server's. */
  script(...chunks) {
    const events = chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`);
    this.instead.set("/v1/chat/completions", {
      status: 200,
      headers: { "content-type": "text/event-stream" },
      body: `${events.join("")}data: [DONE]\n\n`,
    });
  }

  async #pass(incoming, outgoing) {
    const parts = [];
    for await (const part of incoming) parts.push(part);
    const body = Buffer.concat(parts);
    const chat = incoming.url === "/v1/chat/completions";
    if (chat) {
      this.asked.push(JSON.parse(body.toString()));
      this.#open.add(outgoing);
      outgoing.on("close", () => {
        this.#open.delete(outgoing);
        if (!outgoing.writableFinished) this.abandoned += 1;
      });
    }
    const instead = this.instead.get(incoming.url);
    if (instead) {
      outgoing.writeHead(instead.status, instead.headers);
      outgoing.end(instead.body);
      return;
    }
    const { method, url, headers } = incoming;
    const upward = request({ host: "127.0.0.1", port: this.#upstream, method, path: url, headers });
    upward.on("error", () => outgoing.destroy());
    upward.on("response", (answer) => this.#answer(answer, outgoing, chat));
    outgoing.on("close", () => upward.destroy());
    upward.end(body);
  }

  async #answer(answer, outgoing, chat) {
    outgoing.writeHead(answer.statusCode, answer.headers);
    let events = 0;
    try {
      for await (const part of answer) {
        if (!chat) {
          outgoing.write(part);
          continue;
        }
        for (const event of part.toString("latin1").split(/(?<=\n\n)/)) {
          events += 1;
          if (events > this.#holdAfter) await new Promise((go) => this.#held.push(go));
          outgoing.write(Buffer.from(event, "latin1"));
        }
      }
      outgoing.end();
    } catch {
      outgoing.destroy();
    }
  }
}

/** A page and what it must not do: complain, fail, or ask anybody but its server. */
export class Visitor {
  complaints = [];
  requests = [];

  static async visit(browser, gate, options = {}) {
    const { expected = [], ...contextOptions } = options;
    const visitor = new Visitor();
    visitor.expected = expected;
    visitor.gate = gate;
    visitor.context = await browser.newContext({
      viewport: { width: 1100, height: 800 },
      permissions: ["clipboard-read", "clipboard-write"],
      ...contextOptions,
    });
    visitor.context.setDefaultTimeout(PATIENCE);
    visitor.page = await visitor.open();
    return visitor;
  }

  /** Another tab of the same browser. */
  async open() {
    const page = await this.context.newPage();
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") this.complaints.push(message.text());
    });
    page.on("pageerror", (error) => this.complaints.push(String(error)));
    page.on("dialog", (dialog) => {
      this.complaints.push(`dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    page.on("request", (request) => this.requests.push(request.url()));
    await page.goto(this.gate.url);
    return page;
  }

  /** Types a message and sends it. */
  async say(text, page = this.page) {
    await page.getByRole("textbox", { name: "Message" }).fill(text);
    await page.keyboard.press("Enter");
  }

  /** Waits until no answer is running. */
  async done(page = this.page) {
    await page.locator("#send").waitFor({ state: "visible" });
  }

  async ask(text) {
    await this.say(text);
    await this.done();
  }

  answer(page = this.page) {
    return page.locator("article.answer").last();
  }

  /** What axe-core finds wrong, as short lines. */
  async accessibilityFaults() {
    await this.page.evaluate(AXE);
    const { passes, violations } = await this.page.evaluate(() => globalThis.axe.run(document));
    assert.ok(passes.length > 20, `axe applied only ${passes.length} rules`);
    return violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ")}`);
  }

  /** Closes the page and says what it did that it must not. */
  async leave() {
    await this.context.close();
    const unexpected = this.complaints.filter((text) => !this.expected.some((known) => known.test(text)));
    assert.deepEqual(unexpected, [], "complaints of the browser");
    const foreign = this.requests.filter((url) => !url.startsWith(this.gate.url));
    assert.deepEqual(foreign, [], "requests to others");
  }
}

/** Waits until `check` gives something true. */
export async function until(check, what) {
  const end = Date.now() + PATIENCE;
  while (!(await check())) {
    assert.ok(Date.now() < end, `${what} did not happen`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

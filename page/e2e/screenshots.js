// Writes the pictures of docs/: the page as the demo model fills it.

import { fileURLToPath } from "node:url";

import { Gate, launch, serveDemo, until, Visitor } from "./harness.js";

const folder = fileURLToPath(new URL("../../docs/", import.meta.url));

const VIEWS = {
  "page-light": { colorScheme: "light" },
  "page-dark": { colorScheme: "dark" },
  "page-phone": {
    viewport: { width: 390, height: 780 },
    deviceScaleFactor: 2,
    isMobile: true,
    hasTouch: true,
  },
};

const [browser, server] = await Promise.all([launch(), serveDemo()]);
try {
  for (const [name, options] of Object.entries(VIEWS)) {
    const gate = await Gate.before(server.port);
    const visitor = await Visitor.visit(browser, gate, { reducedMotion: "reduce", ...options });
    const { page } = visitor;
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Temperature").fill("0");
    await page.getByRole("button", { name: "Save" }).click();
    await visitor.ask("What is 127 + 58?");
    await visitor.answer().locator("summary").click();
    await visitor.ask("How do I keep only the even numbers in Rust?");
    // The field as it rests, with the pointer away from everything.
    await page.locator("#input").blur();
    await page.mouse.move(0, 0);
    await until(() => page.evaluate(() => document.fonts.status === "loaded"), "the fonts");
    await page.screenshot({ path: `${folder}${name}.png` });
    await visitor.leave();
    gate.close();
  }
} finally {
  await browser.close();
  await server.stop();
}

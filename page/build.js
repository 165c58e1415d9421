// Bundles the page into the folder that lily-server embeds. `--check` compares
// instead of writing: the committed files must be what the sources make.

import { readFile, writeFile, mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../crates/lily-server/src/routes/page/dist");

/** All the embedded files together, in bytes: a page for a local server stays light. */
const LARGEST = 250_000;

/** What is bundled and whose licence must go with it. */
const BUNDLED = ["dompurify", "highlight.js", "marked"];

async function bundle() {
  const options = {
    bundle: true,
    minify: true,
    write: false,
    format: "esm",
    target: ["es2022"],
    charset: "utf8",
    legalComments: "none",
    absWorkingDir: here,
  };
  const [script, style] = await Promise.all([
    build({ ...options, entryPoints: ["src/main.js"] }),
    build({ ...options, entryPoints: ["src/page.css"] }),
  ]);
  return {
    "index.html": await readFile(join(here, "src/index.html"), "utf8"),
    "icon.svg": await readFile(join(here, "src/icon.svg"), "utf8"),
    "page.js": script.outputFiles[0].text,
    "page.css": style.outputFiles[0].text,
    "notices.txt": await notices(),
  };
}

async function notices() {
  const parts = ["The chat page of lily contains the following libraries.\n"];
  for (const name of BUNDLED) {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const text = await readFile(join(folder, "LICENSE"), "utf8");
    const rule = "=".repeat(72);
    parts.push(`${rule}\n${name} ${version} (${license})\n${rule}\n\n${text.trimEnd()}\n`);
  }
  return parts.join("\n").replaceAll("\r\n", "\n");
}

const files = await bundle();
const sizes = Object.entries(files).map(([name, text]) => [name, Buffer.byteLength(text)]);
const total = sizes.reduce((sum, [, size]) => sum + size, 0);
for (const [name, size] of [...sizes, ["total", total]]) {
  console.log(`${name.padEnd(12)} ${String(size).padStart(7)} bytes`);
}
if (total > LARGEST) {
  console.error(`the page has ${total} bytes, at most ${LARGEST} are allowed`);
  process.exit(1);
}

const check = process.argv.includes("--check");
if (!check) await mkdir(target, { recursive: true });
for (const [name, text] of Object.entries(files)) {
  const path = join(target, name);
  if (!check) {
    await writeFile(path, text);
  } else if ((await readFile(path, "utf8").catch(() => null)) !== text) {
    console.error(`${path} is not what page/ makes: run npm run build in page/`);
    process.exitCode = 1;
  }
}

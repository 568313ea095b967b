// One server and one browser for all tests, a fresh page for each, and what the tests ask of it.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import path from "node:path";
import { createInterface } from "node:readline";
import { after, afterEach, before, beforeEach } from "node:test";
import { parseArgs } from "node:util";

import { chromium } from "playwright-core";

const { values: options } = parseArgs({
  options: { forebay: { type: "string" }, browser: { type: "string" }, screenshots: { type: "string" } },
});
const { forebay, browser: browserPath, screenshots } = options;
if (!forebay || !browserPath || !screenshots) throw new Error("--forebay, --browser and --screenshots are needed");

const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export const DESKTOP = { width: 1360, height: 900 };
export const PHONE = { width: 360, height: 740 };

/** The narrowest screens there are. */
export const NARROW = { width: 320, height: 568 };

/** @type {import("node:child_process").ChildProcess} */
let server;
/** @type {import("playwright-core").Browser} */
let browser;
/** @type {import("playwright-core").BrowserContext} */
let context;
/** @type {import("playwright-core").Page} */
export let page;
export let address = "";
/** @type {string[]} */
export const complaints = [];

before(async () => {
  mkdirSync(screenshots, { recursive: true });
  server = spawn(forebay, ["serve", "--listen", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: server.stdout })) {
    address = line.trim();
    break;
  }
  browser = await chromium.launch({ executablePath: browserPath, args: FLAGS });
});

after(async () => {
  await browser?.close();
  const ended = new Promise((resolve) => server.once("exit", resolve));
  server.kill("SIGINT");
  assert.equal(await ended, 130, "Ctrl-C ends the server");
});

beforeEach(async () => {
  await open({ viewport: DESKTOP, colorScheme: "light" });
});

afterEach(async () => {
  await context.close();
  assert.deepEqual(complaints.splice(0), []);
});

/** A fresh context and page. @param {import("playwright-core").BrowserContextOptions} settings @param {string} [url] */
export async function open(settings, url = address) {
  await context?.close();
  context = await browser.newContext({ ...settings, permissions: ["clipboard-read", "clipboard-write"] });
  page = await context.newPage();
  page.on("console", (message) => {
    // A refused plan is an answer the page shows, which the browser also tells as a failed load.
    const isRefusal = message.text().includes("status of 400") && message.location().url.includes("/api/plan/");
    if (["error", "warning"].includes(message.type()) && !isRefusal) complaints.push(message.text());
  });
  page.on("dialog", (dialog) => complaints.push(`asked ${dialog.message()}`));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => {
    if (new URL(request.url()).host !== new URL(address).host) complaints.push(`asked ${request.url()}`);
  });
  await page.goto(url);
  await settled();
}

/** Until the page shows the report of what its fields say, or why there is none. */
export async function settled() {
  await page.locator("#results:not([aria-busy])").waitFor();
  await page.waitForLoadState("networkidle");
}

/** A field by its name. @param {string} label */
export function field(label) {
  return page.getByLabel(label, { exact: true });
}

/** @param {string} name */
export function figure(name) {
  return page.locator(`[data-figure="${name}"]`).innerText();
}

/** Does something and waits until the figure shows something else. @param {string} name @param {() => Promise<void>} action */
export async function changing(name, action) {
  const old = await figure(name);
  await action();
  await page.waitForFunction(
    ([figureName, text]) => document.querySelector(`[data-figure="${figureName}"]`)?.textContent !== text,
    [name, old],
  );
  await settled();
  return [old, await figure(name)];
}

/** What the command the page shows answers on a terminal. */
export async function terminalReport() {
  const command = await page.locator("#command").innerText();
  const folder = path.dirname(path.resolve(forebay));
  const output = execFileSync("/bin/sh", ["-c", `${command} --json`], {
    env: { PATH: `${folder}:${process.env.PATH}`, HOME: screenshots },
    encoding: "utf8",
  });
  return JSON.parse(output);
}

/** Compares every headline figure with the command line's. */
export async function agreesWithTerminal() {
  const report = await terminalReport();
  const names = await page.locator("[data-figure]").evaluateAll((nodes) => nodes.map((node) => node.getAttribute("data-figure")));
  assert.ok(names.length >= 8, String(names));
  for (const name of names) {
    const known = [...report.figures, ...report.inputs].find((item) => item.name === name);
    assert.equal((await figure(name ?? "")).replaceAll(",", ""), known?.text, name ?? "");
  }
}

/** Elements beyond the right edge, when the page can be moved sideways. @param {number} width */
export function overflowing(width) {
  return page.evaluate((limit) => {
    if (document.documentElement.scrollWidth <= limit) return [];
    const nodes = [...document.querySelectorAll("body *")].filter((node) => node.getBoundingClientRect().right > limit);
    return nodes.map((node) => `${node.tagName} #${node.id} .${node.getAttribute("class")} ${node.getBoundingClientRect().right}`);
  }, width);
}

/** @param {string} name @param {boolean} [fullPage] */
export async function screenshot(name, fullPage = true) {
  await page.screenshot({ path: path.join(screenshots, `${name}.png`), fullPage });
}

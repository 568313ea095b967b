// The planner's page in a real browser: what people do with it, compared with what the command line says.
//
//   node test/browser.mjs --forebay PROGRAM --browser PROGRAM --screenshots FOLDER
//
// `cargo xtask test --browser` builds the program, finds the browser and runs this. Each test starts from a fresh page; at the end
// nothing may have been said on the console, and no other host may have been asked.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import path from "node:path";
import { createInterface } from "node:readline";
import { after, afterEach, before, beforeEach, test } from "node:test";
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

const DESKTOP = { width: 1360, height: 900 };
const PHONE = { width: 360, height: 740 };

/** @type {import("node:child_process").ChildProcess} */
let server;
/** @type {import("playwright-core").Browser} */
let browser;
/** @type {import("playwright-core").BrowserContext} */
let context;
/** @type {import("playwright-core").Page} */
let page;
let address = "";
/** @type {string[]} */
const complaints = [];

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
async function open(settings, url = address) {
  await context?.close();
  context = await browser.newContext({ ...settings, permissions: ["clipboard-read", "clipboard-write"] });
  page = await context.newPage();
  page.on("console", (message) => {
    // A refused plan is an answer the page shows, which the browser also tells as a failed load.
    const isRefusal = message.text().includes("status of 400") && message.location().url.includes("/api/plan/");
    if (["error", "warning"].includes(message.type()) && !isRefusal) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => {
    if (new URL(request.url()).host !== new URL(address).host) complaints.push(`asked ${request.url()}`);
  });
  await page.goto(url);
  await settled();
}

/** Until the page shows the report of what its fields say. */
async function settled() {
  await page.waitForFunction(() => document.querySelector("[data-figure]")?.textContent !== "");
  await page.waitForLoadState("networkidle");
}

/** @param {string} name */
function figure(name) {
  return page.locator(`[data-figure="${name}"]`).innerText();
}

/** Does something and waits until the figure shows something else. @param {string} name @param {() => Promise<void>} action */
async function changing(name, action) {
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
async function terminalReport() {
  const command = await page.locator("#command").innerText();
  const folder = path.dirname(path.resolve(forebay));
  const output = execFileSync("/bin/sh", ["-c", `${command} --json`], {
    env: { PATH: `${folder}:${process.env.PATH}`, HOME: screenshots },
    encoding: "utf8",
  });
  return JSON.parse(output);
}

/** Compares every headline figure with the command line's. */
async function agreesWithTerminal() {
  const report = await terminalReport();
  const names = await page.locator("[data-figure]").evaluateAll((nodes) => nodes.map((node) => node.getAttribute("data-figure")));
  assert.ok(names.length >= 8, String(names));
  for (const name of names) {
    const known = [...report.figures, ...report.inputs].find((item) => item.name === name);
    assert.equal((await figure(name ?? "")).replaceAll(",", ""), known?.text, name ?? "");
  }
}

/** Elements beyond the right edge, when the page can be moved sideways. @param {number} width */
function overflowing(width) {
  return page.evaluate((limit) => {
    if (document.documentElement.scrollWidth <= limit) return [];
    const nodes = [...document.querySelectorAll("body *")].filter((node) => node.getBoundingClientRect().right > limit);
    return nodes.map((node) => `${node.tagName} #${node.id} .${node.getAttribute("class")} ${node.getBoundingClientRect().right}`);
  }, width);
}

/** @param {string} name @param {boolean} [fullPage] */
async function screenshot(name, fullPage = true) {
  await page.screenshot({ path: path.join(screenshots, `${name}.png`), fullPage });
}

test("the page shows what the command line says", async () => {
  assert.match(await figure("checkpoint.goodput"), /^\d+(\.\d+)? %$/);
  await agreesWithTerminal();
  assert.equal(await page.locator("#curve canvas").count(), 1);
  assert.equal(await page.locator("#shares-rows button").count(), 4);
  assert.equal(await page.locator("#tiers-rows .tier").count(), 3);
  await screenshot("light");
});

test("fields begin with what the planner assumes", async () => {
  const { inputs } = await terminalReport();
  for (const [label, name] of [
    ["Fixed time of a save", "checkpoint.sync_overhead"],
    ["Restart", "checkpoint.restart"],
    ["GPU price", "cost.gpu_price"],
    ["Energy price", "cost.energy_price"],
  ]) {
    const { text, given } = inputs.find((input) => input.name === name);
    assert.equal(await page.getByLabel(label, { exact: true }).inputValue(), text.replace(" ", ""), label);
    assert.equal(given, false, `${label} is not said`);
  }
});

test("a slider moves by keyboard and the numbers follow", async () => {
  const slider = page.getByLabel("Storage write rate, slider");
  await slider.focus();
  const [old, now] = await changing("checkpoint.goodput", () => page.keyboard.press("ArrowLeft"));
  assert.ok(Number.parseFloat(now) < Number.parseFloat(old), `${old} ${now}`);
  assert.equal(await page.getByLabel("Storage write rate", { exact: true }).inputValue(), "800GB/s");
  await agreesWithTerminal();
});

test("text takes units, and the slider follows it", async () => {
  const slider = page.getByLabel("Storage write rate, slider");
  const before = await slider.inputValue();
  const field = page.getByLabel("Storage write rate", { exact: true });
  await changing("checkpoint.goodput", () => field.fill("1600 Gb/s"));
  assert.ok(Number(await slider.inputValue()) < Number(before));
  await agreesWithTerminal();
  await changing("checkpoint.size", () => page.getByLabel("Parameters", { exact: true }).fill("70B"));
  await agreesWithTerminal();
});

test("choices count, and tiers reach the command line", async () => {
  await changing("checkpoint.stall", () => page.getByText("goes on").click());
  await agreesWithTerminal();
  await page.getByText("What is kept", { exact: true }).first().click();
  await changing("cost.total_cost", () => page.getByLabel("Warm: price", { exact: true }).fill("$0.2/GB-month"));
  assert.match(await page.locator("#command").innerText(), /retention\.tiers/);
  await agreesWithTerminal();
});

test("an interval can be given and taken back", async () => {
  const field = page.getByLabel("Time between saves", { exact: true });
  const advised = await figure("checkpoint.interval_used");
  assert.equal(await field.getAttribute("placeholder"), advised);
  const [, given] = await changing("checkpoint.interval_used", () => field.fill("1h30min"));
  assert.equal(given, "1.5 h");
  await agreesWithTerminal();
  const [, again] = await changing("checkpoint.interval_used", () => page.getByLabel("Time between saves: compute it again").click());
  assert.equal(again, advised);
});

test("a wrong value is told beside its field, and the last good result stays", async () => {
  const good = await figure("checkpoint.goodput");
  for (const [label, text, words] of [
    ["Storage write rate", "fast", "is not a data rate"],
    ["Parameters", "0", "0"],
    ["GPU price", "-1", "-1"],
    ["Restart", "5m", "minutes or months"],
  ]) {
    const field = page.getByLabel(label, { exact: true });
    const before = await field.inputValue();
    await field.fill(text);
    const error = page.locator(".field.wrong .field-error");
    await error.waitFor();
    assert.ok((await error.innerText()).includes(words), `${label}: ${await error.innerText()}`);
    assert.equal(await field.getAttribute("aria-invalid"), "true", label);
    assert.equal(await figure("checkpoint.goodput"), good);
    assert.ok(await page.locator("#problem").isVisible());
    if (label === "Storage write rate") await screenshot("wrong", false);
    await field.fill(before);
    await error.waitFor({ state: "detached" }).catch(() => error.waitFor({ state: "hidden" }));
    await page.locator("#problem").waitFor({ state: "hidden" });
  }
});

test("a shared address brings everything back", async () => {
  await changing("checkpoint.goodput", () => page.getByLabel("GPUs", { exact: true }).fill("1024"));
  await changing("checkpoint.stall", () => page.getByText("goes on").click());
  const [goodput, url] = [await figure("checkpoint.goodput"), page.url()];
  assert.match(url, /gpus=1024/);
  await page.getByRole("button", { name: "Copy link" }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), url);
  await open({ viewport: DESKTOP }, url);
  assert.equal(await page.getByLabel("GPUs", { exact: true }).inputValue(), "1024");
  assert.ok(await page.getByLabel("goes on").isChecked());
  assert.equal(await figure("checkpoint.goodput"), goodput);
  await changing("checkpoint.goodput", () => page.getByRole("button", { name: "Start over" }).click());
  assert.ok(!page.url().includes("?"), page.url());
});

test("command and JSON are copied as they are shown", async () => {
  await page.getByRole("button", { name: "Copy as command" }).click();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(copied, await page.locator("#command").innerText());
  assert.match(copied, /^forebay plan cluster --set checkpoint\.params=405B /);
  await page.getByRole("button", { name: "Copy as JSON" }).click();
  await page.getByText("JSON copied").waitFor();
  const { request, report } = JSON.parse(await page.evaluate(() => navigator.clipboard.readText()));
  assert.equal(request.checkpoint.params, "405B");
  assert.deepEqual(report.figures, (await terminalReport()).figures);
});

test("every number explains itself, by mouse and by keyboard", async () => {
  await page.locator('[data-explain="checkpoint.goodput"]').first().focus();
  await page.keyboard.press("Enter");
  const dialog = page.locator("#explain");
  await dialog.waitFor();
  for (const word of ["Formula", "Inputs", "Source", "exp("]) assert.ok((await dialog.innerText()).includes(word), word);
  await screenshot("explain", false);
  await dialog.getByRole("button", { name: "stall" }).click();
  assert.equal(await page.locator("#explain-name").innerText(), "checkpoint.stall");
  await dialog.getByRole("button", { name: "Back" }).click();
  assert.equal(await page.locator("#explain-name").innerText(), "checkpoint.goodput");
  await page.keyboard.press("Escape");
  assert.ok(!(await dialog.isVisible()));
  await page.getByText("All figures").click();
  const count = await page.locator("#figures tr").count();
  assert.equal(String(count), await page.locator("#figures-count").innerText());
  await page.locator("#figures button").nth(count - 1).click();
  assert.ok((await dialog.innerText()).includes("Source"));
});

test("light and dark follow the system until they are chosen", async () => {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await background();
  await page.getByRole("button", { name: "Light or dark" }).click();
  const dark = await background();
  assert.notEqual(dark, light);
  await screenshot("dark");
  await page.reload();
  await settled();
  assert.equal(await background(), dark, "the choice stays");
  await open({ viewport: DESKTOP, colorScheme: "dark" });
  assert.equal(await background(), dark, "the system's wish is honoured");
});

test("a phone shows it all", async () => {
  for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
    await open({ viewport: PHONE, deviceScaleFactor: 2, hasTouch: true, isMobile: true, colorScheme });
    assert.deepEqual(await overflowing(PHONE.width), []);
    await screenshot(`phone-${colorScheme}`);
    await screenshot(`phone-${colorScheme}-top`, false);
    const glance = page.locator("#glance-goodput");
    assert.ok(await glance.isVisible());
    assert.equal(await glance.innerText(), await figure("checkpoint.goodput"));
  }
  await page.locator('[data-explain="checkpoint.goodput"]').first().tap();
  await page.locator("#explain").waitFor();
  await screenshot("phone-explain", false);
});

test("warnings are seen", async () => {
  await open({ viewport: DESKTOP }, `${address}?gpus=131072&storage=20GB/s&mode=async`);
  const notes = page.locator("#notes");
  assert.ok(await notes.isVisible());
  assert.ok((await notes.innerText()).includes("Warning"), await notes.innerText());
  await screenshot("warnings");
});

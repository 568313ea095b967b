// Results: that they are the planner's, explain themselves, and are heard.

import assert from "node:assert/strict";
import { test } from "node:test";

import { DESKTOP, PHONE, address, agreesWithTerminal, changing, field, figure, open, page, screenshot, terminalReport } from "./harness.mjs";

test("the page shows what the command line says", async () => {
  assert.match(await figure("checkpoint.goodput"), /^\d+(\.\d+)? %$/);
  await agreesWithTerminal();
  assert.equal(await page.locator("#curve canvas").count(), 1);
  assert.equal(await page.locator("#shares-rows button").count(), 4);
  assert.equal(await page.locator("#tiers-rows .tier").count(), 3);
  await screenshot("light");
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

test("warnings are seen", async () => {
  await open({ viewport: DESKTOP }, `${address}?gpus=131072&storage=20GB/s&mode=async`);
  const notes = page.locator("#notes");
  assert.ok(await notes.isVisible());
  assert.ok((await notes.innerText()).includes("Warning"), await notes.innerText());
  await screenshot("warnings");
});

test("what the plot says is what the planner says", async () => {
  assert.equal(await page.locator("#curve-used").innerText(), `${await figure("checkpoint.interval_used")}, ${await figure("checkpoint.goodput")}`);
  const { figures } = await terminalReport();
  assert.equal(await page.locator("#curve-best").innerText(), figures.find((known) => known.name === "checkpoint.interval_exact").text);
  assert.equal(await page.locator("#curve[data-marked]").count(), 1);
  for (const query of ["mode=async", "mode=async&storage=20GB/s", "mode=async&storage=20GB/s&gpus=131072", "interval=10h", "interval=2min"]) {
    await open({ viewport: DESKTOP }, `${address}?${query}`);
    assert.equal(await page.locator("#curve[data-marked]").count(), 1, `the interval that is used is within the plot: ${query}`);
  }
});

test("a price of energy shows", async () => {
  const energy = page.locator('[data-sum="cost.energy_cost"]');
  const before = await energy.innerText();
  await field("Energy price").fill("$0.3/kWh");
  await page.waitForFunction((text) => document.querySelector('[data-sum="cost.energy_cost"]')?.textContent !== text, before);
});

test("a share that is almost nothing is said in words people read", async () => {
  await open({ viewport: DESKTOP }, `${address}?mtbf=3650d&restart=1s`);
  const texts = await page.locator("#shares-rows .number").allInnerTexts();
  assert.ok(texts.includes("< 0.01 %"), String(texts));
});

test("the table of all figures is made when it is opened, and follows", async () => {
  assert.equal(await page.locator("#figures tr").count(), 0);
  await page.getByText("All figures").click();
  const cell = page.locator("#figures tr", { has: page.locator('[data-explain="checkpoint.goodput"]') }).locator("td.number");
  assert.equal(await cell.innerText(), await figure("checkpoint.goodput"));
  await changing("checkpoint.goodput", () => field("GPUs").fill("1024"));
  assert.equal(await cell.innerText(), await figure("checkpoint.goodput"));
});

test("a change is heard once it is over, and what did not change stays", async () => {
  await open({ viewport: DESKTOP }, `${address}?gpus=131072&storage=20GB/s&mode=async`);
  const status = page.locator("#status");
  await page.waitForFunction(() => document.getElementById("status")?.textContent !== "");
  assert.ok((await status.innerText()).includes(await figure("checkpoint.goodput")), await status.innerText());
  assert.match(await status.innerText(), /warning/);
  assert.equal(await page.locator("#results [aria-live], #results [role=status], #results [role=alert]").count(), 0);
  await page.locator("#notes-list > li").first().evaluate((node) => {
    /** @type {any} */ (node).kept = true;
  });
  const [, cost] = await changing("cost.total_cost", () => field("GPU price").fill("$5/h"));
  assert.ok(await page.locator("#notes-list > li").first().evaluate((node) => /** @type {any} */ (node).kept), "notes are not made anew");
  await page.waitForFunction((text) => document.getElementById("status")?.textContent?.includes(text), cost);
  await field("GPU price").fill("cheap");
  await page.waitForFunction(() => document.getElementById("status")?.textContent?.includes("GPU price:"));
});

test("every control has a name, a description and a state", async () => {
  const roles = "input[type=text], select, [role=radiogroup]";
  const described = await page.locator(roles).evaluateAll((nodes) => nodes.map((node) => {
    const ids = (node.getAttribute("aria-describedby") ?? "").split(" ");
    return ids.length === 2 && ids.every((id) => document.getElementById(id));
  }));
  assert.equal(described.length, await page.locator("#fields .field").count());
  assert.ok(described.every(Boolean));
  const headings = await page.locator("h1, h2").evaluateAll((nodes) => nodes.map((node) => node.tagName));
  assert.equal(headings[0], "H1");
  await open({ viewport: PHONE });
  const glance = await page.locator(".glance").ariaSnapshot();
  assert.ok(glance.includes(await figure("checkpoint.goodput")), glance);
});

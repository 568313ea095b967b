// What cannot be computed, and what should not be there at all.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";

import { DESKTOP, address, changing, complaints, field, figure, open, page, screenshot, terminalReport } from "./harness.mjs";

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

test("every field that is wrong is marked", async () => {
  await field("Storage write rate").fill("fast");
  await field("Restart").fill("5 parsecs");
  await page.getByText("What is kept", { exact: true }).first().click();
  await field("Hot: newest saves").fill("some");
  await page.waitForFunction(() => document.querySelectorAll(".field.wrong").length === 3);
  const problem = await page.locator("#problem").innerText();
  for (const label of ["Storage write rate", "Restart", "Hot: newest saves"]) {
    assert.equal(await field(label).getAttribute("aria-invalid"), "true", label);
    assert.ok(problem.includes(`${label}: `), problem);
  }
  assert.equal(await field("GPU price").getAttribute("aria-invalid"), null);
});

test("an address that cannot be computed says why, instead of empty cards", async () => {
  await open({ viewport: DESKTOP }, `${address}?storage=fast&mode=later`);
  assert.match(await page.locator("#problem").innerText(), /Storage write rate: .*not a data rate/);
  assert.match(await page.locator("#aside").innerText(), /mode=later/);
  assert.equal(await page.locator("#results").getAttribute("aria-busy"), null);
  assert.ok(!(await page.locator("#headline").isVisible()));
  assert.ok(!(await page.locator("figure").first().isVisible()));
  await screenshot("refused", false);
  await field("Storage write rate").fill("2TB/s");
  await page.locator('[data-figure="checkpoint.goodput"]').waitFor();
  assert.ok(!(await page.locator("#problem").isVisible()));
  assert.equal(await page.locator("#curve canvas").count(), 1);
});

test("a field that is needed is not guessed", async () => {
  await open({ viewport: DESKTOP }, `${address}?gpus=&restart=`);
  assert.equal(await page.locator(".field.wrong").count(), 1);
  assert.match(await page.locator("[data-field=gpus] .field-error").innerText(), /needed/);
  assert.equal(await field("GPUs").getAttribute("aria-invalid"), "true");
  // What the planner assumes need not be said.
  assert.equal(await field("Restart").getAttribute("placeholder"), "10min");
});

test("a slider of nothing stands at the left", async () => {
  await open({ viewport: DESKTOP }, `${address}?params=0&sync_overhead=0`);
  assert.equal(await page.getByLabel("Parameters, slider").inputValue(), "0");
  assert.equal(await page.getByLabel("Fixed time of a save, slider").inputValue(), "0");
});

test("an address can hold anything, and does nothing", async () => {
  const hostile = `<img src=x onerror="document.title='hacked'">'; touch hacked; $(touch hacked) \u0060touch hacked\u0060`;
  const query = new URLSearchParams({
    params: hostile, storage: hostile, cold_price: hostile, mode: hostile, failures: hostile, __proto__: "x", constructor: hostile,
  });
  await open({ viewport: DESKTOP }, `${address}?${query}`);
  assert.equal(await page.locator("img[src=x]").count(), 0);
  assert.ok(!(await page.title()).includes("hacked"));
  assert.equal(await field("Parameters").inputValue(), hostile);
  assert.ok((await page.locator("#problem").innerText()).includes("<img"), "what was said is shown as it is");
  assert.ok((await page.locator("#aside").innerText()).includes("mode=<img"));
  // A shell takes the command for what it is: the planner refuses, and nothing else happens.
  await assert.rejects(terminalReport, /not a count/);
  assert.ok(!existsSync(path.join(process.cwd(), "hacked")));
});

test("a reply that is not the planner's is told as such", async () => {
  await page.route("**/api/plan/cluster", (route) => route.fulfill({ status: 200, contentType: "text/html", body: "<p>proxy" }));
  await field("GPUs").fill("1024");
  await page.locator("#problem").waitFor();
  assert.match(await page.locator("#problem").innerText(), /not from the planner/);
  await page.unroute("**/api/plan/cluster");
  await field("GPUs").fill("2048");
  await page.locator("#problem").waitFor({ state: "hidden" });
});

test("a busy planner is asked again", async () => {
  let refusals = 1;
  await page.route("**/api/plan/cluster", (route) => {
    if (refusals === 0) return route.continue();
    refusals -= 1;
    return route.fulfill({ status: 503, headers: { "Retry-After": "1" }, json: { error: { kind: "throttled", message: "busy" } } });
  });
  await changing("checkpoint.goodput", () => field("GPUs").fill("1024"));
  assert.ok(!(await page.locator("#problem").isVisible()));
  complaints.splice(0);
});

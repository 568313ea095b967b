// Inputs: what they begin with, how they move, and how a state travels.

import assert from "node:assert/strict";
import { test } from "node:test";

import { DESKTOP, address, agreesWithTerminal, changing, field, figure, open, page, terminalReport } from "./harness.mjs";

test("fields begin with what the planner assumes", async () => {
  const { inputs, figures } = await terminalReport();
  for (const [label, name] of [
    ["Fixed time of a save", "checkpoint.sync_overhead"],
    ["Restart", "checkpoint.restart"],
    ["GPU price", "cost.gpu_price"],
    ["Energy price", "cost.energy_price"],
  ]) {
    const { text, origin } = inputs.find((input) => input.name === name);
    assert.equal(await field(label).inputValue(), text.replace(" ", ""), label);
    assert.equal(origin, "default", `${label} is not said`);
  }
  for (const [label, of, name] of [
    ["Hot: newest saves", "retention.saves.hot", "keep"],
    ["Warm: every save of the last", "retention.saves.warm", "window"],
    ["Cold: kept for", "retention.saves.cold", "window"],
    ["Hot: price", "retention.tier_cost.hot", "price"],
    ["Warm: price", "retention.tier_cost.warm", "price"],
    ["Cold: price", "retention.tier_cost.cold", "price"],
  ]) {
    const { text } = figures.find((figure) => figure.name === of).inputs.find((input) => input.name === name);
    assert.equal(await field(label).inputValue(), text.replace(" ", ""), label);
  }
});

test("every word of the planner can be chosen", async () => {
  const { models } = await (await page.request.get(new URL("/api/models", address).href)).json();
  const { fields } = models.find((model) => model.name === "checkpoint");
  for (const [id, name] of [["mode", "mode"], ["path", "path"], ["failures", "failures"]]) {
    const { choices, default: assumed } = fields.find((known) => known.name === name);
    const words = await page.locator(`[data-field=${id}] :is(option, input)`).evaluateAll((nodes) => nodes.map((node) => node.value));
    assert.deepEqual(words.filter((word) => word !== ""), choices, id);
    const chosen = page.locator(`[data-field=${id}] :is(option:checked, input:checked)`);
    assert.equal(await chosen.getAttribute("value"), assumed ?? "", id);
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

test("the address follows once per change, and need not", async () => {
  await page.evaluate(() => {
    const { replaceState } = history;
    const counter = /** @type {any} */ (globalThis);
    counter.replaced = 0;
    history.replaceState = function (...args) {
      counter.replaced += 1;
      if (counter.refuse) throw new DOMException("too often", "SecurityError");
      return replaceState.apply(this, args);
    };
  });
  const drag = () => page.getByLabel("Storage write rate, slider").evaluate((slider) => {
    for (let step = 0; step < 20; step += 1) {
      /** @type {HTMLInputElement} */ (slider).value = String(step);
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    }
  });
  await changing("checkpoint.goodput", drag);
  assert.equal(await page.evaluate(() => /** @type {any} */ (globalThis).replaced), 1);
  assert.match(page.url(), /storage=/);
  await page.evaluate(() => {
    /** @type {any} */ (globalThis).refuse = true;
  });
  await changing("checkpoint.goodput", () => field("Storage write rate").fill("3TB/s"));
  await page.getByRole("button", { name: "Copy link" }).click();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(new URL(copied).searchParams.get("storage"), "3TB/s", "the link says what the fields say");
});

test("a field says what it is when asked, by touch and by keyboard", async () => {
  const about = page.getByRole("button", { name: "What is Restart?" });
  const note = page.locator("#field-restart-note");
  assert.ok(!(await note.isVisible()));
  await about.focus();
  await page.keyboard.press("Enter");
  assert.ok((await note.innerText()).length > 20);
  assert.equal(await about.getAttribute("aria-expanded"), "true");
  await about.click();
  assert.ok(!(await note.isVisible()));
  for (const name of await page.locator("#fields .field").evaluateAll((nodes) => nodes.map((node) => node.getAttribute("data-field")))) {
    assert.notEqual(await page.locator(`#field-${name}-note`).textContent(), "", `${name} is explained`);
  }
});

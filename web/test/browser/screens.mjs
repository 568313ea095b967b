// Screens: wide and narrow, light and dark.

import assert from "node:assert/strict";
import { test } from "node:test";

import { DESKTOP, NARROW, PHONE, address, figure, open, overflowing, page, screenshot, settled } from "./harness.mjs";

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

test("nothing is cut off on the narrowest screens, however long the numbers", async () => {
  const long = "gpus=131071&gpu_price=$11.99/h&interval=1h2min3s&warm_window=14d&hot_price=$9/GB-month";
  for (const [name, query] of [["narrow", ""], ["narrow-long", `?${long}`]]) {
    for (const viewport of [NARROW, PHONE]) {
      await open({ viewport, deviceScaleFactor: 2, hasTouch: true, isMobile: true }, `${address}${query}`);
      assert.deepEqual(await overflowing(viewport.width), [], name);
      const clipped = await page.locator(".stat .value, .glance b, .tier .number, .row .number, .actions button").evaluateAll((nodes) => nodes
        .filter((node) => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== "inline")
        .map((node) => `${node.textContent} ${node.scrollWidth} > ${node.clientWidth}`));
      assert.deepEqual(clipped, [], `${name} at ${viewport.width}`);
      const wrapped = await page.locator(".stat .value, .tier .number, .row .number").evaluateAll((nodes) => nodes
        .filter((node) => node.getClientRects().length > 1 || node.getBoundingClientRect().height > 40)
        .map((node) => node.textContent));
      assert.deepEqual(wrapped, [], `${name} at ${viewport.width}: numbers stay on one line`);
      const theme = await page.getByRole("button", { name: "Light or dark" }).boundingBox();
      assert.ok(theme && theme.x >= 0 && theme.x + theme.width <= viewport.width, JSON.stringify(theme));
      const spans = await page.locator(".glance > span:not(.unseen)").evaluateAll((nodes) => nodes.map((node) => {
        const range = document.createRange();
        range.selectNodeContents(node);
        const { left, right } = range.getBoundingClientRect();
        return [left, right];
      }));
      spans.slice(1).forEach(([left], index) => assert.ok(left >= spans[index][1], `the numbers at the foot stand apart: ${spans}`));
      await screenshot(`${name}-${viewport.width}`);
      await screenshot(`${name}-${viewport.width}-top`, false);
    }
  }
});

test("colours of the system's choice leave sliders and bars to be seen", async () => {
  await open({ viewport: DESKTOP, forcedColors: "active" });
  assert.deepEqual(await overflowing(DESKTOP.width), []);
  const colours = await page.locator(".stack .part").evaluateAll((nodes) => nodes.map((node) => getComputedStyle(node).backgroundColor));
  assert.equal(new Set(colours).size, colours.length, String(colours));
  await screenshot("forced-colors");
});

// Positions of sliders.

import assert from "node:assert/strict";
import { test } from "node:test";

import { counts, doublings, nearest, prices, rates, times, wholes } from "../../scale.js";
import { FORM } from "./form.mjs";

const texts = (/** @type {import("../../types").Step[]} */ steps) => steps.map((step) => step.text);

test("round numbers are written as people write them", () => {
  assert.deepEqual(texts(counts(1e9, 1e10, [7e9])), ["1B", "1.5B", "2B", "3B", "4B", "5B", "6B", "7B", "8B", "10B"]);
  assert.deepEqual(texts(rates(500e6, 2e9)), ["500MB/s", "600MB/s", "800MB/s", "1GB/s", "1.5GB/s", "2GB/s"]);
  assert.deepEqual(texts(times([10, 90, 5400, 86400])), ["10s", "1.5min", "1.5h", "1d"]);
  assert.deepEqual(texts(doublings(8, 64)), ["8", "16", "32", "64"]);
  assert.deepEqual(texts(prices([0.5, 2], "/h")), ["$0.5/h", "$2/h"]);
  assert.deepEqual(texts(wholes(1, 3)), ["1", "2", "3"]);
});

test("every slider rises, and no text stands twice", () => {
  const sliders = FORM.fields.filter((field) => field.steps);
  assert.ok(sliders.length > 10);
  for (const { id, steps = [] } of sliders) {
    assert.ok(steps.length > 5, id);
    assert.equal(new Set(texts(steps)).size, steps.length, id);
    steps.slice(1).forEach((step, index) => assert.ok(step.value > steps[index].value, `${id}: ${step.text}`));
  }
});

test("the nearest step is the nearest by factor", () => {
  const steps = doublings(8, 1024);
  for (const [value, text] of /** @type {[number, string][]} */ ([[8, "8"], [11, "8"], [12, "16"], [1000, "1024"], [1e12, "1024"], [1, "8"]])) {
    assert.equal(steps[nearest(steps, value)].text, text, String(value));
  }
});

test("what is no number, or none a slider has, is at the beginning", () => {
  const steps = doublings(8, 1024);
  for (const value of [0, -1, Number.NaN, -Infinity, Number.MIN_VALUE]) assert.equal(nearest(steps, value), 0, String(value));
  assert.equal(nearest(steps, Infinity), steps.length - 1);
  const fromZero = [{ value: 0, text: "0s" }, ...times([1, 2, 3])];
  assert.equal(nearest(fromZero, 0), 0);
  assert.equal(nearest(fromZero, 1), 1);
  assert.equal(nearest(fromZero, 0.9), 1);
});

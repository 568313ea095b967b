// The four forms of a scenario: address, request, command line, and what is wrong before anybody is asked.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";

import { formOf } from "../../fields.js";
import { commandOf, initialState, leftAside, missing, queryOf, requestOf, shellWord, stateOf } from "../../scenario.js";
import { FORM, MODELS, TIERS } from "./form.mjs";

/** Values that mean something to a shell, to TOML, to an address or to JavaScript. */
const HOSTILE = [
  "'; touch hacked; '",
  "$(touch hacked)",
  "`touch hacked`",
  "a && b || c ; d | e > f < g & h",
  "\"quoted\" 'twice'",
  "back\\slash \\' \\\\",
  "* ? [a-z] {a,b} ~ !! #no comment",
  "-n",
  "--set",
  "[1, 2]",
  "{ a = 1 }",
  "\"text\"",
  "'text'",
  "a=b&c=d%20e+f#g",
  "<img src=x onerror=alert(1)>",
  "__proto__",
  "\u00fc\u{1f600} \u4e2d",
  "$HOME ${HOME}",
];

/** The words a shell makes of a line. @param {string} line */
function words(line) {
  const script = `forebay() { printf '%s\\0' "$@"; }\n${line}`;
  const output = execFileSync("/bin/sh", ["-c", script], { encoding: "utf8", env: { HOME: "/nowhere" } });
  return output.split("\0").slice(0, -1);
}

test("fields begin with what the planner assumes, or with the page's own choice", () => {
  const state = initialState(FORM);
  assert.deepEqual(
    [state.mode, state.path, state.failures, state.restart, state.sync_overhead, state.gpu_price, state.energy_price],
    ["async", "gds", "", "7min", "0s", "$3/h", "$0.2/kWh"],
  );
  assert.deepEqual([state.hot_keep, state.warm_window, state.cold_window, state.cold_price], ["5", "2d", "60d", "$0.02/GB-month"]);
  assert.deepEqual([state.params, state.gpus, state.storage], ["405B", "16384", "1TB/s"]);
  assert.deepEqual([state.interval, state.mtbf], ["", ""]);
  const mode = FORM.fields.find((field) => field.id === "mode");
  assert.deepEqual(mode?.choices, [["sync", "waits"], ["async", "goes on"], ["never", "never"]]);
  assert.equal(mode?.doc, "What mode is.");
  const failures = FORM.fields.find((field) => field.id === "failures");
  assert.deepEqual(failures?.choices?.map(([word]) => word), ["", "llama3", "rsc1"], "saying nothing is a choice");
});

test("a planner without a field the page needs is noticed", () => {
  const [checkpoint, cost, retention] = MODELS;
  const fields = checkpoint.fields.filter((field) => field.name !== "restart");
  assert.throws(() => formOf([{ ...checkpoint, fields }, cost, retention]), /no field checkpoint\.restart/);
  const tiers = { ...retention.fields[0], items: TIERS.slice(1) };
  assert.throws(() => formOf([checkpoint, cost, { ...retention, fields: [tiers] }]), /tier hot says no keep/);
});

test("what is assumed is not said", () => {
  assert.deepEqual(requestOf(FORM, initialState(FORM)), {
    checkpoint: { params: "405B", gpus: "16384", storage: "1TB/s" },
    cost: { gpus: "16384" },
  });
});

test("one changed tier brings all of them, with what the page has no field for", () => {
  const { retention } = requestOf(FORM, { ...initialState(FORM), warm_price: " $1/GB-month " });
  assert.deepEqual(retention?.tiers, [
    { name: "hot", keep: "5", price: "$0.2/GB-month" },
    { name: "warm", window: "2d", price: "$1/GB-month" },
    { name: "cold", window: "60d", every: "12 h", price: "$0.02/GB-month" },
  ]);
});

test("an address brings every state back", () => {
  assert.equal(queryOf(FORM, initialState(FORM)), "");
  for (const field of FORM.fields) {
    const texts = field.choices ? field.choices.map(([word]) => word) : [...HOSTILE, "", " 1 "];
    for (const text of texts) {
      const state = { ...initialState(FORM), [field.id]: text };
      assert.deepEqual(stateOf(FORM, queryOf(FORM, state)), state, `${field.id}: ${text}`);
    }
  }
});

test("what an address says that nobody knows is left aside and told", () => {
  const query = "?mode=later&gpus=8&__proto__=x&constructor=y&toString=z&mode=sync";
  const state = stateOf(FORM, query);
  assert.deepEqual(state, { ...initialState(FORM), gpus: "8" });
  assert.deepEqual(leftAside(FORM, query), ["mode=later", "__proto__=x", "constructor=y", "toString=z"]);
  assert.deepEqual(leftAside(FORM, "?gpus=8"), []);
});

test("characters nobody sees do not get into a command", () => {
  const state = stateOf(FORM, "?params=1%00%0a%0d%1b%7f%c2%85%e2%80%ae2");
  assert.match(state.params, /^1 +2$/);
});

test("a field that is needed and says nothing is wrong", () => {
  const state = { ...initialState(FORM), gpus: "", params: "  ", restart: "", interval: "", hot_keep: "" };
  const wrong = missing(FORM, state);
  assert.deepEqual([...wrong.keys()], ["params", "gpus", "hot_keep"]);
  assert.match(wrong.get("gpus")?.hint ?? "", /16384/);
  assert.equal(missing(FORM, initialState(FORM)).size, 0);
});

test("a shell reads every word as it was meant", () => {
  for (const text of [...HOSTILE, "line\nbreak", ""]) {
    assert.deepEqual(words(`forebay ${shellWord(text)}`), [text], JSON.stringify(text));
  }
});

test("a command says what the request says, whatever it is", () => {
  for (const text of HOSTILE) {
    const state = { ...initialState(FORM), params: text, restart: text, cold_price: text };
    const request = requestOf(FORM, state);
    const [plan, cluster, ...settings] = words(commandOf(FORM, state));
    assert.deepEqual([plan, cluster], ["plan", "cluster"]);
    /** @type {Record<string, string>} */
    const given = {};
    for (let index = 0; index < settings.length; index += 2) {
      assert.equal(settings[index], "--set");
      const at = settings[index + 1].indexOf("=");
      given[settings[index + 1].slice(0, at)] = settings[index + 1].slice(at + 1);
    }
    const said = /^[[{"']/.test(text) ? JSON.stringify(text) : text;
    assert.equal(given["checkpoint.params"], said);
    assert.equal(given["checkpoint.restart"], said);
    assert.equal(given["cost.gpus"], "16384");
    assert.ok(given["retention.tiers"].endsWith(`price = ${JSON.stringify(text)} }]`), given["retention.tiers"]);
    assert.equal(request.retention?.tiers[2].price, text);
  }
});

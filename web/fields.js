// The inputs of the page: which field of the planner each of them is, and where its slider goes.
//
// Defaults, words to choose from and meaning are the planner's own, from its list at run time: here is only where a field
// stands and what it is called. The few that begin with something else than the planner assumes say so in `initial`.

import { counts, doublings, prices, rates, times, wholes } from "./scale.js";

/** @typedef {import("./types").FieldLayout} FieldLayout */
/** @typedef {import("./types").FieldSpec} FieldSpec */
/** @typedef {import("./types").Form} Form */
/** @typedef {import("./types").GroupLayout} GroupLayout */
/** @typedef {import("./types").Model} Model */

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const INTERVALS = times([
  10, 20, 30, MINUTE, 2 * MINUTE, 3 * MINUTE, 5 * MINUTE, 7 * MINUTE, 10 * MINUTE, 15 * MINUTE, 20 * MINUTE,
  30 * MINUTE, 45 * MINUTE, HOUR, 1.5 * HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 8 * HOUR, 12 * HOUR, DAY,
]);

const MEAN_TIMES = times([
  10 * MINUTE, 20 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 8 * HOUR, 12 * HOUR, DAY,
  2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 60 * DAY, 120 * DAY,
]);

const RESTARTS = times([
  10, 20, 30, MINUTE, 2 * MINUTE, 3 * MINUTE, 5 * MINUTE, 7 * MINUTE, 10 * MINUTE, 15 * MINUTE, 20 * MINUTE,
  30 * MINUTE, 45 * MINUTE, HOUR, 2 * HOUR,
]);

const OVERHEADS = [{ value: 0, text: "0s" }, ...times([1, 2, 3, 5, 10, 15, 20, 30, MINUTE, 2 * MINUTE])];

const STORAGE_PRICES = prices([0.004, 0.01, 0.0125, 0.023, 0.03, 0.05, 0.08, 0.1, 0.14, 0.2, 0.3, 0.5], "/GB-month");

/** @type {GroupLayout[]} */
const LAYOUT = [
  {
    title: "Training",
    fields: [
      {
        id: "params",
        model: "checkpoint",
        name: "params",
        label: "Parameters",
        initial: "405B",
        steps: counts(1e9, 10e12, [7e9, 13e9, 70e9, 175e9, 405e9]),
      },
      { id: "gpus", model: "checkpoint", name: "gpus", label: "GPUs", initial: "16384", steps: doublings(8, 131072) },
    ],
  },
  {
    title: "Saving",
    fields: [
      {
        id: "storage",
        model: "checkpoint",
        name: "storage",
        label: "Storage write rate",
        initial: "1TB/s",
        steps: rates(1e9, 20e12),
      },
      {
        id: "mode",
        model: "checkpoint",
        name: "mode",
        label: "Training during a save",
        labels: { sync: "waits", async: "goes on" },
      },
      {
        id: "path",
        model: "checkpoint",
        name: "path",
        label: "Way out of the GPU",
        labels: { bounce: "host memory", gds: "GPUDirect" },
      },
      {
        id: "interval",
        model: "checkpoint",
        name: "interval",
        label: "Time between saves",
        computed: "checkpoint.interval_used",
        steps: INTERVALS,
      },
      {
        id: "sync_overhead",
        model: "checkpoint",
        name: "sync_overhead",
        label: "Fixed time of a save",
        steps: OVERHEADS,
      },
    ],
  },
  {
    title: "Failures",
    fields: [
      {
        id: "failures",
        model: "checkpoint",
        name: "failures",
        label: "As often as on",
        labels: {
          llama3: "Llama 3, 16k H100",
          mlcommons: "MLCommons' assumption",
          rsc1: "RSC-1, A100",
          opt175b: "OPT-175B, A100",
        },
      },
      {
        id: "mtbf",
        model: "checkpoint",
        name: "mtbf",
        label: "Mean time between failures",
        computed: "checkpoint.mtbf",
        steps: MEAN_TIMES,
      },
      {
        id: "restart",
        model: "checkpoint",
        name: "restart",
        label: "Restart",
        steps: RESTARTS,
      },
    ],
  },
  {
    title: "Cost",
    fields: [
      {
        id: "gpu_price",
        model: "cost",
        name: "gpu_price",
        label: "GPU price",
        steps: prices([0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10, 12], "/h"),
      },
      {
        id: "energy_price",
        model: "cost",
        name: "energy_price",
        label: "Energy price",
        steps: prices([0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5], "/kWh"),
      },
    ],
  },
  {
    title: "What is kept",
    folded: true,
    fields: [
      {
        id: "hot_keep",
        model: "retention",
        name: "hot.keep",
        label: "Hot: newest saves",
        note: "On the fastest storage, to restart from.",
        steps: wholes(1, 20),
      },
      {
        id: "hot_price",
        model: "retention",
        name: "hot.price",
        label: "Hot: price",
        note: "Of holding a gigabyte there for a month.",
        steps: STORAGE_PRICES,
      },
      {
        id: "warm_window",
        model: "retention",
        name: "warm.window",
        label: "Warm: every save of the last",
        note: "To go back behind a bad step.",
        steps: times([HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY, 5 * DAY, 7 * DAY, 14 * DAY]),
      },
      {
        id: "warm_price",
        model: "retention",
        name: "warm.price",
        label: "Warm: price",
        note: "Of holding a gigabyte there for a month.",
        steps: STORAGE_PRICES,
      },
      {
        id: "cold_window",
        model: "retention",
        name: "cold.window",
        label: "Cold: kept for",
        note: "In an object store, to compare and to publish.",
        steps: times([7 * DAY, 14 * DAY, 30 * DAY, 60 * DAY, 90 * DAY, 120 * DAY, 180 * DAY, 365 * DAY, 730 * DAY]),
      },
      {
        id: "cold_price",
        model: "retention",
        name: "cold.price",
        label: "Cold: price",
        note: "Of holding a gigabyte there for a month.",
        steps: STORAGE_PRICES,
      },
    ],
  },
];

/**
 * The form, with everything the planner says about its fields.
 *
 * @param {Model[]} models
 * @returns {Form}
 */
export function formOf(models) {
  const tiers = fieldOf(models, "retention", "tiers").items;
  const groups = LAYOUT.map((group) => ({
    ...group,
    fields: group.fields.map((field) => (field.model === "retention" ? tierField(field, tiers) : modelField(field, models))),
  }));
  return { groups, tiers, fields: groups.flatMap((group) => group.fields) };
}

/**
 * @param {FieldLayout} layout
 * @param {Model[]} models
 * @returns {FieldSpec}
 */
function modelField(layout, models) {
  const { default: assumed, choices, doc } = fieldOf(models, layout.model, layout.name);
  const isAssumed = layout.initial === undefined && layout.computed === undefined;
  return {
    ...layout,
    initial: layout.initial ?? (isAssumed ? typed(assumed ?? "") : ""),
    assumed: isAssumed,
    needed: layout.initial !== undefined,
    choices: choices.length === 0 ? undefined : offered(choices, assumed !== null, layout),
    doc: layout.note ?? doc,
  };
}

/**
 * Words to choose from; where the planner has no default, saying none of them is a choice as well.
 *
 * @param {string[]} words
 * @param {boolean} hasDefault
 * @param {FieldLayout} layout
 * @returns {[string, string][]}
 */
function offered(words, hasDefault, { labels = {} }) {
  const named = words.map((word) => /** @type {[string, string]} */ ([word, labels[word] ?? word]));
  return hasDefault ? named : [["", "what the planner assumes"], ...named];
}

/**
 * A field of one of the tiers the planner assumes.
 *
 * @param {FieldLayout} layout
 * @param {Record<string, string>[]} tiers
 * @returns {FieldSpec}
 */
function tierField(layout, tiers) {
  const [tier, name] = layout.name.split(".");
  const table = tiers.find((known) => known.name === tier);
  const text = table?.[name];
  if (text === undefined) throw new Error(`the planner's tier ${tier} says no ${name}`);
  const every = name === "window" && table?.every ? ` One save every ${table.every}.` : "";
  return { ...layout, initial: typed(text), assumed: false, needed: true, doc: `${layout.note ?? ""}${every}` };
}

/** @param {Model[]} models @param {string} model @param {string} name */
function fieldOf(models, model, name) {
  const found = models.find((known) => known.name === model)?.fields.find((field) => field.name === name);
  if (!found) throw new Error(`the planner has no field ${model}.${name}`);
  return found;
}

/** As people type it: `10 min` without the space. @param {string} text */
function typed(text) {
  return text.replace(/^([\d.]+) (?=[a-zA-Z])/, "$1");
}

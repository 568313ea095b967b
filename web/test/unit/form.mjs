// A planner with a field for everything the page asks, and defaults of its own: the page must take them from there.

import { formOf } from "../../fields.js";

/** @param {string} name @param {string | null} value @param {string[]} [choices] */
function field(name, value, choices = []) {
  return { name, kind: "", unit: null, default: value, choices, doc: `What ${name} is.`, items: [] };
}

export const TIERS = [
  { name: "hot", keep: "5", price: "$0.2/GB-month" },
  { name: "warm", window: "2 d", price: "$0.1/GB-month" },
  { name: "cold", window: "60 d", every: "12 h", price: "$0.02/GB-month" },
];

export const MODELS = [
  {
    name: "checkpoint",
    summary: "",
    fields: [
      field("params", null),
      field("gpus", "8"),
      field("storage", null),
      field("mode", "async", ["sync", "async", "never"]),
      field("path", "gds", ["gds", "bounce"]),
      field("interval", null),
      field("sync_overhead", "0 s"),
      field("failures", null, ["llama3", "rsc1"]),
      field("mtbf", null),
      field("restart", "7 min"),
    ],
  },
  { name: "cost", summary: "", fields: [field("gpu_price", "$3/h"), field("energy_price", "$0.2/kWh")] },
  { name: "retention", summary: "", fields: [{ ...field("tiers", "three of them"), items: TIERS }] },
];

export const FORM = formOf(MODELS);

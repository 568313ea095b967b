// What the fields say, in its four forms: the address of the page, the request to the planner, the command line, JSON.

import { FIELDS } from "./fields.js";

/** @typedef {import("./types").State} State */

/** @typedef {Record<string, string>} Table */

/**
 * A request to the model `cluster`; only tables are given, so that nothing else of a cluster is computed.
 *
 * @typedef {{ checkpoint: Table, cost: Table, retention?: { tiers: Table[] } }} Request
 */

/** One save a day goes to the cold tier. */
const COLD_EVERY = "1d";

/** @returns {State} */
export function initialState() {
  return Object.fromEntries(FIELDS.map((field) => [field.id, field.initial]));
}

/**
 * What an address says, on top of what fields say at first; names nobody knows are left aside.
 *
 * @param {string} query
 * @returns {State}
 */
export function stateOf(query) {
  const state = initialState();
  const given = new URLSearchParams(query);
  for (const { id, choices } of FIELDS) {
    const text = given.get(id);
    const known = !choices || choices.some(([word]) => word === text);
    if (text !== null && known) state[id] = text;
  }
  return state;
}

/**
 * The address that restores a state: only what differs from the beginning.
 *
 * @param {State} state
 */
export function queryOf(state) {
  const given = new URLSearchParams();
  for (const { id, initial } of FIELDS) {
    if (state[id] !== initial) given.set(id, state[id]);
  }
  // Slashes and dollars may stay in a query, where people read them.
  const text = given.toString().replaceAll("%2F", "/").replaceAll("%24", "$");
  return text === "" ? "" : `?${text}`;
}

/**
 * The request to the planner.
 *
 * @param {State} state
 * @returns {Request}
 */
export function requestOf(state) {
  /** @type {Request} */
  const request = { checkpoint: {}, cost: {} };
  for (const { id, model, name, initial, assumed } of FIELDS) {
    const text = state[id].trim();
    if (model === "retention" || text === "") continue;
    // What the planner assumes anyway is not said, so that commands stay short.
    if (assumed && text === initial) continue;
    request[model][name] = text;
  }
  if (request.checkpoint.gpus) request.cost.gpus = request.checkpoint.gpus;
  const kept = FIELDS.filter((field) => field.model === "retention");
  if (kept.some((field) => state[field.id] !== field.initial)) {
    request.retention = { tiers: tiersOf(state) };
  }
  return request;
}

/**
 * @param {State} state
 * @returns {Table[]}
 */
function tiersOf(state) {
  /** @type {Map<string, Table>} */
  const tiers = new Map();
  for (const { id, model, name } of FIELDS) {
    if (model !== "retention") continue;
    const [tier, field] = name.split(".");
    const table = tiers.get(tier) ?? { name: tier };
    if (tier === "cold") table.every = COLD_EVERY;
    table[field] = state[id].trim();
    tiers.set(tier, table);
  }
  return [...tiers.values()];
}

/**
 * The line that asks the same on a terminal.
 *
 * @param {State} state
 */
export function commandOf(state) {
  const request = requestOf(state);
  const words = ["forebay", "plan", "cluster"];
  for (const model of /** @type {const} */ (["checkpoint", "cost"])) {
    for (const [name, text] of Object.entries(request[model])) {
      words.push("--set", shellWord(`${model}.${name}=${settingOf(text)}`));
    }
  }
  if (request.retention) {
    const tables = request.retention.tiers.map(tomlTable);
    words.push("--set", shellWord(`retention.tiers=[${tables.join(", ")}]`));
  }
  return words.join(" ");
}

/**
 * A value of `--set`; what begins like a list, table or quoted text must be quoted to stay what it is.
 *
 * @param {string} text
 */
function settingOf(text) {
  return /^[[{"']/.test(text) ? tomlText(text) : text;
}

/** @param {Table} table */
function tomlTable(table) {
  const pairs = Object.entries(table).map(([name, text]) => `${name} = ${tomlText(text)}`);
  return `{ ${pairs.join(", ")} }`;
}

/** JSON's escapes are TOML's too. @param {string} text */
function tomlText(text) {
  return JSON.stringify(text);
}

/**
 * A word as a shell reads it.
 *
 * @param {string} word
 */
function shellWord(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

// What the fields say, in its four forms: the address of the page, the request to the planner, the command line, JSON.

/** @typedef {import("./types").FieldSpec} FieldSpec */
/** @typedef {import("./types").Form} Form */
/** @typedef {import("./types").Problem} Problem */
/** @typedef {import("./types").State} State */

/** @typedef {Record<string, string>} Table */

/**
 * A request to the model `cluster`; only tables are given, so that nothing else of a cluster is computed.
 *
 * @typedef {{ checkpoint: Table, cost: Table, retention?: { tiers: Table[] } }} Request
 */

/** Characters that are no text: they would end a line in a terminal, or show something else than what is there. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;

/** @param {Form} form @returns {State} */
export function initialState(form) {
  return Object.fromEntries(form.fields.map((field) => [field.id, field.initial]));
}

/**
 * What an address says, on top of what fields say at first.
 *
 * @param {Form} form
 * @param {string} query
 * @returns {State}
 */
export function stateOf(form, query) {
  const state = initialState(form);
  const given = new URLSearchParams(query);
  for (const field of form.fields) {
    const text = given.get(field.id);
    if (text !== null && offers(field, text)) state[field.id] = text.replace(UNSEEN, " ");
  }
  return state;
}

/**
 * What an address says that the page has no place for: names nobody knows, words that are not offered.
 *
 * @param {Form} form
 * @param {string} query
 */
export function leftAside(form, query) {
  const given = [...new URLSearchParams(query)];
  return given
    .filter(([id, text]) => !form.fields.some((field) => field.id === id && offers(field, text)))
    .map(([id, text]) => `${id}=${text}`);
}

/** @param {FieldSpec} field @param {string} text */
function offers({ choices }, text) {
  return !choices || choices.some(([word]) => word === text);
}

/**
 * The address that restores a state: only what differs from the beginning.
 *
 * @param {Form} form
 * @param {State} state
 */
export function queryOf(form, state) {
  const given = new URLSearchParams();
  for (const { id, initial } of form.fields) {
    if (state[id] !== initial) given.set(id, state[id]);
  }
  // Slashes and dollars may stay in a query, where people read them.
  const text = given.toString().replaceAll("%2F", "/").replaceAll("%24", "$");
  return text === "" ? "" : `?${text}`;
}

/**
 * What is wrong before the planner is asked: fields that are needed and say nothing.
 *
 * @param {Form} form
 * @param {State} state
 * @returns {Map<string, Problem>} By field.
 */
export function missing(form, state) {
  const empty = form.fields.filter((field) => field.needed && state[field.id].trim() === "");
  return new Map(empty.map(({ id, model, name, initial }) => [
    id,
    { kind: "invalid_input", message: "a value is needed here", hint: `write one like ${initial}`, place: model, field: name },
  ]));
}

/**
 * The request to the planner.
 *
 * @param {Form} form
 * @param {State} state
 * @returns {Request}
 */
export function requestOf(form, state) {
  /** @type {Request} */
  const request = { checkpoint: {}, cost: {} };
  for (const { id, model, name, initial, assumed } of form.fields) {
    const text = state[id].trim();
    if (model === "retention" || text === "") continue;
    // What the planner assumes anyway is not said, so that commands stay short.
    if (assumed && text === initial) continue;
    request[model][name] = text;
  }
  if (request.checkpoint.gpus) request.cost.gpus = request.checkpoint.gpus;
  const kept = form.fields.filter((field) => field.model === "retention");
  if (kept.some((field) => state[field.id].trim() !== field.initial)) {
    request.retention = { tiers: tiersOf(form, state) };
  }
  return request;
}

/**
 * The planner's tiers, with what the page says about them.
 *
 * @param {Form} form
 * @param {State} state
 * @returns {Table[]}
 */
function tiersOf(form, state) {
  return form.tiers.map((tier) => {
    const table = { ...tier };
    for (const { id, model, name } of form.fields) {
      const [owner, field] = name.split(".");
      if (model === "retention" && owner === tier.name) table[field] = state[id].trim();
    }
    return table;
  });
}

/**
 * The line that asks the same on a terminal.
 *
 * @param {Form} form
 * @param {State} state
 */
export function commandOf(form, state) {
  const request = requestOf(form, state);
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
export function shellWord(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

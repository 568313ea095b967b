// Where a number comes from: formula, inputs, source, and what is ambiguous about it.

import { byId, el } from "./dom.js";
import { find, grouped, label } from "./results.js";

/** @typedef {import("./types").Figure} Figure */
/** @typedef {import("./types").Input} Input */
/** @typedef {import("./types").Report} Report */

/** Where inputs come from. @type {Record<Input["origin"], string>} */
const ORIGINS = {
  given: "As given.",
  default: "What the planner assumes.",
  found: "What another part of the plan found.",
  measured: "As measured.",
};

/**
 * Answers every press on something with `data-explain`, also inside of the answer itself.
 *
 * @param {() => Report | undefined} report
 */
export function watchExplain(report) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("explain"));
  /** @type {string[]} */
  let trail = [];
  const open = () => {
    const known = report();
    const name = trail[trail.length - 1];
    if (!known || !name || !fill(known, name, trail.length > 1)) return;
    if (!dialog.open) dialog.showModal();
    dialog.querySelector("h2")?.focus();
  };
  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element)) return;
    const name = event.target.closest("[data-explain]")?.getAttribute("data-explain");
    if (name) {
      trail = dialog.open ? [...trail, name] : [name];
      open();
    } else if (event.target.closest("[data-explain-back]")) {
      trail.pop();
      open();
    } else if (event.target === dialog || event.target.closest("[data-explain-close]")) {
      dialog.close();
    }
  });
}

/**
 * @param {Report} report
 * @param {string} name
 * @param {boolean} hasBack
 */
function fill(report, name, hasBack) {
  const found = find(report, name);
  if (!found) return false;
  byId("explain-title").textContent = label(name);
  byId("explain-name").textContent = name;
  byId("explain-value").textContent = grouped(found.text);
  byId("explain-also").textContent = grouped(found.also ?? "");
  document.querySelector("[data-explain-back]")?.toggleAttribute("hidden", !hasBack);
  byId("explain-body").replaceChildren(...body(report, found));
  return true;
}

/** @param {Report} report @param {Figure | Input} found */
function body(report, found) {
  /** @type {HTMLElement[]} */
  const parts = "formula" in found ? figureParts(report, found) : [el("p", {}, ORIGINS[found.origin])];
  for (const { about, question, alternatives } of report.readings) {
    if (about !== found.name) continue;
    const answers = alternatives.map(({ label: words, text, used }) => el("li", {}, `${words}: ${text}${used ? " (used)" : ""}`));
    parts.push(el("h3", {}, "Readings"), el("p", {}, question), el("ul", {}, ...answers));
  }
  for (const { about, message } of report.warnings) {
    if (about === found.name) parts.push(el("h3", {}, "Warning"), el("p", { class: "warning" }, message));
  }
  return parts;
}

/** @param {Report} report @param {Figure} figure */
function figureParts(report, figure) {
  const part = figure.name.split(".")[0];
  const rows = figure.inputs.map((input) => {
    const full = `${part}.${input.name}`;
    const name = find(report, full) && full !== figure.name
      ? el("button", { type: "button", class: "link", "data-explain": full }, label(full))
      : el("span", {}, label(full));
    const also = input.also ? el("small", {}, ` ${grouped(input.also)}`) : null;
    return el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "number" }, grouped(input.text), also));
  });
  /** @type {HTMLElement[]} */
  const parts = [el("h3", {}, "Formula"), el("p", { class: "formula" }, el("code", {}, figure.formula))];
  if (rows.length > 0) parts.push(el("h3", {}, "Inputs"), el("table", {}, el("tbody", {}, ...rows)));
  parts.push(el("h3", {}, "Source"), el("p", {}, figure.source));
  return parts;
}

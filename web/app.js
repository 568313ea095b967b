// The page: state -> request -> report -> what is shown, each time a field changes.
//
// The form is made from the planner's own list of fields. A change is sent after a short pause, and an answer that comes too late is dropped.
// What the planner refuses is said beside the fields and above the results; the last good result stays, marked as such.

import { Refused, fetchModels, fetchReport } from "./api.js";
import { Controls, placeOf, told } from "./controls.js";
import { Curve } from "./curve.js";
import { byId, el } from "./dom.js";
import { watchExplain } from "./explain.js";
import { formOf } from "./fields.js";
import { showResults, summary } from "./results.js";
import { commandOf, initialState, leftAside, missing, queryOf, requestOf, stateOf } from "./scenario.js";

/** @typedef {import("./types").Form} Form */
/** @typedef {import("./types").Problem} Problem */
/** @typedef {import("./types").Report} Report */
/** @typedef {import("./types").State} State */

/** Long enough for the next key of a number, short enough to feel immediate. */
const PAUSE_MS = 90;

/** How long the page is quiet before the outcome is read out: nobody wants to hear every step of a slider. */
const ANNOUNCE_MS = 900;

/** How long a remark stays. */
const REMARK_MS = 2500;

/** How much of what cannot be used in an address is repeated: so many of its parts, and so much of each. */
const ASIDE_PARTS_MAX = 3;
const ASIDE_CHARS_MAX = 40;

class Page {
  /** @param {Form} form */
  constructor(form) {
    this.form = form;
    /** @type {State} */
    this.state = stateOf(form, location.search);
    this.curve = new Curve();
    this.controls = new Controls(byId("fields"), form, this.state, () => this.changed());
    /** @type {Report | undefined} */
    this.report = undefined;
    /** @type {AbortController | undefined} */
    this.asking = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.pause = undefined;
  }

  changed() {
    byId("command").textContent = commandOf(this.form, this.state);
    byId("aside").hidden = true;
    clearTimeout(this.pause);
    this.pause = setTimeout(() => {
      this.#keepAddress();
      void this.refresh();
    }, PAUSE_MS);
  }

  /** Shows what the address says. */
  readAddress() {
    this.controls.write(stateOf(this.form, location.search));
    byId("command").textContent = commandOf(this.form, this.state);
    const aside = leftAside(this.form, location.search);
    const shown = aside.slice(0, ASIDE_PARTS_MAX).map((part) => shortened(part, ASIDE_CHARS_MAX));
    if (aside.length > shown.length) shown.push(`${aside.length - shown.length} more`);
    byId("aside").textContent = `The address also says ${shown.join(", ")}, which this page does not know; it was left aside.`;
    byId("aside").hidden = aside.length === 0;
    void this.refresh();
  }

  /** The address of what the fields say now. */
  address() {
    return `${location.pathname}${queryOf(this.form, this.state)}`;
  }

  #keepAddress() {
    try {
      history.replaceState(null, "", this.address());
    } catch {
      // Browsers refuse when it is done too often; the next change brings it along.
    }
  }

  async refresh() {
    this.asking?.abort();
    this.asking = new AbortController();
    const { signal } = this.asking;
    try {
      const wrong = missing(this.form, this.state);
      if (wrong.size > 0) {
        await this.#examine(wrong, undefined, signal);
        return;
      }
      const report = await fetchReport(requestOf(this.form, this.state), signal);
      if (!signal.aborted) this.#show(report);
    } catch (error) {
      if (!signal.aborted) await this.#refused(error, signal);
    }
  }

  /** @param {Report} report */
  #show(report) {
    this.report = report;
    this.controls.follow(report);
    showResults(report);
    const results = byId("results");
    results.classList.remove("stale", "empty");
    results.removeAttribute("aria-busy");
    byId("problem").hidden = true;
    this.curve.show(report);
    announce(summary(report));
  }

  /** @param {unknown} error @param {AbortSignal} signal */
  async #refused(error, signal) {
    const problem = error instanceof Refused ? error.problem : unexpected(error);
    const culprit = this.form.fields.find((field) => isAbout(field, problem));
    /** @type {Map<string, Problem>} */
    const wrong = new Map(culprit ? [[culprit.id, problem]] : []);
    // What is not a question of input would not be better field by field.
    if (problem.kind === "invalid_input") await this.#examine(wrong, problem, signal);
    else this.#complain(wrong, problem);
  }

  /**
   * Finds the other fields that are wrong, each asked by itself on top of what all fields say at first.
   *
   * @param {Map<string, Problem>} wrong
   * @param {Problem | undefined} problem What the planner said about all of them together.
   * @param {AbortSignal} signal
   */
  async #examine(wrong, problem, signal) {
    const { form, state } = this;
    const suspects = form.fields.filter(({ id, initial }) => !wrong.has(id) && state[id].trim() !== initial);
    const found = await Promise.all(suspects.map(async ({ id }) => {
      const alone = { ...initialState(form), [id]: state[id] };
      return fetchReport(requestOf(form, alone), signal).then(() => undefined, (error) => error);
    }));
    if (signal.aborted) return;
    found.forEach((error, index) => {
      if (error instanceof Refused && error.problem.kind === "invalid_input") wrong.set(suspects[index].id, error.problem);
    });
    this.#complain(wrong, problem);
  }

  /** @param {Map<string, Problem>} wrong @param {Problem | undefined} problem */
  #complain(wrong, problem) {
    this.controls.mark(wrong);
    const lines = this.form.fields
      .filter(({ id }) => wrong.has(id))
      .map((field) => `${field.label}: ${told(field, /** @type {Problem} */ (wrong.get(field.id)))}`);
    if (lines.length === 0 && problem) lines.push(told(undefined, problem));
    const kept = this.report ? "Below is the last result that could be computed." : "There is no result yet.";
    const list = el("ul", {}, ...lines.map((line) => el("li", {}, line)));
    byId("problem").replaceChildren(el("h2", {}, "This cannot be computed"), list, el("p", {}, kept));
    byId("problem").hidden = false;
    const results = byId("results");
    results.classList.add("stale");
    results.classList.toggle("empty", !this.report);
    results.removeAttribute("aria-busy");
    announce(`This cannot be computed. ${lines.join(". ")}.`);
  }
}

/** @param {string} text @param {number} chars_max */
function shortened(text, chars_max) {
  return text.length > chars_max ? `${text.slice(0, chars_max)}\u2026` : text;
}

/** @param {import("./types").FieldSpec} field @param {Problem} problem */
function isAbout(field, { place, field: name }) {
  return name !== null && placeOf(field) === name && (place === null || place === field.model);
}

/** A fault of this page. @param {unknown} error @returns {Problem} */
function unexpected(error) {
  return { kind: "internal", message: String(error), hint: null, place: null, field: null };
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let announcing;

/** Reads something out, once the page is quiet. @param {string} text */
function announce(text) {
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    const status = byId("status");
    if (status.textContent !== text) status.textContent = text;
  }, ANNOUNCE_MS);
}

/** @param {string} text */
function remark(text) {
  const host = byId("remark");
  host.textContent = text;
  host.classList.add("shown");
  setTimeout(() => host.classList.remove("shown"), REMARK_MS);
}

/**
 * To the clipboard, or where there is none (a page without encryption on another machine) into a box to copy from.
 *
 * @param {string} what
 * @param {string} text
 */
async function copy(what, text) {
  try {
    await navigator.clipboard.writeText(text);
    remark(`${what} copied`);
  } catch {
    const box = /** @type {HTMLTextAreaElement} */ (byId("copy-text"));
    box.value = text;
    /** @type {HTMLDialogElement} */ (byId("copy")).showModal();
    box.select();
  }
}

/** @param {Curve} curve */
function toggleTheme(curve) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const next = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  root.dataset.theme = next;
  try {
    localStorage.setItem("theme", next);
  } catch {
    // Storage may be forbidden; then the choice lasts as long as the page.
  }
  curve.repaint();
}

/** @param {string} id @param {() => void} action */
function onPress(id, action) {
  byId(id).addEventListener("click", action);
}

/** @param {Page} page */
function watch(page) {
  const { form, state, curve } = page;
  onPress("copy-link", () => void copy("Link", new URL(page.address(), location.href).href));
  onPress("copy-command", () => void copy("Command", commandOf(form, state)));
  onPress("copy-json", () => {
    const whole = { model: "cluster", request: requestOf(form, state), report: page.report };
    void copy("JSON", `${JSON.stringify(whole, null, 2)}\n`);
  });
  onPress("copy-close", () => /** @type {HTMLDialogElement} */ (byId("copy")).close());
  onPress("theme", () => toggleTheme(curve));
  onPress("reset", () => {
    page.controls.write(initialState(form));
    page.changed();
  });
  byId("inputs").addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => curve.repaint());
  addEventListener("popstate", () => page.readAddress());
  watchExplain(() => page.report);
}

async function start() {
  try {
    const page = new Page(formOf(await fetchModels()));
    watch(page);
    page.readAddress();
  } catch (error) {
    const problem = error instanceof Refused ? error.problem : unexpected(error);
    byId("problem").replaceChildren(el("h2", {}, "The page cannot be shown"), el("p", {}, told(undefined, problem)));
    byId("problem").hidden = false;
    byId("results").classList.add("empty");
    byId("results").removeAttribute("aria-busy");
    announce(`The page cannot be shown. ${told(undefined, problem)}`);
  }
}

void start();

// The form: a text field that takes units and a slider for each quantity, buttons or a list for each choice.
//
// The text is what counts. A slider writes text; typed text moves the slider once the planner has read it, so that units are
// read in one place only.

import { el } from "./dom.js";
import { GROUPS } from "./fields.js";
import { nearest } from "./scale.js";

/** @typedef {import("./types").FieldSpec} FieldSpec */
/** @typedef {import("./types").Model} Model */
/** @typedef {import("./types").Problem} Problem */
/** @typedef {import("./types").Report} Report */
/** @typedef {import("./types").State} State */

/**
 * @typedef {object} Control
 * @property {FieldSpec} spec
 * @property {HTMLElement} root
 * @property {HTMLElement} error
 * @property {(text: string) => void} write Shows a value without telling anybody.
 * @property {(report: Report) => void} follow Moves the slider to what the planner has read.
 */

/** Choices up to here are buttons side by side, more are a list. */
const BUTTONS_MAX = 2;

export class Controls {
  /**
   * @param {HTMLElement} host
   * @param {State} state Changed in place.
   * @param {() => void} changed
   */
  constructor(host, state, changed) {
    this.state = state;
    this.changed = changed;
    /** @type {Control[]} */
    this.controls = [];
    for (const group of GROUPS) {
      const fields = group.fields.map((spec) => this.#control(spec));
      const body = el("div", { class: "group-body" }, ...fields.map((control) => control.root));
      this.controls.push(...fields);
      if (group.folded) {
        host.append(el("details", { class: "group" }, el("summary", {}, group.title), body));
      } else {
        host.append(el("fieldset", { class: "group" }, el("legend", {}, group.title), body));
      }
    }
  }

  /** Shows a state as a whole. @param {State} state */
  write(state) {
    Object.assign(this.state, state);
    for (const control of this.controls) control.write(state[control.spec.id]);
  }

  /** After a report: sliders and computed values follow, errors go. @param {Report} report */
  follow(report) {
    this.clear();
    for (const control of this.controls) control.follow(report);
  }

  /** What fields are, in the planner's words. @param {Model[]} models */
  describe(models) {
    for (const { spec, root } of this.controls) {
      const model = models.find((known) => known.name === spec.model);
      const doc = spec.note ?? model?.fields.find((field) => field.name === spec.name)?.doc;
      const note = root.querySelector(".field-note");
      if (!doc || !note) continue;
      note.textContent = doc;
      root.querySelector("label, .label")?.setAttribute("title", doc);
    }
  }

  clear() {
    for (const { root, error } of this.controls) {
      error.textContent = "";
      error.hidden = true;
      root.classList.remove("wrong");
      root.querySelector("input[type=text]")?.removeAttribute("aria-invalid");
    }
  }

  /**
   * Shows a problem beside the field it is about; false when it is about none.
   *
   * @param {Problem} problem
   */
  blame(problem) {
    this.clear();
    const control = this.#culprit(problem);
    if (!control) return false;
    // Beside the field its name says nothing, and a message about how it is written says more than the hint.
    const hint = problem.hint && !/^\w+ is written as /.test(problem.hint) ? ` \u2013 ${problem.hint}` : "";
    control.error.textContent = `${problem.message.replace(/^\w+ of \w+: /, "")}${hint}`;
    control.error.hidden = false;
    control.root.classList.add("wrong");
    control.root.querySelector("input[type=text]")?.setAttribute("aria-invalid", "true");
    const folded = control.root.closest("details");
    if (folded) folded.open = true;
    return true;
  }

  /**
   * The field a message names first, in the part of the scenario it is about; of the tiers, the one that says what is quoted.
   *
   * @param {Problem} problem
   * @returns {Control | undefined}
   */
  #culprit({ message, place }) {
    const inPlace = this.controls.filter(({ spec }) => !place || spec.model === place);
    const [first] = message.match(/^\w+/) ?? [""];
    const named = inPlace.find(({ spec }) => spec.name === first);
    if (named) return named;
    const [, quoted] = message.match(/'([^']*)'/) ?? [];
    return quoted === undefined ? undefined : inPlace.find(({ spec }) => this.state[spec.id].trim() === quoted.trim());
  }

  /** @param {FieldSpec} spec @returns {Control} */
  #control(spec) {
    if (spec.steps) return this.#quantity(spec);
    return (spec.choices?.length ?? 0) > BUTTONS_MAX ? this.#list(spec) : this.#buttons(spec);
  }

  /** @param {FieldSpec} spec @param {string} text */
  #set(spec, text) {
    this.state[spec.id] = text;
    this.changed();
  }

  /** @param {FieldSpec} spec @returns {Control} */
  #quantity(spec) {
    const id = `field-${spec.id}`;
    const steps = spec.steps ?? [];
    const text = el("input", {
      type: "text",
      id,
      name: spec.id,
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      "aria-describedby": `${id}-error ${id}-note`,
    });
    const slider = el("input", {
      type: "range",
      min: "0",
      max: String(steps.length - 1),
      step: "1",
      "aria-label": `${spec.label}, slider`,
    });
    const auto = el("button", { type: "button", class: "auto", hidden: true }, "auto");
    auto.setAttribute("aria-label", `${spec.label}: compute it again`);
    const show = () => {
      const filled = Number(slider.value) / (steps.length - 1);
      slider.style.setProperty("--filled", `${(filled * 100).toFixed(1)}%`);
      slider.setAttribute("aria-valuetext", text.value || text.placeholder);
      auto.hidden = !spec.computed || text.value === "";
    };
    const move = (/** @type {number} */ value) => {
      slider.value = String(nearest(steps, value));
      show();
    };
    slider.addEventListener("input", () => {
      text.value = steps[Number(slider.value)].text;
      show();
      this.#set(spec, text.value);
    });
    text.addEventListener("input", () => {
      show();
      this.#set(spec, text.value);
    });
    auto.addEventListener("click", () => {
      text.value = "";
      show();
      text.focus();
      this.#set(spec, "");
    });
    const parts = [el("label", { for: id }, spec.label), auto, text, slider];
    return {
      ...this.#frame(spec, parts),
      write: (value) => {
        text.value = value;
        const step = steps.find((known) => known.text === value);
        if (step) move(step.value);
        show();
      },
      follow: (report) => {
        const value = readValue(spec, report);
        const computed = report.figures.find((figure) => figure.name === spec.computed);
        if (spec.computed) text.placeholder = computed ? computed.text : "";
        // A slider under the finger is where it is wanted.
        if (value !== undefined && document.activeElement !== slider) move(value);
        show();
      },
    };
  }

  /** @param {FieldSpec} spec @returns {Control} */
  #buttons(spec) {
    const id = `field-${spec.id}`;
    const choices = spec.choices ?? [];
    const options = choices.map(([word, label]) => {
      const input = el("input", { type: "radio", name: spec.id, value: word });
      input.addEventListener("change", () => this.#set(spec, word));
      return { input, root: el("label", {}, input, el("span", {}, label)) };
    });
    const group = el("div", { class: "buttons", role: "radiogroup", "aria-labelledby": id });
    group.append(...options.map((option) => option.root));
    return {
      ...this.#frame(spec, [el("span", { class: "label", id }, spec.label), group]),
      write: (value) => {
        for (const { input } of options) input.checked = input.value === value;
      },
      follow: () => {},
    };
  }

  /** @param {FieldSpec} spec @returns {Control} */
  #list(spec) {
    const id = `field-${spec.id}`;
    const options = (spec.choices ?? []).map(([word, label]) => el("option", { value: word }, label));
    const list = el("select", { id, name: spec.id }, ...options);
    list.addEventListener("change", () => this.#set(spec, list.value));
    return {
      ...this.#frame(spec, [el("label", { for: id }, spec.label), list]),
      write: (value) => {
        list.value = value;
      },
      follow: () => {},
    };
  }

  /** @param {FieldSpec} spec @param {HTMLElement[]} parts */
  #frame(spec, parts) {
    const id = `field-${spec.id}`;
    const error = el("p", { class: "field-error", id: `${id}-error`, role: "alert", hidden: true });
    const note = el("p", { class: "field-note", id: `${id}-note` });
    const root = el("div", { class: "field", "data-field": spec.id }, ...parts, error, note);
    return { spec, root, error };
  }
}

/**
 * The number the planner has read, or has computed in place of a field that says nothing.
 *
 * @param {FieldSpec} spec
 * @param {Report} report
 * @returns {number | undefined}
 */
function readValue(spec, report) {
  if (spec.model === "retention") {
    const [tier, field] = spec.name.split(".");
    const figures = report.figures.filter((figure) => figure.name.startsWith("retention.") && figure.name.endsWith(`.${tier}`));
    return figures.flatMap((figure) => figure.inputs).find((input) => input.name === field)?.value;
  }
  const input = report.inputs.find((known) => known.name === `${spec.model}.${spec.name}`);
  const computed = report.figures.find((figure) => figure.name === spec.computed);
  return input?.value ?? computed?.value;
}

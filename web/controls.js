// The form: a text field that takes units and a slider for each quantity, buttons or a list for each choice.
//
// The text is what counts. A slider writes text; typed text moves the slider once the planner has read it, so that units are
// read in one place only.

import { el } from "./dom.js";
import { nearest } from "./scale.js";

/** @typedef {import("./types").FieldSpec} FieldSpec */
/** @typedef {import("./types").Form} Form */
/** @typedef {import("./types").Problem} Problem */
/** @typedef {import("./types").Report} Report */
/** @typedef {import("./types").State} State */

/**
 * @typedef {object} Control
 * @property {FieldSpec} spec
 * @property {HTMLElement} root
 * @property {HTMLElement} input What a screen reader calls wrong.
 * @property {HTMLElement} error
 * @property {(text: string) => void} write Shows a value without telling anybody.
 * @property {(report: Report) => void} follow Moves the slider to what the planner has read.
 */

/** Choices up to here are buttons side by side, more are a list. */
const BUTTONS_MAX = 2;

/** The field as the planner names it within its part. @param {FieldSpec} field */
export function placeOf({ model, name }) {
  return model === "retention" ? `tiers.${name}` : name;
}

/**
 * What is wrong, as it is said beside a field, whose name then says nothing, or for itself.
 *
 * @param {FieldSpec | undefined} field
 * @param {Problem} problem
 */
export function told(field, { message, hint }) {
  const own = field ? `${placeOf(field)} of ${field.model}: ` : "";
  const said = own !== "" && message.startsWith(own) ? message.slice(own.length) : message;
  return hint ? `${said} \u2013 ${hint}` : said;
}

export class Controls {
  /**
   * @param {HTMLElement} host
   * @param {Form} form
   * @param {State} state Changed in place.
   * @param {() => void} changed
   */
  constructor(host, form, state, changed) {
    this.state = state;
    this.changed = changed;
    /** @type {Control[]} */
    this.controls = [];
    for (const group of form.groups) {
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
    this.mark(new Map());
    for (const control of this.controls) control.follow(report);
  }

  /** Says beside each field what is wrong with it, and nothing beside the others. @param {Map<string, Problem>} wrong */
  mark(wrong) {
    for (const { spec, root, input, error } of this.controls) {
      const problem = wrong.get(spec.id);
      const text = problem ? told(spec, problem) : "";
      if (error.textContent !== text) error.textContent = text;
      error.hidden = !problem;
      root.classList.toggle("wrong", problem !== undefined);
      if (!problem) {
        input.removeAttribute("aria-invalid");
        continue;
      }
      input.setAttribute("aria-invalid", "true");
      const folded = root.closest("details");
      if (folded) folded.open = true;
    }
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
      // What the planner takes when nothing is said.
      placeholder: spec.assumed ? spec.initial : undefined,
    });
    const begin = Math.max(0, steps.findIndex((step) => step.text === spec.initial));
    const slider = el("input", {
      type: "range",
      value: String(begin),
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
    return {
      ...this.#frame(spec, text, el("label", { for: id }, spec.label), [auto, text, slider]),
      write: (value) => {
        text.value = value;
        const at = steps.findIndex((known) => known.text === value);
        // Only the planner reads units; until it has, unknown text stands where the field began, and nothing at the left end.
        slider.value = String(Number.parseFloat(value) === 0 ? 0 : at < 0 ? begin : at);
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
    const group = el("div", {
      class: "buttons",
      role: "radiogroup",
      "aria-labelledby": id,
      "aria-describedby": `${id}-error ${id}-note`,
    });
    group.append(...options.map((option) => option.root));
    return {
      ...this.#frame(spec, group, el("span", { class: "label", id }, spec.label), [group]),
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
    const list = el("select", { id, name: spec.id, "aria-describedby": `${id}-error ${id}-note` }, ...options);
    list.addEventListener("change", () => this.#set(spec, list.value));
    return {
      ...this.#frame(spec, list, el("label", { for: id }, spec.label), [list]),
      write: (value) => {
        list.value = value;
      },
      follow: () => {},
    };
  }

  /**
   * A field with its name, and what it is behind a button: a tooltip would be for mice only.
   *
   * @param {FieldSpec} spec
   * @param {HTMLElement} input
   * @param {HTMLElement} name
   * @param {HTMLElement[]} parts
   */
  #frame(spec, input, name, parts) {
    const id = `field-${spec.id}`;
    const error = el("p", { class: "field-error", id: `${id}-error`, hidden: true });
    const note = el("p", { class: "field-note", id: `${id}-note`, hidden: true }, spec.doc);
    const about = el("button", { type: "button", class: "about", "aria-expanded": "false", "aria-controls": note.id }, "?");
    about.setAttribute("aria-label", `What is ${spec.label}?`);
    about.addEventListener("click", () => {
      note.hidden = !note.hidden;
      about.setAttribute("aria-expanded", String(!note.hidden));
    });
    const head = el("div", { class: "field-name" }, name, spec.doc === "" ? null : about);
    const root = el("div", { class: "field", "data-field": spec.id }, head, ...parts, note, error);
    return { spec, root, input, error };
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

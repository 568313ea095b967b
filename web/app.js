// The page: state -> request -> report -> what is shown, each time a field changes.
//
// A change is sent after a short pause, and an answer that comes too late is dropped. What the planner refuses is said beside the
// field; the last good result stays, marked as such.

import { Refused, fetchModels, fetchReport } from "./api.js";
import { Controls } from "./controls.js";
import { Curve } from "./curve.js";
import { byId } from "./dom.js";
import { watchExplain } from "./explain.js";
import { showResults } from "./results.js";
import { commandOf, initialState, queryOf, requestOf, stateOf } from "./scenario.js";

/** @typedef {import("./types").Report} Report */

/** Long enough for the next key of a number, short enough to feel immediate. */
const PAUSE_MS = 90;

/** How long a remark stays. */
const REMARK_MS = 2500;

const state = stateOf(location.search);
const curve = new Curve();
const controls = new Controls(byId("fields"), state, changed);

/** @type {Report | undefined} */
let report;
/** @type {AbortController | undefined} */
let asking;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let pause;

function changed() {
  history.replaceState(null, "", `${location.pathname}${queryOf(state)}`);
  byId("command").textContent = commandOf(state);
  clearTimeout(pause);
  pause = setTimeout(() => void refresh(), PAUSE_MS);
}

async function refresh() {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  try {
    const answer = await fetchReport(requestOf(state), signal);
    if (signal.aborted) return;
    report = answer;
    controls.follow(answer);
    showResults(answer);
    byId("problem").hidden = true;
    byId("results").classList.remove("stale");
    byId("results").removeAttribute("aria-busy");
    curve.show(answer);
  } catch (error) {
    if (!signal.aborted) refuse(error);
  }
}

/** @param {unknown} error */
function refuse(error) {
  const known = error instanceof Refused;
  const problem = known ? error.problem : { kind: "internal", message: String(error), hint: null, place: null };
  const blamed = controls.blame(problem);
  const kept = report ? "Below is the last result that could be computed." : "";
  const said = blamed ? "One of the inputs cannot be read; it is marked." : `${problem.message}${problem.hint ? `: ${problem.hint}` : ""}.`;
  byId("problem").textContent = `${said.charAt(0).toUpperCase()}${said.slice(1)} ${kept}`;
  byId("problem").hidden = false;
  byId("results").classList.add("stale");
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

function toggleTheme() {
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

function start() {
  onPress("copy-link", () => void copy("Link", location.href));
  onPress("copy-command", () => void copy("Command", commandOf(state)));
  onPress("copy-json", () => {
    const whole = { model: "cluster", request: requestOf(state), report };
    void copy("JSON", `${JSON.stringify(whole, null, 2)}\n`);
  });
  onPress("copy-close", () => /** @type {HTMLDialogElement} */ (byId("copy")).close());
  onPress("theme", toggleTheme);
  onPress("reset", () => {
    controls.write(initialState());
    changed();
  });
  byId("inputs").addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => curve.repaint());
  addEventListener("popstate", () => {
    controls.write(stateOf(location.search));
    changed();
  });
  watchExplain(() => report);
  controls.write(state);
  byId("command").textContent = commandOf(state);
  void refresh();
  // Without the descriptions the page works all the same.
  fetchModels().then((models) => controls.describe(models), () => {});
}

start();

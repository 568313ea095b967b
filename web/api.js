// The planner, which runs in the program that served this page.

/** @typedef {import("./types").Model} Model */
/** @typedef {import("./types").Problem} Problem */
/** @typedef {import("./types").Report} Report */

/** How often a busy planner is asked, and how long is waited at most in between. */
const TRIES_MAX = 4;
const PAUSE_S_MAX = 5;

/** An answer that is no. */
export class Refused extends Error {
  /** @param {Problem} problem */
  constructor(problem) {
    super(problem.message);
    this.problem = problem;
  }
}

/** @returns {Promise<Model[]>} */
export async function fetchModels() {
  const answer = await ask("/api/models", {});
  return answer.models;
}

/**
 * The report of a scenario.
 *
 * @param {object} request
 * @param {AbortSignal} signal
 * @returns {Promise<Report>}
 */
export function fetchReport(request, signal) {
  return ask("/api/plan/cluster", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
    signal,
  });
}

/**
 * Asks until the planner has a turn for it.
 *
 * @param {string} path
 * @param {RequestInit} options
 */
async function ask(path, options) {
  for (let tries = 1; ; tries += 1) {
    const response = await reach(path, options);
    const pause_s = Number(response.headers.get("Retry-After"));
    if (response.status === 503 && pause_s > 0 && tries < TRIES_MAX) {
      await pause(Math.min(pause_s, PAUSE_S_MAX) * 1000, options.signal);
      continue;
    }
    const answer = await read(response);
    if (!response.ok) throw new Refused(answer.error ?? unreadable(response));
    return answer;
  }
}

/** @param {string} path @param {RequestInit} options */
async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    const message = "the planner does not answer";
    throw new Refused({ kind: "unreachable", message, hint: "is forebay serve still running?", place: null, field: null });
  }
}

/** @param {Response} response */
async function read(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error instanceof DOMException) throw error;
    throw new Refused(unreadable(response));
  }
}

/** Something between here and the planner answered in its place. @param {Response} response @returns {Problem} */
function unreadable(response) {
  const message = `what came back is not from the planner (status ${response.status})`;
  return { kind: "unreadable", message, hint: "is something between this page and forebay serve?", place: null, field: null };
}

/** @param {number} ms @param {AbortSignal | null | undefined} signal @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

// The planner, which runs in the program that served this page.

/** @typedef {import("./types").Model} Model */
/** @typedef {import("./types").Problem} Problem */
/** @typedef {import("./types").Report} Report */

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
 * @param {string} path
 * @param {RequestInit} options
 */
async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Refused({
      kind: "unreachable",
      message: "the planner does not answer",
      hint: "is forebay serve still running?",
      place: null,
    });
  }
  const answer = await response.json();
  if (!response.ok) throw new Refused(answer.error);
  return answer;
}

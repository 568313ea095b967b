// Positions of sliders: round numbers in equal factors, written as the planner reads them.

/** @typedef {import("./types").Step} Step */

/** Round numbers within a power of ten. */
const ROUND = [1, 1.5, 2, 3, 4, 5, 6, 8];

/** @type {[string, number][]} */
const COUNT_UNITS = [["", 1], ["M", 1e6], ["B", 1e9], ["T", 1e12]];

/** @type {[string, number][]} */
const RATE_UNITS = [["MB/s", 1e6], ["GB/s", 1e9], ["TB/s", 1e12]];

/** @type {[string, number][]} */
const TIME_UNITS = [["s", 1], ["min", 60], ["h", 3600], ["d", 86400]];

/** Digits that survive the rounding of a floating-point product. */
const DIGITS = 6;

/**
 * In the largest unit that leaves at least one whole.
 *
 * @param {number} value
 * @param {[string, number][]} units
 */
function written(value, units) {
  const fitting = units.filter(([, factor]) => value >= factor * 0.999999);
  const [name, factor] = fitting[fitting.length - 1] ?? units[0];
  return `${Number((value / factor).toPrecision(DIGITS))}${name}`;
}

/**
 * Round numbers from one to another.
 *
 * @param {number} from
 * @param {number} to
 * @param {[string, number][]} units
 * @returns {Step[]}
 */
function rounds(from, to, units) {
  const steps = [];
  for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power += 1) {
    for (const digit of ROUND) {
      const value = Number((digit * 10 ** power).toPrecision(DIGITS));
      if (value >= from && value <= to) steps.push({ value, text: written(value, units) });
    }
  }
  return steps;
}

/**
 * Counts such as 405B; further round numbers may be added where people know them by name.
 *
 * @param {number} from
 * @param {number} to
 * @param {number[]} [known]
 * @returns {Step[]}
 */
export function counts(from, to, known = []) {
  const more = known.map((value) => ({ value, text: written(value, COUNT_UNITS) }));
  return [...rounds(from, to, COUNT_UNITS), ...more].sort((left, right) => left.value - right.value);
}

/**
 * Powers of two.
 *
 * @param {number} from
 * @param {number} to
 * @returns {Step[]}
 */
export function doublings(from, to) {
  const steps = [];
  for (let value = from; value <= to; value *= 2) steps.push({ value, text: String(value) });
  return steps;
}

/**
 * Data rates such as 1TB/s.
 *
 * @param {number} from
 * @param {number} to
 * @returns {Step[]}
 */
export function rates(from, to) {
  return rounds(from, to, RATE_UNITS);
}

/**
 * Times, in seconds.
 *
 * @param {number[]} seconds
 * @returns {Step[]}
 */
export function times(seconds) {
  return seconds.map((value) => ({ value, text: written(value, TIME_UNITS) }));
}

/**
 * Amounts of money with what they are for.
 *
 * @param {number[]} amounts
 * @param {string} per
 * @returns {Step[]}
 */
export function prices(amounts, per) {
  return amounts.map((value) => ({ value, text: `$${value}${per}` }));
}

/**
 * Whole numbers from one to another.
 *
 * @param {number} from
 * @param {number} to
 * @returns {Step[]}
 */
export function wholes(from, to) {
  const steps = [];
  for (let value = from; value <= to; value += 1) steps.push({ value, text: String(value) });
  return steps;
}

/**
 * Index of the step that is nearest to a number, by factor; what is no number or below all steps is at the first.
 *
 * @param {Step[]} steps
 * @param {number} value
 */
export function nearest(steps, value) {
  if (!(value > 0)) return 0;
  const wanted = Math.log(Math.min(value, Number.MAX_VALUE));
  const distance = (/** @type {Step} */ step) => Math.abs(Math.log(Math.max(step.value, Number.MIN_VALUE)) - wanted);
  let best = 0;
  steps.forEach((step, index) => {
    if (distance(step) < distance(steps[best])) best = index;
  });
  return best;
}

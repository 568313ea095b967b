// What the planner answered: headline figures, bars, warnings and readings, and the table of everything.

import { byId, el } from "./dom.js";

/** @typedef {import("./types").Figure} Figure */
/** @typedef {import("./types").Report} Report */

/**
 * The figures people ask for first.
 *
 * @type {{ name: string, label: string, note: (report: Report) => string }[]}
 */
const HEADLINE = [
  { name: "checkpoint.goodput", label: "Goodput", note: () => "of the time trains" },
  { name: "checkpoint.interval_used", label: "Save every", note: intervalNote },
  { name: "checkpoint.stall", label: "Each save stalls", note: (report) => `saves take ${textOf(report, "checkpoint.save_time")}` },
  { name: "checkpoint.size", label: "Checkpoint", note: (report) => alsoOf(report, "checkpoint.size") },
  { name: "checkpoint.mtbf", label: "Between failures", note: () => "on average, whole job" },
  { name: "checkpoint.gpus_lost", label: "GPUs lost", note: (report) => `of ${textOf(report, "checkpoint.gpus")}` },
  { name: "cost.total_cost", label: "Cost per month", note: () => "GPUs and storage" },
  { name: "cost.idle_cost", label: "Lost per month", note: () => "GPU time that trains nothing" },
];

/** What the foot of a narrow screen says. @type {[string, string][]} */
const GLANCE = [
  ["glance-goodput", "checkpoint.goodput"],
  ["glance-interval", "checkpoint.interval_used"],
  ["glance-lost", "checkpoint.gpus_lost"],
];

/** Shares below this are said to be below it: more zeros tell nobody more. */
const SHARE_MIN = 0.0001;
const SHARE_MIN_TEXT = "< 0.01 %";

/** Where the time goes. @type {[string, string, string][]} */
const SHARES = [
  ["checkpoint.goodput", "Training", "good"],
  ["checkpoint.loss_save", "Saves", "save"],
  ["checkpoint.loss_rework", "Work done again", "rework"],
  ["checkpoint.loss_restart", "Restarts", "restart"],
];

/** Parts the page has inputs for; readings of others are told where their figures are. */
const NOTED = ["checkpoint", "retention", "cost"];

/** Parts of a cluster as headings. @type {Record<string, string>} */
const PARTS = { checkpoint: "Checkpoints", storage: "Storage", retention: "What is kept", cost: "Cost and energy" };

/** @param {Report} report @param {string} name */
export function find(report, name) {
  return report.figures.find((figure) => figure.name === name) ?? report.inputs.find((input) => input.name === name);
}

/** @param {Report} report @param {string} name */
function textOf(report, name) {
  return grouped(find(report, name)?.text ?? "");
}

/** @param {Report} report @param {string} name */
function alsoOf(report, name) {
  return grouped(find(report, name)?.also ?? "");
}

/** @param {Report} report */
function intervalNote(report) {
  if (report.inputs.some((input) => input.name === "checkpoint.interval")) return "as given";
  const stretched = report.warnings.some((warning) => warning.about === "checkpoint.interval_used");
  return stretched ? "stretched by slow storage" : "optimum by Daly";
}

/**
 * A number as it is read most easily: digits in groups of three.
 *
 * @param {string} text
 */
export function grouped(text) {
  return text.replace(/(?<![\d.])\d{4,}/g, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ","));
}

/**
 * A name as people say it.
 *
 * @param {string} name
 */
export function label(name) {
  const short = name.includes(".") ? name.slice(name.indexOf(".") + 1) : name;
  const [words, item] = short.split(".");
  const text = words.replaceAll("_", " ").replace(/\bgpus?\b/g, (word) => word.toUpperCase().replace("S", "s"));
  const known = text.replace(/\bmtbf\b/, "MTBF").replace(/\bosts\b/, "OSTs");
  return item ? `${known}: ${item}` : known;
}

/**
 * @param {string} name
 * @param {string} className
 * @param {...(Node | string)} children
 */
function asking(name, className, ...children) {
  return el("button", { type: "button", class: className, "data-explain": name }, ...children);
}

/** @param {Report} report */
export function showResults(report) {
  showHeadline(report);
  showShares(report);
  showTiers(report);
  showNotes(report);
  showFigures(report);
}

/** The outcome in a sentence. @param {Report} report */
export function summary(report) {
  const said = ["checkpoint.goodput", "checkpoint.interval_used", "cost.total_cost"].map((name) => {
    const title = HEADLINE.find((known) => known.name === name)?.label ?? label(name);
    return `${title} ${textOf(report, name)}`;
  });
  const warnings = report.warnings.length;
  if (warnings > 0) said.push(warnings === 1 ? "1 warning" : `${warnings} warnings`);
  return `${said.join(", ")}.`;
}

/** A number in type that is as large as its room allows. @param {HTMLElement} host @param {string} text */
function fit(host, text) {
  host.textContent = text;
  host.style.setProperty("--chars", String(Math.max(text.length, 1)));
}

/** @param {Report} report */
function showHeadline(report) {
  const host = byId("headline");
  if (host.childElementCount === 0) host.replaceChildren(...HEADLINE.map(({ name, label: title }) => {
    const value = el("span", { class: "value", "data-figure": name });
    return asking(name, "stat", el("span", { class: "title" }, title), value, el("span", { class: "note" }));
  }));
  HEADLINE.forEach(({ name, note }, index) => {
    const [, value, words] = host.children[index].children;
    fit(/** @type {HTMLElement} */ (value), textOf(report, name));
    words.textContent = note(report);
  });
  for (const [id, name] of GLANCE) fit(byId(id), textOf(report, name));
}

/** @param {Report} report */
function showShares(report) {
  const bar = byId("shares-bar");
  const parts = SHARES.map(([name, title, kind]) => ({ name, title, kind, share: find(report, name)?.value ?? 0 }));
  replace(bar, parts.map(({ kind, share }) => {
    const part = el("span", { class: `part ${kind}` });
    part.style.flexGrow = String(share);
    return part;
  }));
  const [training, ...losses] = parts;
  const largest = Math.max(...losses.map(({ share }) => share), Number.MIN_VALUE);
  const rows = losses.map(({ name, title, kind, share }) => {
    const words = el("span", { class: "name" }, el("span", { class: `swatch ${kind}` }), title);
    return barRow(name, words, kind, share / largest, shareText(report, name));
  });
  const rest = asking(training.name, "row total", el("span", { class: "swatch good" }), el("span", {}, training.title), el("span", { class: "number" }, textOf(report, training.name)));
  replace(byId("shares-rows"), [...rows, rest]);
  const said = parts.map(({ name, title }) => `${title} ${shareText(report, name)}`);
  bar.setAttribute("aria-label", said.join(", "));
}

/** @param {Report} report @param {string} name */
function shareText(report, name) {
  const value = find(report, name)?.value ?? 0;
  return value > 0 && value < SHARE_MIN ? SHARE_MIN_TEXT : textOf(report, name);
}

/**
 * A name, a number, and a bar below both, which has the whole width however long they are.
 *
 * @param {string} figure
 * @param {HTMLElement} name
 * @param {string} kind
 * @param {number} share Of the longest bar.
 * @param {string} text
 */
function barRow(figure, name, kind, share, text) {
  const fill = el("span", { class: `fill ${kind}` });
  fill.style.width = `${(share * 100).toFixed(1)}%`;
  return asking(figure, "tier", name, el("span", { class: "number" }, text), el("span", { class: "track" }, fill));
}

/** @param {Report} report */
function showTiers(report) {
  const prefix = "cost.tier_cost.";
  const tiers = report.figures.filter((figure) => figure.name.startsWith(prefix));
  const largest = Math.max(...tiers.map((figure) => figure.value), Number.MIN_VALUE);
  const rows = tiers.map((figure) => {
    const tier = figure.name.slice(prefix.length);
    const held = textOf(report, `retention.bytes.${tier}`);
    const saves = textOf(report, `retention.saves.${tier}`);
    const name = el("span", { class: "name" }, capital(tier), el("small", {}, `${saves} saves, ${held}`));
    return barRow(figure.name, name, tier, figure.value / largest, grouped(figure.text));
  });
  const sums = [
    sumRow(report, "cost.storage_cost", "Storage in all, per month"),
    sumRow(report, "cost.energy_cost", "Energy, within the price of rented GPUs"),
  ];
  replace(byId("tiers-rows"), [...rows, ...sums]);
}

/** @param {Report} report @param {string} name @param {string} title */
function sumRow(report, name, title) {
  const text = el("span", { class: "number", "data-sum": name }, textOf(report, name));
  return asking(name, "row total", el("span", {}, title), text);
}

/** What the notes say now: whoever reads them must not lose the place when a number elsewhere changes. */
let noted = "";

/** @param {Report} report */
function showNotes(report) {
  const now = JSON.stringify([report.warnings, report.readings]);
  if (now === noted) return;
  noted = now;
  const warnings = report.warnings.map(({ about, message }) =>
    el("li", { class: "warning" }, el("strong", {}, "Warning"), " ", sentence(message), " ", asking(about, "link", label(about))),
  );
  const asked = report.readings.filter(({ about, alternatives }) => {
    // A question whose answers are the same in words is none.
    const isOpen = alternatives.some(({ text }) => text !== alternatives[0].text);
    return isOpen && NOTED.includes(about.split(".")[0]);
  });
  const readings = asked.map(({ about, question, alternatives }) => {
    const answers = alternatives.map(({ label: words, text, used }) =>
      el("li", used ? { class: "used" } : {}, `${words}: `, el("b", {}, text), used ? " (used)" : ""),
    );
    return el("li", { class: "reading" }, el("strong", {}, "Readings"), " ", sentence(question), " ", asking(about, "link", label(about)), el("ul", {}, ...answers));
  });
  replace(byId("notes-list"), [...warnings, ...readings]);
  byId("notes").hidden = warnings.length + readings.length === 0;
}

/** The report whose table is to be made when somebody opens it. @type {Report | undefined} */
let latest;

/** @param {Report} report */
function showFigures(report) {
  const host = /** @type {HTMLDetailsElement} */ (byId("all"));
  if (!latest) host.addEventListener("toggle", () => showTable(host));
  latest = report;
  byId("figures-count").textContent = String(report.figures.length);
  showTable(host);
}

/** @param {HTMLDetailsElement} host */
function showTable(host) {
  if (!latest || !host.open) return;
  /** @type {Map<string, Figure[]>} */
  const parts = new Map();
  for (const figure of latest.figures) {
    const part = figure.name.split(".")[0];
    parts.set(part, [...(parts.get(part) ?? []), figure]);
  }
  const tables = [...parts].map(([part, figures]) => {
    const rows = figures.map((figure) =>
      el("tr", {},
        el("th", { scope: "row" }, asking(figure.name, "link", label(figure.name))),
        el("td", { class: "number" }, grouped(figure.text)),
        el("td", { class: "also" }, grouped(figure.also ?? "")),
      ));
    return el("table", { class: "figures" }, el("caption", {}, PARTS[part] ?? capital(part)), el("tbody", {}, ...rows));
  });
  replace(byId("figures"), tables);
}

/**
 * New content, with the keyboard where it was.
 *
 * @param {HTMLElement} host
 * @param {HTMLElement[]} children
 */
function replace(host, children) {
  const focused = host.contains(document.activeElement) ? document.activeElement?.getAttribute("data-explain") : null;
  host.replaceChildren(...children);
  if (!focused) return;
  const again = host.querySelector(`[data-explain="${CSS.escape(focused)}"]`);
  if (again instanceof HTMLElement) again.focus();
}

/** @param {string} text */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** @param {string} text */
function sentence(text) {
  const known = capital(text);
  return /[.!?]$/.test(known) ? known : `${known}.`;
}

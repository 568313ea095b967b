// Goodput against the time between saves, with the interval that is used and the best one.

import { byId, colour } from "./dom.js";
import uPlot from "./vendor/uPlot.esm.js";

/** @typedef {import("./types").Figure} Figure */
/** @typedef {import("./types").Report} Report */
/** @typedef {import("./types").Series} Series */

/** Ticks of a time axis, in seconds, with their names. @type {[number, string][]} */
const TICKS = [
  [0.01, "10 ms"], [0.1, "100 ms"], [1, "1 s"], [3, "3 s"], [10, "10 s"], [30, "30 s"], [60, "1 min"], [180, "3 min"],
  [600, "10 min"], [1800, "30 min"], [3600, "1 h"], [3 * 3600, "3 h"], [10 * 3600, "10 h"], [86400, "1 d"],
  [3 * 86400, "3 d"], [10 * 86400, "10 d"], [30 * 86400, "30 d"], [100 * 86400, "100 d"], [365 * 86400, "1 y"],
  [3650 * 86400, "10 y"],
];

const HEIGHT = 260;

/** A narrow plot has room for every second tick only. */
const NARROW = 480;

const FONT = "12px system-ui, sans-serif";

/** Significant digits of the planner's own texts, so that the cursor says the same at the same place. */
const DIGITS = 4;

/** A place under the cursor, for which the planner has no text. @param {number} seconds */
export function timeText(seconds) {
  const units = /** @type {[string, number][]} */ ([["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]);
  const [name, factor] = units.find(([, size]) => seconds >= size) ?? ["ms", 0.001];
  return `${Number((seconds / factor).toPrecision(DIGITS))} ${name}`;
}

/** @param {number} share */
export function shareText(share) {
  return `${Number((share * 100).toPrecision(DIGITS))} %`;
}

export class Curve {
  constructor() {
    this.host = byId("curve");
    this.readout = byId("curve-readout");
    /** @type {uPlot | undefined} */
    this.plot = undefined;
    /** @type {Series | undefined} */
    this.series = undefined;
    /** @type {Figure | undefined} */
    this.best = undefined;
    new ResizeObserver(() => this.plot?.setSize({ width: this.host.clientWidth, height: HEIGHT })).observe(this.host);
  }

  /** @param {Report} report */
  show(report) {
    this.series = report.series.find((series) => series.name === "checkpoint.goodput_by_interval");
    this.best = report.figures.find((figure) => figure.name === "checkpoint.interval_exact");
    this.#describe(report);
    const data = this.#data();
    if (!data) return;
    if (this.plot) this.plot.setData(data);
    else this.#draw(data);
  }

  /** Again, in the colours of the present theme. */
  repaint() {
    const data = this.#data();
    if (!data) return;
    this.plot?.destroy();
    this.#draw(data);
  }

  /** @returns {uPlot.AlignedData | undefined} */
  #data() {
    const points = this.series?.points;
    return points && [points.map(([x]) => x), points.map(([, y]) => y)];
  }

  /** @param {uPlot.AlignedData} data */
  #draw(data) {
    const ink = colour("--ink-soft");
    const grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: ink, grid, font: FONT, ticks: { show: false } };
    /** @type {uPlot.Options} */
    const options = {
      width: this.host.clientWidth,
      height: HEIGHT,
      padding: [12, 16, 0, 0],
      pxAlign: false,
      legend: { show: false },
      cursor: { y: false, points: { size: 8 }, drag: { x: false, y: false } },
      scales: { x: { time: false, distr: 3, range: (_, min, max) => [min, max] }, y: { range: (_, min, max) => yRange(min, max) } },
      axes: [
        {
          ...axis,
          size: 32,
          splits: (plot, _, min, max) => xTicks(plot, min, max),
          filter: (_, splits) => splits,
          values: (_, splits) => splits.map((split) => TICKS.find(([at]) => at === split)?.[1] ?? ""),
        },
        { ...axis, size: 52, values: (_, splits) => splits.map((split) => `${Math.round(split * 100)} %`) },
      ],
      series: [
        {},
        {
          stroke: colour("--accent"),
          width: 2,
          points: { show: false },
          paths: uPlot.paths.spline?.(),
        },
      ],
      hooks: { draw: [(plot) => this.#mark(plot)], setCursor: [(plot) => this.#read(plot)] },
    };
    this.plot = new uPlot(options, data, this.host);
  }

  /** The best interval as a dashed line, the one that is used as a dot; nothing where the plot does not reach. @param {uPlot} plot */
  #mark(plot) {
    const { ctx, bbox } = plot;
    const [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
    ctx.save();
    if (this.best) {
      const x = plot.valToPos(this.best.value, "x", true);
      if (x >= bbox.left && x <= right) {
        ctx.strokeStyle = colour("--good");
        ctx.lineWidth = 1.5 * devicePixelRatio;
        ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bottom);
        ctx.stroke();
        ctx.setLineDash([]);
      }
    }
    const mark = this.series?.mark;
    if (mark) {
      const [x, y] = [plot.valToPos(mark[0], "x", true), plot.valToPos(mark[1], "y", true)];
      const isInside = x >= bbox.left && x <= right && y >= bbox.top && y <= bottom;
      this.host.toggleAttribute("data-marked", isInside);
      if (isInside) {
        ctx.fillStyle = colour("--accent");
        ctx.strokeStyle = colour("--card");
        ctx.lineWidth = 2.5 * devicePixelRatio;
        ctx.beginPath();
        ctx.arc(x, y, 6 * devicePixelRatio, 0, 2 * Math.PI);
        ctx.fill();
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  /** @param {uPlot} plot */
  #read(plot) {
    const index = plot.cursor.idx;
    if (index === null || index === undefined) {
      this.readout.textContent = "";
      return;
    }
    const x = plot.data[0][index];
    const y = plot.data[1][index];
    this.readout.textContent = y === null || y === undefined ? "" : `${timeText(x)}: ${shareText(y)}`;
  }

  /** In the planner's own words. @param {Report} report */
  #describe(report) {
    const text = (/** @type {string} */ name) => report.figures.find((figure) => figure.name === name)?.text ?? "";
    const used = `${text("checkpoint.interval_used")}, ${text("checkpoint.goodput")}`;
    const best = this.best?.text ?? "";
    byId("curve-used").textContent = used;
    byId("curve-best").textContent = best;
    this.host.setAttribute("aria-label", `Goodput against time between saves. Used: ${used}. Best: ${best}.`);
  }
}

/** @param {number} min @param {number} max @returns {[number, number]} */
function yRange(min, max) {
  return [Math.max(0, Math.floor(min * 10) / 10), Math.min(1, Math.ceil(max * 10 + 0.01) / 10)];
}

/** @param {uPlot} plot @param {number} min @param {number} max */
function xTicks(plot, min, max) {
  const inside = TICKS.map(([at]) => at).filter((at) => at >= min && at <= max);
  return plot.width < NARROW ? inside.filter((_, index) => index % 2 === 0) : inside;
}

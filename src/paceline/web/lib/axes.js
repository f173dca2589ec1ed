// Axes and scales of charts, as uPlot takes them.

import { colour } from "./colours.js";
import { number } from "./format.js";

/** @import uPlot from "../vendor/uPlot.esm.js" */
/** @import { Axis, Range } from "../types/page" */

export const FONT_SIZE = 12;
export const FONT = "system-ui, sans-serif";
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]; // steps between labels

/**
 * Return an axis for uPlot.
 *
 * @param {Axis} options
 * @param {number} size pixels beside the plot
 * @returns {uPlot.Axis}
 */
export function axis({ label, ticks, format, log, whole }, size) {
  const font = `${FONT_SIZE}px ${FONT}`;
  const fixedTicks = log || ticks ? {
    /** @type {uPlot.Axis.Splits} */
    splits: (plot, _, low, high) => (ticks ? ticks(plot.width) : logTicks(log ?? 10, low, high)),
    /** @type {uPlot.Axis.Filter} */
    filter: (_, splits) => splits,
  } : {};
  return {
    label, size, labelSize: 22, font, labelFont: font, stroke: colour("--soft"), gap: 6,
    grid: { stroke: colour("--grid"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1, size: 5 },
    values: (_, splits) => splits.map((value) => (value === null ? "" : (format ?? number)(value))),
    ...(whole ? { incrs: WHOLE } : {}),
    ...fixedTicks,
  };
}

/**
 * Return a scale for uPlot.
 *
 * @param {Axis} options
 * @param {() => Range} range
 * @returns {uPlot.Scale}
 */
export const scale = ({ log }, range) => (
  log ? { time: false, range, distr: 3, log } : { time: false, range });

/**
 * Return the range of an axis that covers `values`. The axis may state its own ends.
 *
 * @param {Axis} options
 * @param {number[]} values
 * @param {number} air share of the range that stays free at each end
 * @returns {Range}
 */
export function rangeOf({ log, min, max, atLeast = -Infinity }, values, air) {
  if (!values.length) return [min ?? 0, max ?? Math.max(atLeast, 1)];
  const low = min ?? Math.min(...values);
  const high = max ?? Math.max(...values, atLeast);
  if (log) return [low, low === high ? low * log : high];
  const free = air * (high - low || 1);
  return [min ?? low - free, max ?? high + free];
}

/**
 * Return 1, 2, 5, 10, 20 … for base 10, and powers of two for base 2, not too many of them.
 *
 * @param {2 | 10} base
 * @param {number} low
 * @param {number} high
 */
function logTicks(base, low, high) {
  const digits = base === 10 ? [1, 2, 5] : [1];
  const step = base === 10 ? 1 : Math.max(1, Math.ceil(Math.log2(high / low) / 6));
  const ticks = [];
  const first = Math.floor(Math.log(low) / Math.log(base) + 1e-9);
  for (let power = first; base ** power <= high * 1.001; power += step) {
    ticks.push(...digits.map((digit) => digit * base ** power));
  }
  return ticks.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

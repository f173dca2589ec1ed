// What the calculator's charts draw of an answer: lines, optima, dots, and what does not fit.

import { seriesColour } from "../lib/colours.js";
import { fixed, times } from "../lib/format.js";
import { MOST_DRAFTERS } from "./state.js";

/** @import { BestNumbers, DrafterAnswer, Fits, MeasuredPoint } from "../types/answers" */
/** @import { Prediction, PublishedPoint, Throughput } from "../types/answers" */
/** @import { Band, Dot, Mark, Series } from "../types/page" */

/** @typedef {"roofline" | "calibrated"} Tier */
/** @typedef {{ x: number[], y: (number | null)[] }} Line */

export const TIERS = { calibrated: "calibrated", roofline: "roofline" };
export const TIER_NAMES = /** @type {Tier[]} */ (Object.keys(TIERS));
export const MEASURED = "--series-6";
export const NOT_FITTING = "does not fit";
const DASH = [6, 4];
/** @type {Record<Fits, string>} */
const HELD = { drafts: "", "no draft": "no draft fits", nothing: NOT_FITTING };

/** @param {Tier} tier */
export const style = (tier) => (tier === "calibrated" ? {} : { dash: DASH });

/**
 * Return a series for each drafter and tier.
 *
 * @param {DrafterAnswer[]} drafters
 * @param {(drafter: DrafterAnswer, tier: Tier) => Line} line
 * @returns {Series[]}
 */
export const inTiers = (drafters, line) => (
  drafters.flatMap((drafter, index) => TIER_NAMES.map((tier) => ({
    label: `${drafter.name}, ${tier}`, colour: seriesColour(index), ...style(tier),
    ...line(drafter, tier),
  }))));

/**
 * Return a calibrated series for each drafter of a pinned scenario, in colours of their own.
 *
 * @param {Prediction | null} pinned
 * @param {(drafter: DrafterAnswer) => Line} line
 * @returns {Series[]}
 */
export const pinnedLines = (pinned, line) => (pinned?.drafters ?? []).map((drafter, index) => ({
  label: `${drafter.name}, pinned`, colour: seriesColour(MOST_DRAFTERS + index), ...line(drafter),
}));

/** @param {DrafterAnswer[]} drafters @param {keyof BestNumbers} name */
export const byBatch = (drafters, name) => inTiers(drafters, ({ by_batch: best }, tier) => (
  { x: best.batch, y: best[tier][name] }));

/**
 * Return lines, optima, and what does not fit, by draft length.
 *
 * @param {DrafterAnswer[]} drafters
 * @param {"speedup" | "tokens_per_second_per_request"} name
 * @param {(value: number) => string} format
 */
export function byLength(drafters, name, format) {
  const longest = Math.max(...drafters.map((drafter) => drafter.max_draft));
  const asked = Math.max(...drafters.map(({ curve }) => curve.draft_length.length - 1));
  /** @type {Band[]} */
  const bands = longest < asked
    ? [{ from: longest + 0.5, to: asked + 0.5, text: longest ? NOT_FITTING : HELD["no draft"] }]
    : [];
  return {
    series: inTiers(drafters, ({ curve }, tier) => (
      { x: curve.draft_length, y: curve[tier][name] })),
    marks: drafters.flatMap((drafter, index) => (
      TIER_NAMES.flatMap((tier) => optimumMark(drafter, tier, index, name, format)))),
    bands,
  };
}

/**
 * Return the ring at an optimum, with words at the calibrated one: the same that the card shows.
 *
 * @param {DrafterAnswer} drafter
 * @param {Tier} tier
 * @param {number} index
 * @param {"speedup" | "tokens_per_second_per_request"} name
 * @param {(value: number) => string} format
 * @returns {Mark[]}
 */
function optimumMark({ optimum }, tier, index, name, format) {
  if (optimum === null) return [];
  const { draft_length: x, [name]: y } = optimum[tier];
  const text = tier === "calibrated" ? `γ* = ${x}, ${format(y)}` : "";
  return [{ x, y, colour: seriesColour(index), text, below: optimum.roofline[name] >= y }];
}

/** Return the batches at which no drafter fits. @param {DrafterAnswer[]} drafters */
export const batchBands = (drafters) => (
  fitBands(drafters[0].by_batch.batch, drafters.map(({ by_batch: best }) => best)));

/**
 * Return the places at which no drafter fits, on a logarithmic axis.
 *
 * @param {number[]} places
 * @param {{ fits: Fits[] }[]} views of the drafters
 * @returns {Band[]}
 */
export function fitBands(places, views) {
  const held = places.map((_, index) => {
    const states = views.map(({ fits }) => fits[index]);
    return states.includes("drafts") ? "drafts" : states[0];
  });
  /** @type {Band[]} */
  const bands = [];
  held.forEach((state, index) => {
    const from = index ? Math.sqrt(places[index - 1] * places[index]) : places[index];
    const to = Math.sqrt(places[index] * (places[index + 1] ?? places[index]));
    const text = HELD[state];
    const last = bands.at(-1);
    if (last && last.text === text && last.to === from) last.to = to;
    else if (text) bands.push({ from, to, text });
  });
  return bands;
}

/** Return published measurements as points with a speedup. @param {PublishedPoint[]} published */
export const shownPoints = (published) => published.flatMap((point) => {
  const { speedup, acceptance_length, draft_length, batch } = point;
  return speedup === null ? []
    : [{ speedup, acceptance_length, draft_length, batch, note: noteOf(point) }];
});

/** @param {PublishedPoint} point */
export function noteOf({ source, set, kind, batch, draft_length: length, acceptance_length: al }) {
  const what = kind === null ? "no drafts" : `${kind}, γ = ${length}, AL ${fixed(al, 2)}`;
  return `${source.split(";")[0]}, ${set}, ${what}, batch ${batch}`;
}

/** Return speeds per device over speeds per request, for the batches that fit. */
export function front(/** @type {Throughput} */ numbers) {
  const devices = numbers.tokens_per_second_per_device;
  /** @type {[number, number | null][]} */
  const points = numbers.tokens_per_second_per_request.flatMap((value, index) => (
    value === null ? [] : [[value, devices[index]]]));
  points.sort(([left], [right]) => left - right);
  return { x: points.map(([x]) => x), y: points.map(([, y]) => y) };
}

/** Return a line without the later of two points at the same x, which a table cannot hold. */
export function unique(/** @type {Line} */ { x, y }) {
  const isFirst = x.map((value, index) => x.indexOf(value) === index);
  return { x: x.filter((_, index) => isFirst[index]), y: y.filter((_, index) => isFirst[index]) };
}

/** @param {number} value */
export function ifWhole(value) {
  return Number.isInteger(value) ? String(value) : "";
}

/** @param {number} x @param {MeasuredPoint} point @returns {Dot} */
export function dot(x, { acceptance_length: al, speedup, note }) {
  const about = note ? `${note}: ` : "";
  const text = `${about}${times(speedup)} at AL ${fixed(al, 2)} incl. bonus`;
  return { x, y: speedup, note: text, colour: MEASURED };
}

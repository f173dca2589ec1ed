// Everything that is drawn, as one long table.

/** @import { Fits, Prediction } from "../types/answers" */

/** @typedef {string | number | null} Cell */

/** @type {Record<Fits, string>} */
const FITS = { drafts: "yes", "no draft": "no draft fits", nothing: "does not fit" };

const HEADER = [
  "view", "drafter", "tier", "batch", "context", "draft_length", "acceptance_length_incl_bonus",
  "fits", "speedup", "tpot_ms", "tokens_per_second_per_request", "tokens_per_second_per_device",
];
/** @type {["roofline", "calibrated"]} */
const TIERS = ["roofline", "calibrated"];

/** Return an answer of ui/predict as CSV with a header line. @param {Prediction} answer */
export function toCsv(answer) {
  const { batch, context } = answer.scenario;
  /** @type {Cell[][]} */
  const rows = [HEADER];
  for (const tier of TIERS) {
    rows.push(["ar", "", tier, batch, context, 0, 1, "yes", 1, ...speeds(answer.ar[tier])]);
  }
  for (const { name, curve, by_batch: best, by_context: far } of answer.drafters) {
    for (const tier of TIERS) {
      curve.draft_length.forEach((length, index) => rows.push([
        "by_draft_length", name, tier, batch, context, length, curve.acceptance_length[index],
        curve.fits[index] ? "yes" : "does not fit", curve[tier].speedup[index],
        ...speedsAt(curve[tier], index),
      ]));
      best.batch.forEach((size, index) => rows.push([
        "optimum_by_batch", name, tier, size, context, best[tier].draft_length[index],
        best[tier].acceptance_length[index], FITS[best.fits[index]], best[tier].speedup[index],
        ...speedsAt(best[tier], index),
      ]));
      far?.context.forEach((length, index) => rows.push([
        "optimum_by_context", name, tier, batch, length, far[tier].draft_length[index],
        far[tier].acceptance_length[index], FITS[far.fits[index]], far[tier].speedup[index],
        ...speedsAt(far[tier], index),
      ]));
    }
  }
  return `${rows.map((row) => row.map(cell).join(",")).join("\n")}\n`;
}

/**
 * @template Value
 * @typedef {{
 *   tpot_ms: Value, tokens_per_second_per_request: Value, tokens_per_second_per_device: Value,
 * }} Speeds
 */

/** Return the last three columns. @param {Speeds<number | null>} numbers */
const speeds = (numbers) => [
  numbers.tpot_ms, numbers.tokens_per_second_per_request, numbers.tokens_per_second_per_device,
];

/** @param {Speeds<(number | null)[]>} numbers @param {number} index */
const speedsAt = (numbers, index) => speeds({
  tpot_ms: numbers.tpot_ms[index],
  tokens_per_second_per_request: numbers.tokens_per_second_per_request[index],
  tokens_per_second_per_device: numbers.tokens_per_second_per_device[index],
});

/** @param {Cell} value */
function cell(value) {
  if (value === null) return "";
  let text = String(value);
  // a spreadsheet would compute a name that starts like a formula
  if (typeof value === "string" && /^[=+\-@]/.test(text)) text = `'${text}`;
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

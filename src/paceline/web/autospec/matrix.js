// The AL matrix: versions by cohorts, as a table whose cells are coloured by their numbers.

import { h } from "../lib/dom.js";
import { fixed, number, times } from "../lib/format.js";
import { cohortName, leftOut, nothing, RUN, withInterval } from "./words.js";

/** @import { AlCell, AutospecOverview } from "../types/answers" */

const LABEL = "AL by version and cohort";
const PALE = 5; // percent of the accent in the palest cell, and in the strongest
const STRONG = 48;

/** @typedef {{ low: number, high: number }} Extent of the values in the matrix */

/** @param {AutospecOverview} view */
export function matrixTable({ cohorts, versions, matrix, left_out: { columns: more } }) {
  if (!matrix.length) {
    return nothing("No version was scored, and none has served a traced request yet. The loop "
      + "scores what it tries:", RUN);
  }
  const shown = new Map(matrix.map((cell) => [keyOf(cell.version, cell.cohort), cell]));
  const columns = versions.filter(({ name }) => matrix.some(({ version }) => version === name));
  const rows = cohorts.filter(({ cohort: label }) => matrix.some(({ cohort }) => cohort === label));
  const values = matrix.map(valueOf);
  const extent = { low: Math.min(...values), high: Math.max(...values) };
  return h("div", {},
    h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": LABEL },
      h("table", { class: "matrix" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "cohort"), columns.map((version) => (
          h("th", { scope: "col" }, version.name, h("br"),
            h("span", { class: "hint" }, version.state)))))),
        h("tbody", {}, rows.map(({ cohort }) => {
          const cells = columns.map(({ name }) => shown.get(keyOf(name, cohort)) ?? null);
          const best = bestOf(cells);
          return h("tr", {}, h("th", { scope: "row" }, cohortName(cohort)),
            cells.map((cell) => tableCell(cell, extent, cell !== null && cell === best)));
        })))),
    scale(extent), leftOut(more, "versions, the oldest and retired ones, are"));
}

/** @param {string} version @param {string} cohort */
const keyOf = (version, cohort) => `${version}\n${cohort}`;

/** Return the AL that a cell is coloured by: scores compare versions on the same answers. */
const valueOf = (/** @type {AlCell} */ { scored, seen }) => (scored ?? seen)?.al ?? 1;

/**
 * Return the cell of a row with the highest score; null where there are no two to compare.
 *
 * @param {(AlCell | null)[]} cells
 */
function bestOf(cells) {
  const scored = cells.filter((cell) => cell !== null && cell.scored !== null)
    .sort((one, other) => (other?.scored?.al ?? 0) - (one?.scored?.al ?? 0));
  return scored.length > 1 ? scored[0] : null;
}

/** @param {AlCell | null} cell @param {Extent} extent @param {boolean} isBest */
function tableCell(cell, extent, isBest) {
  if (cell === null) {
    return h("td", { class: "unknown" }, h("span", { class: "unseen" }, "not known"));
  }
  const value = valueOf(cell);
  return h("td", { style: { background: shade(value, extent) } },
    h("strong", {}, fixed(value, 2)),
    isBest ? [h("span", { "aria-hidden": "true" }, " ★"),
      h("span", { class: "unseen" }, " best score of this cohort")] : null,
    h("span", { class: "more" }, details(cell).join("; ")));
}

/** @param {AlCell} cell */
function details({ scored, seen }) {
  const texts = [];
  if (scored) texts.push(`scored ${withInterval(scored)}`);
  if (seen) {
    const speed = seen.speedup === null ? "" : `, ${times(seen.speedup)}`;
    texts.push(`seen ${withInterval(seen)}${speed}, ${number(seen.requests, 6)} requests`);
  }
  return texts;
}

/** @param {number} value @param {Extent} extent */
function shade(value, { low, high }) {
  const share = high > low ? (value - low) / (high - low) : 0.5;
  const accent = PALE + (STRONG - PALE) * share;
  return `color-mix(in srgb, var(--accent) ${accent.toFixed(1)}%, var(--card))`;
}

/** @param {Extent} extent */
const scale = (extent) => h("p", { class: "hint scale" },
  `AL ${fixed(extent.low, 2)} `,
  h("span", {
    class: "ramp",
    "aria-hidden": "true",
    style: { background: `linear-gradient(to right, ${ends(extent)})` },
  }),
  ` ${fixed(extent.high, 2)}. ★ the best score of a cohort. Scored: on answers that were held out. `
  + "Seen: on its own requests of the last week, so only scores compare like with like. Speed is "
  + "over decoding without drafts, by the cost table.");

/** @param {Extent} extent */
const ends = (extent) => `${shade(extent.low, extent)}, ${shade(extent.high, extent)}`;

// The answer in a few numbers, above the charts, and the lines to launch it with, below them.

import { seriesColour } from "../lib/colours.js";
import { copyText, h } from "../lib/dom.js";
import { swatch } from "../lib/figure.js";
import { bytes, fixed, number, rate, seconds, times } from "../lib/format.js";

/** @import { DrafterAnswer, Prediction } from "../types/answers" */

/** @type {[string, string][]} */
const ENGINES = [["paceline", "Paceline"], ["vllm", "vLLM"], ["sglang", "SGLang"]];

/**
 * Return the facts, a card for each drafter, and the notes.
 *
 * @param {Prediction} answer
 * @param {(index: number) => void} feel opens the timing with the numbers of a drafter
 */
export function summary(answer, feel) {
  const notes = answer.notes.map((note) => h("li", {}, note));
  return [
    h("p", { class: "soft facts" }, facts(answer)),
    h("div", { class: "results" },
      answer.drafters.map((drafter, index) => resultCard(drafter, index, () => feel(index)))),
    ...(notes.length ? [h("ul", { class: "hint notes" }, notes)] : []),
  ];
}

/** @param {Prediction} answer */
function facts({ model, hardware, capacity, ar }) {
  const devices = hardware.devices > 1 ? `${hardware.devices} × ` : "";
  return `${model.name} on ${devices}${hardware.name}: ${bytes(model.weight_bytes)} of weights, `
    + `${bytes(model.kv_bytes_per_token)} of KV a token, memory for `
    + `${number(capacity.max_batch)} requests. Without speculation: `
    + `${rate(ar.calibrated.tokens_per_second_per_request)} a request (ceiling `
    + `${number(ar.ceiling.tokens_per_second_per_request)}).`;
}

/** @param {DrafterAnswer} drafter @param {number} index @param {() => void} feel */
function resultCard({ name, optimum: { calibrated, ceiling } }, index, feel) {
  const isOff = calibrated.draft_length === 0;
  return h(
    "section",
    {
      class: "card result-card", style: { borderTopColor: `var(${seriesColour(index)})` },
      "aria-label": name,
    },
    h("header", {}, h("h2", {}, name),
      h("button", {
        type: "button", class: "quiet feel", "aria-label": `Feel ${name} in the timing`,
        on: { click: feel },
      }, "▶ Feel it")),
    h("p", { class: "big" }, isOff ? "Speculation off" : times(calibrated.speedup),
      h("small", {}, ` ceiling ${times(ceiling.speedup)}`)),
    h("dl", {},
      entry("draft length γ*", `${calibrated.draft_length} (ceiling ${ceiling.draft_length})`),
      entry("AL incl. bonus", fixed(calibrated.acceptance_length, 2)),
      entry("a request", rate(calibrated.tokens_per_second_per_request)),
      entry("TPOT", seconds(calibrated.tpot_ms / 1e3)),
      entry("break-even AL", fixed(calibrated.break_even_length, 2))),
  );
}

/** @param {string} term @param {string} value */
const entry = (term, value) => h("div", {}, h("dt", {}, term), h("dd", {}, value));

/** Return the result in a line, for when the cards are out of sight. @param {Prediction} answer */
export const glance = ({ drafters }) => (
  drafters.map(({ name, optimum: { calibrated } }, index) => h("span", {},
    swatch(seriesColour(index)),
    `${name} `, h("b", {}, times(calibrated.speedup)), ` γ* ${calibrated.draft_length}`)));

/** Return the launch lines by drafter, each with a button that copies it. */
export const launchLines = (/** @type {Prediction} */ { drafters }) => (
  drafters.map(({ name, optimum, flags }) => h("section", {},
    h("h3", {}, `${name}, γ = ${optimum.calibrated.draft_length}`),
    ENGINES.map(([engine, title]) => launchLine(title, flags[engine])))));

/** @param {string} title @param {string | null} command */
function launchLine(title, command) {
  if (command === null) return h("p", { class: "hint" }, `${title}: has no such drafter`);
  /** @type {HTMLButtonElement} */
  const copy = h("button", {
    type: "button", "aria-label": `Copy the line for ${title}`,
    on: { click: () => copyText(command, copy) },
  }, "Copy");
  return h("div", { class: "flag" },
    h("span", { class: "soft" }, title), h("pre", { tabIndex: 0 }, h("code", {}, command)), copy);
}

// The answer in a few numbers, above the charts, and the lines to launch it with, below them.

import { seriesColour } from "../lib/colours.js";
import { copyText, h } from "../lib/dom.js";
import { swatch } from "../lib/figure.js";
import { bytes, fixed, number, rate, seconds, times } from "../lib/format.js";

/** @import { DrafterAnswer, Evidence, LaunchLine, Prediction } from "../types/answers" */

/** @type {[string, string][]} */
const ENGINES = [["paceline", "Paceline"], ["vllm", "vLLM"], ["sglang", "SGLang"]];

/**
 * Return the facts, a card for each drafter, and the notes.
 *
 * @param {Prediction} answer
 * @param {(index: number) => void} feel opens the timing with the numbers of a drafter
 */
export function summary(answer, feel) {
  const name = answer.calibration.name === "fitted" ? "a fit" : answer.calibration.name;
  const { text } = answer.evidence;
  const others = answer.drafters.filter(({ evidence }) => evidence.text !== text);
  const bands = [`Calibrated with ${name}: ${text}`, ...new Set(others.map(({ evidence }) => {
    const alike = others.filter((other) => other.evidence.text === evidence.text);
    return `Band of ${alike.map((other) => other.name).join(" and ")}: ${evidence.text}`;
  }))];
  const notes = [...bands, ...answer.notes].map((note) => h("li", {}, note));
  return [
    h("p", { class: "soft facts" }, facts(answer)),
    h("div", { class: "results" },
      answer.drafters.map((drafter, index) => resultCard(drafter, index, () => feel(index)))),
    ...(notes.length ? [h("ul", { class: "hint notes" }, notes)] : []),
  ];
}

/** Return the model and its devices in words. @param {Prediction} answer */
export function deployment({ model, hardware }) {
  const devices = hardware.devices > 1 ? `${hardware.devices} × ` : "";
  return `${model.name} on ${devices}${hardware.name}`;
}

/** @param {Prediction} answer */
function facts(answer) {
  const { model, capacity, ar: { calibrated, roofline }, evidence } = answer;
  return `${deployment(answer)}: ${bytes(model.weight_bytes)} of weights, `
    + `${bytes(model.kv_bytes_per_token)} of KV a token, memory for `
    + `${number(capacity.max_batch)} requests. Without speculation: `
    + `${rate(calibrated.tokens_per_second_per_request)} a request`
    + `${range(evidence, calibrated.tokens_per_second_per_request, number)}, at most `
    + `${number(roofline.tokens_per_second_per_request)} by the roofline.`;
}

/**
 * Return what is measured where `value` is predicted, as far as evidence tells: " (69 to 103)".
 *
 * @param {Evidence} evidence
 * @param {number} value
 * @param {(value: number) => string} format
 */
function range({ low, high }, value, format) {
  return low === null || high === null ? ""
    : ` (${format(low * value)} to ${format(high * value)})`;
}

/** @param {DrafterAnswer} drafter @param {number} index @param {() => void} feel */
function resultCard(drafter, index, feel) {
  const { name, optimum } = drafter;
  const button = optimum && h("button", {
    type: "button", class: "quiet feel", "aria-label": `Feel ${name} in the timing`,
    on: { click: feel },
  }, "▶ Feel it");
  return h(
    "section",
    {
      class: "card result-card", style: { borderTopColor: `var(${seriesColour(index)})` },
      "aria-label": name,
    },
    h("header", {}, h("h2", {}, name), button),
    optimum ? numbers(drafter, optimum) : notFitting(drafter),
  );
}

/** @param {DrafterAnswer} drafter */
const notFitting = ({ name }) => [
  h("p", { class: "big none" }, "No draft fits"),
  h("p", { class: "hint" }, "The memory holds these requests, but not the weights and drafts of "
    + `${name} beside them. A smaller batch, a shorter context or more devices make room.`),
];

/** @param {DrafterAnswer} drafter @param {NonNullable<DrafterAnswer["optimum"]>} optimum */
function numbers({ evidence }, { calibrated, roofline }) {
  const tokens = calibrated.tokens_per_second_per_request;
  const isOff = calibrated.draft_length === 0;
  return [
    h("p", { class: "big" }, isOff ? "Speculation off" : rate(tokens),
      h("small", {}, isOff ? ` ${rate(tokens)} a request` : " a request")),
    h("dl", {},
      entry("band", range(evidence, tokens, number).slice(2, -1) || "not known"),
      entry("at most, by the roofline", rate(roofline.tokens_per_second_per_request)),
      entry("speedup", `${times(calibrated.speedup)}${range(evidence, calibrated.speedup, times)}`),
      entry("roofline's speedup", `${times(roofline.speedup)} at γ = ${roofline.draft_length}`),
      entry("draft length γ*", String(calibrated.draft_length)),
      entry("AL incl. bonus", fixed(calibrated.acceptance_length, 2)),
      entry("TPOT", seconds(calibrated.tpot_ms / 1e3)),
      entry("break-even AL", fixed(calibrated.break_even_length, 2))),
  ];
}

/** @param {string} term @param {string} value */
const entry = (term, value) => h("div", {}, h("dt", {}, term), h("dd", {}, value));

/** Return the result in a line, for when the cards are out of sight. @param {Prediction} answer */
export const glance = ({ drafters }) => (
  drafters.map((drafter, index) => h("span", {},
    swatch(seriesColour(index)), `${drafter.name} `, shortly(drafter))));

/** @param {DrafterAnswer} drafter */
function shortly({ optimum }) {
  if (optimum === null) return "no draft fits";
  const { calibrated } = optimum;
  return [h("b", {}, rate(calibrated.tokens_per_second_per_request)),
    ` ${times(calibrated.speedup)} γ* ${calibrated.draft_length}`];
}

/** Return the result as a sentence for screen readers. @param {Prediction} answer */
export const spoken = ({ drafters }) => drafters.map(({ name, optimum }) => (
  optimum === null ? `${name}: no draft fits the memory`
    : `${name}: ${rate(optimum.calibrated.tokens_per_second_per_request)}, `
      + `${times(optimum.calibrated.speedup)} at draft length ${optimum.calibrated.draft_length}`
)).join("; ");

/** Return the launch lines by drafter, each with a button that copies it. */
export const launchLines = (/** @type {Prediction} */ { drafters }) => (
  drafters.map(({ name, optimum, flags }) => h("section", {},
    h("h3", {}, `${name}, γ = ${optimum?.calibrated.draft_length ?? 0}`),
    ENGINES.map(([engine, title]) => launchLine(title, flags[engine])))));

/** @param {string} title @param {LaunchLine} line */
function launchLine(title, { command, missing }) {
  if (command === null) return h("p", { class: "hint" }, `No line for ${title}: ${missing}.`);
  /** @type {HTMLButtonElement} */
  const copy = h("button", {
    type: "button", "aria-label": `Copy the line for ${title}`,
    on: { click: () => copyText(command, copy) },
  }, "Copy");
  return h("div", { class: "flag" },
    h("span", { class: "soft" }, title), h("pre", { tabIndex: 0 }, h("code", {}, command)), copy);
}

// The answer in a few numbers, above the charts; and the lines to launch it with, below them.

import { copyText, h } from "../lib/dom.js";
import { bytes, fixed, number, rate, seconds, times } from "../lib/format.js";

const ENGINES = { paceline: "Paceline", vllm: "vLLM", sglang: "SGLang" };

/** A card for each drafter. `feel(index)` opens the timing with its numbers. */
export function summary(answer, feel) {
  const { model, hardware, capacity, ar } = answer;
  return [
    h("p", { class: "soft facts" },
      `${model.name} on ${hardware.devices > 1 ? `${hardware.devices} × ` : ""}${hardware.name}: ${bytes(model.weight_bytes)} of weights, `
      + `${bytes(model.kv_bytes_per_token)} of KV a token, room for ${number(capacity.max_batch)} requests. `
      + `Without speculation: ${rate(ar.calibrated.tokens_per_second_per_request)} a request (ceiling ${number(ar.ceiling.tokens_per_second_per_request)}).`),
    h("div", { class: "results" }, answer.drafters.map((drafter, index) => result(drafter, index, feel))),
    answer.notes.length ? h("ul", { class: "hint notes" }, answer.notes.map((note) => h("li", {}, note))) : null,
  ];
}

function result(drafter, index, feel) {
  const { calibrated, ceiling } = drafter.optimum;
  const off = calibrated.draft_length === 0;
  return h(
    "section",
    { class: "card result-card", style: { borderTopColor: `var(--series-${index + 1})` }, "aria-label": drafter.name },
    h("header", {}, h("h2", {}, drafter.name),
      h("button", { type: "button", class: "quiet feel", "aria-label": `Feel ${drafter.name} in the timing`, on: { click: () => feel(index) } }, "▶ Feel it")),
    h("p", { class: "big" }, off ? "Speculation off" : times(calibrated.speedup),
      h("small", {}, ` ceiling ${times(ceiling.speedup)}`)),
    h("dl", {},
      entry("draft length γ*", `${calibrated.draft_length} (ceiling ${ceiling.draft_length})`),
      entry("AL incl. bonus", fixed(calibrated.acceptance_length, 2)),
      entry("a request", rate(calibrated.tokens_per_second_per_request)),
      entry("TPOT", seconds(calibrated.tpot_ms / 1e3)),
      entry("break-even AL", fixed(calibrated.break_even_length, 2))),
  );
}

/** The result in a line, for where the cards are far from the sliders. */
export function glance(answer) {
  return answer.drafters.map(({ name, optimum: { calibrated } }, index) => h("span", {},
    h("span", { class: "swatch", style: { borderColor: `var(--series-${index + 1})` } }),
    `${name} `, h("b", {}, times(calibrated.speedup)), ` γ* ${calibrated.draft_length}`));
}

const entry = (term, value) => h("div", {}, h("dt", {}, term), h("dd", {}, value));

/** Launch lines by drafter, with a button that copies each. */
export function flags(answer) {
  return answer.drafters.map((drafter) => h(
    "section",
    {},
    h("h3", {}, `${drafter.name}, γ = ${drafter.optimum.calibrated.draft_length}`),
    Object.entries(ENGINES).map(([engine, title]) => line(title, drafter.flags[engine])),
  ));
}

function line(title, command) {
  if (command === null) return h("p", { class: "hint" }, `${title}: has no such drafter`);
  const copy = h("button", { type: "button", "aria-label": `Copy the line for ${title}`, on: { click: () => copyText(command, copy) } }, "Copy");
  return h("div", { class: "flag" }, h("span", { class: "soft" }, title), h("pre", { tabIndex: 0 }, h("code", {}, command)), copy);
}

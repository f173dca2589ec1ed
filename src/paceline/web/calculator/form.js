// The calculator's form: it shows a state, and tells when somebody has changed it.

import { numeric, select, slider, text } from "../lib/controls.js";
import { h } from "../lib/dom.js";
import { labelled } from "../lib/errors.js";
import { bytes, count, fixed, number, percent } from "../lib/format.js";
import { drafterCard } from "./drafters.js";
import { MOST_DRAFTERS, PASTE, SERVED, another } from "./state.js";

/** @import { HardwareLists, ModelFacts, ModelLists, ServedScenario } from "../types/answers" */
/** @import { Control, Options } from "../types/page" */
/** @import { NumberFields, State, TextFields } from "./state.js" */

/** @typedef {ModelLists & HardwareLists & { served: ServedScenario | null }} Lists */

const BATCHES = [
  1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048,
];
const CONTEXTS = Array.from({ length: 14 }, (_, power) => 128 * 2 ** power);

export class Form {
  element;
  state;
  #lists;
  #changed;
  #texts;
  #numbers;
  #modelHint = h("p", { class: "hint" });
  #hardwareHint = h("p", { class: "hint" });
  #configField;
  #fitField;
  #drafters = h("div", { class: "drafters" });
  #add = h("button", {
    type: "button", id: "calculator-add", on: { click: () => this.#addDrafter() },
  }, "+ Add a drafter");

  /**
   * @param {Lists} lists
   * @param {State} state
   * @param {() => void} changed called after every change of `state`
   */
  constructor(lists, state, changed) {
    this.#lists = lists;
    this.state = state;
    this.#changed = changed;
    this.#texts = this.#textControls();
    this.#numbers = this.#numberControls();
    this.#configField = labelled("model.config", "config.json", this.#texts.config,
      "Of any Hugging Face model whose family the roofline knows");
    this.#fitField = labelled("calibration", "Fit", this.#texts.calibration_json,
      "The JSON that paceline roofline fit wrote");
    this.element = this.#layout();
  }

  /** Show how many devices an answer is for where no number is set. @param {number} count */
  showDevices(count) {
    const { element } = this.#numbers.tensor_parallel;
    element.setAttribute("placeholder", `${count}, chosen`);
  }

  /** Show another state. @param {State} state */
  show(state) {
    this.state = state;
    for (const [name, control] of entries(this.#texts)) control.value = state[name];
    for (const [name, control] of entries(this.#numbers)) control.value = state[name];
    this.#showDrafters();
    this.#settle();
  }

  // -- inside -------------------------------------------------------------------------------------

  /** @returns {Record<keyof TextFields, Control<string>>} */
  #textControls() {
    const changed = () => this.#read();
    const { hardware, precisions, served } = this.#lists;
    const machines = hardware.map(({ name }) => named(name));
    const precisionOptions = [pair("", "as in config"), ...precisions.map(named)];
    return {
      model: select("calculator-model", this.#models(), changed),
      config: text("calculator-config", {
        rows: 6, class: "code", changed, placeholder: '{"model_type": "qwen3", "hidden_size": …}',
      }),
      hardware: select("calculator-hardware",
        served ? [pair(SERVED, "this server"), ...machines] : machines, changed),
      precision: select("calculator-precision", precisionOptions, changed),
      calibration: select("calculator-calibration", this.#calibrations(), changed),
      checkpoint: text("calculator-checkpoint", { placeholder: "folder or hub id", changed }),
      calibration_json: text("calculator-calibration-json", { rows: 4, class: "code", changed }),
    };
  }

  /** @returns {Record<keyof NumberFields, Control<number | null>>} */
  #numberControls() {
    const changed = () => this.#read();
    return {
      tensor_parallel: numeric("calculator-tp", { min: 1, step: 1, changed }),
      batch: slider("calculator-batch",
        { values: BATCHES, label: "Batch", unit: " requests", changed }),
      context: slider("calculator-context",
        { values: CONTEXTS, label: "Context", unit: " tokens", changed }),
      max_draft: slider("calculator-max-draft",
        { min: 1, max: 64, step: 1, label: "Longest draft", unit: " tokens", changed }),
    };
  }

  #layout() {
    const { model, hardware, precision, calibration, checkpoint } = this.#texts;
    const { tensor_parallel: devices, batch, context, max_draft: longest } = this.#numbers;
    return h(
      "form",
      {
        id: "calculator-form", class: "card",
        on: { submit: (event) => event.preventDefault() },
      },
      h("fieldset", {}, h("legend", {}, "Model and hardware"),
        labelled("model", "Model", model), this.#modelHint, this.#configField,
        labelled("hardware", "Hardware", hardware), this.#hardwareHint,
        h("div", { class: "pair" }, labelled("tensor_parallel", "Devices (TP)", devices,
            "Empty: the fewest that hold the model"),
          labelled("precision", "Precision", precision))),
      h("fieldset", {}, h("legend", {}, "Load"),
        labelled("batch", "Batch, requests at once", batch),
        labelled("context", "Context, tokens each", context)),
      h("fieldset", {}, h("legend", {}, "Drafters"),
        h("p", { class: "hint" }, this.#lists.served ? seenText(this.#lists.served)
          : "How well they draft, and what that costs. The first values are assumptions: put in "
            + "your own, or start from a preset that was measured."),
        this.#drafters, this.#add),
      h("details", { class: "more" }, h("summary", {}, "More"),
        labelled("max_draft", "Longest draft looked at, tokens", longest),
        labelled("calibration", "Calibrated with", calibration), this.#fitField,
        labelled("checkpoint", "The model's checkpoint, for the launch lines", checkpoint)),
    );
  }

  /** @returns {Options} */
  #models() {
    const { served } = this.#lists;
    /** @type {Options} */
    const own = served ? [[SERVED, `${served.model.name}, on this server`]] : [];
    return [...own, [PASTE, "Paste a config.json …"],
      ...this.#lists.models.map((model) => pair(model.name, sizeOf(model)))];
  }

  /** @returns {Options} */
  #calibrations() {
    return [["", "the nearest preset"],
      ...(this.#lists.served ? [pair(SERVED, "this server's steps")] : []),
      ...Object.keys(this.#lists.calibrations).map(named), [PASTE, "a pasted fit …"]];
  }

  #read() {
    for (const [name, control] of entries(this.#texts)) this.state[name] = control.value;
    for (const [name, control] of entries(this.#numbers)) this.state[name] = control.value;
    this.#settle();
    this.#changed();
  }

  /** Show the fields and hints that belong to what is chosen. */
  #settle() {
    const { model, hardware, calibration, drafters } = this.state;
    const listed = this.#lists.models.find(({ name }) => name === model);
    const device = this.#lists.hardware.find(({ name }) => name === hardware);
    this.#configField.hidden = model !== PASTE;
    this.#modelHint.hidden = !listed;
    this.#modelHint.textContent = listed
      ? `${bytes(listed.weight_bytes)} of weights as the config says` : "";
    const { served } = this.#lists;
    if (served && hardware === SERVED) this.#hardwareHint.textContent = measuredText(served);
    else this.#hardwareHint.textContent = device
      ? `${bytes(device.memory_bandwidth)}/s, ${bytes(device.memory)}, `
        + `bf16 ${count(device.peak.bf16 / 1e12)} TFLOP/s · ${device.source}` : "";
    this.#fitField.hidden = calibration !== PASTE;
    this.#add.hidden = drafters.length >= MOST_DRAFTERS;
  }

  #showDrafters() {
    const { drafters } = this.state;
    this.#drafters.replaceChildren(...drafters.map((drafter, index) => drafterCard(drafter, index, {
      changed: () => this.#changed(),
      rebuilt: () => this.#rebuild(),
      remove: drafters.length > 1 ? () => { drafters.splice(index, 1); this.#rebuild(); } : null,
    })));
  }

  #addDrafter() {
    this.state.drafters.push(another(this.state.drafters));
    this.#rebuild();
  }

  #rebuild() {
    this.#showDrafters();
    this.#settle();
    this.#changed();
  }
}

/**
 * Object.entries() with the names as they are typed.
 *
 * @template {string} Name
 * @template Value
 * @param {Record<Name, Value>} object
 */
const entries = (object) => /** @type {[Name, Value][]} */ (Object.entries(object));

/** @param {string} name */
const named = (name) => pair(name, name);

/** @param {string} value @param {string} label @returns {[string, string]} */
const pair = (value, label) => [value, label];

/** @param {ServedScenario} served */
const measuredText = ({ hardware, median_error: error }) => (
  `As this server measured: weights are read at ${bytes(hardware.memory_bandwidth)}/s, and its `
  + `steps are explained with a median error of ${percent(error, 1)}`);

/** @param {ServedScenario} served */
function seenText({ drafters, seen }) {
  const texts = drafters.map(({ name }) => {
    const { [name]: found } = seen;
    return found
      ? `${name} had an AL of ${fixed(found.acceptance_length, 2)} in `
        + `${number(found.rounds)} rounds`
      : `${name} has not drafted, its α is a guess`;
  });
  return `In the last 10 minutes ${texts.join("; ")}. Costs are as this server measured them.`;
}

/** @param {ModelFacts} model */
function sizeOf({ name, parameters, active_parameters: active }) {
  const sparse = active < 0.9 * parameters ? `, ${count(active)} active` : "";
  return `${name} · ${count(parameters)}${sparse}`;
}

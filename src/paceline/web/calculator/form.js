// The calculator's form: it shows a state, and tells when somebody has changed it.

import { numeric, select, slider, text } from "../lib/controls.js";
import { h } from "../lib/dom.js";
import { labelled } from "../lib/errors.js";
import { bytes, count } from "../lib/format.js";
import { drafterCard } from "./drafters.js";
import { MOST_DRAFTERS, PASTE, another } from "./state.js";

const BATCHES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048];
const CONTEXTS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576];

export class Form {
  /** `lists` are what GET ui/models and ui/hardware said. `changed()`: see `this.state`. */
  constructor(lists, changed) {
    this.lists = lists;
    this.changed = changed;
    this.state = null;
    this.#build();
  }

  show(state) {
    this.state = state;
    for (const [name, control] of Object.entries(this.controls)) control.value = state[name];
    this.#showDrafters();
    this.#settle();
  }

  // -- inside --------------------------------------------------------------------------------------

  #build() {
    const changed = () => this.#read();
    const named = (list) => list.map(({ name }) => [name, name]);
    this.controls = {
      model: select("calculator-model", this.#models(), changed),
      config: text("calculator-config", { rows: 6, class: "code", changed, placeholder: '{"model_type": "qwen3", "hidden_size": …}' }),
      hardware: select("calculator-hardware", named(this.lists.hardware), changed),
      tensor_parallel: numeric("calculator-tp", { min: 1, step: 1, changed }),
      precision: select("calculator-precision", [["", "as in config"], ...this.lists.precisions.map((name) => [name, name])], changed),
      batch: slider("calculator-batch", { values: BATCHES, label: "Batch", unit: " requests", changed }),
      context: slider("calculator-context", { values: CONTEXTS, label: "Context", unit: " tokens", changed }),
      max_draft: slider("calculator-max-draft", { min: 1, max: 64, step: 1, label: "Longest draft", unit: " tokens", changed }),
      calibration: select("calculator-calibration", this.#calibrations(), changed),
      checkpoint: text("calculator-checkpoint", { placeholder: "folder or hub id", changed }),
      calibration_json: text("calculator-calibration-json", { rows: 4, class: "code", changed }),
    };
    this.modelHint = h("p", { class: "hint" });
    this.hardwareHint = h("p", { class: "hint" });
    this.drafters = h("div", { class: "drafters" });
    this.add = h("button", { type: "button", id: "calculator-add", on: { click: () => this.#add() } }, "+ Add a drafter");
    this.configField = labelled("model.config", "config.json", this.controls.config, "Of any Hugging Face model whose family the roofline knows");
    this.fitField = labelled("calibration", "Fit", this.controls.calibration_json, "What paceline roofline fit wrote");
    this.element = this.#layout();
  }

  #layout() {
    const c = this.controls;
    return h(
      "form",
      { id: "calculator-form", class: "card", on: { submit: (event) => event.preventDefault() } },
      h("fieldset", {}, h("legend", {}, "Model and hardware"),
        labelled("model", "Model", c.model), this.modelHint, this.configField,
        labelled("hardware", "Hardware", c.hardware), this.hardwareHint,
        h("div", { class: "pair" }, labelled("tensor_parallel", "Devices (TP)", c.tensor_parallel),
          labelled("precision", "Precision", c.precision))),
      h("fieldset", {}, h("legend", {}, "Load"),
        labelled("batch", "Batch, requests at once", c.batch), labelled("context", "Context, tokens each", c.context)),
      h("fieldset", {}, h("legend", {}, "Drafters"),
        h("p", { class: "hint" }, "They start with the values of the LLM almanac's calculator; put in your own."),
        this.drafters, this.add),
      h("details", { class: "more" }, h("summary", {}, "More"),
        labelled("max_draft", "Longest draft looked at, tokens", c.max_draft),
        labelled("calibration", "Calibrated with", c.calibration), this.fitField,
        labelled("checkpoint", "The model's checkpoint, for the launch lines", c.checkpoint)),
    );
  }

  #models() {
    const words = ({ name, parameters, active_parameters: active }) =>
      `${name} · ${count(parameters)}${active < 0.9 * parameters ? `, ${count(active)} active` : ""}`;
    return [[PASTE, "Paste a config.json …"], ...this.lists.models.map((model) => [model.name, words(model)])];
  }

  #calibrations() {
    return [["", "the preset for this kind of model"], ...Object.keys(this.lists.calibrations).map((name) => [name, name]),
      [PASTE, "a pasted fit …"]];
  }

  #read() {
    for (const [name, control] of Object.entries(this.controls)) this.state[name] = control.value;
    this.#settle();
    this.changed();
  }

  /** Shows what belongs to the choices that are made. */
  #settle() {
    const { model, hardware, calibration, drafters } = this.state;
    const chosen = this.lists.models.find((one) => one.name === model);
    this.configField.hidden = model !== PASTE;
    this.modelHint.hidden = !chosen;
    this.modelHint.textContent = chosen ? `${bytes(chosen.weight_bytes)} of weights as the config says` : "";
    const device = this.lists.hardware.find((one) => one.name === hardware);
    this.hardwareHint.textContent = device
      ? `${bytes(device.memory_bandwidth)}/s, ${bytes(device.memory)}, bf16 ${count(device.peak.bf16 / 1e12)} TFLOP/s · ${device.source}` : "";
    this.fitField.hidden = calibration !== PASTE;
    this.add.hidden = drafters.length >= MOST_DRAFTERS;
  }

  #showDrafters() {
    const { drafters } = this.state;
    this.drafters.replaceChildren(...drafters.map((each, index) => drafterCard(each, index, {
      changed: () => this.changed(),
      rebuilt: () => { this.#showDrafters(); this.changed(); },
      remove: drafters.length > 1 ? () => { drafters.splice(index, 1); this.#showDrafters(); this.#settle(); this.changed(); } : null,
    })));
  }

  #add() {
    this.state.drafters.push(another(this.state.drafters));
    this.#showDrafters();
    this.#settle();
    this.changed();
  }
}

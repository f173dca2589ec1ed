// The calculator: what speculation would buy, for a model, hardware, load and drafters that
// somebody states. The server computes (POST ui/predict); this tab asks and draws.

import { toCsv } from "../calculator/csv.js";
import { Form } from "../calculator/form.js";
import { measuredBox } from "../calculator/measured.js";
import { Pin } from "../calculator/pin.js";
import { Presets } from "../calculator/presets.js";
import { scenario } from "../calculator/scenario.js";
import {
  fromParams, initial, initialServed, presetState, toParams,
} from "../calculator/state.js";
import { glance, launchLines, spoken, summary } from "../calculator/summary.js";
import { Views } from "../calculator/views.js";
import { copyText, download, h } from "../lib/dom.js";
import { asError, clearErrors, errorBox, fieldError, showAtField } from "../lib/errors.js";
import { getJson, newest, postJson } from "../lib/http.js";
import { pack, unpack } from "../lib/pack.js";

/** @import { HardwareLists, ModelLists, Prediction, ServedScenario } from "../types/answers" */
/** @import { StatedScenario } from "../types/answers" */
/** @import { FieldError, TabContext } from "../types/page" */
/** @import { Lists } from "../calculator/form.js" */
/** @import { State } from "../calculator/state.js" */

const START = initial("Qwen3.5-27B", "B200");
const THIS_SERVER = {
  name: "This server",
  see: "What runs here, with the step times and costs that this server measured and the AL that "
    + "Live has seen.",
};
const REST = 150; // milliseconds without a change, after which the complete answer is asked for
const QUIET = 700; // and after which a screen reader hears the result
/** @type {Calculator | null} */
let page = null;

/** @param {HTMLElement} element @param {TabContext} context */
export async function mount(element, context) {
  const isServing = context.state.tabs.some(({ name, available }) => name === "live" && available);
  let missing = "";
  /** @type {Promise<ServedScenario | null>} a preset, which the rest does without */
  const preset = isServing ? getJson("ui/this-server").catch((error) => {
    missing = `There is no preset of this server: ${asError(error).message}`;
    return null;
  }) : Promise.resolve(null);
  /** @type {[ModelLists, HardwareLists, ServedScenario | null]} */
  const [models, hardware, served] = await Promise.all([
    getJson("ui/models"), getJson("ui/hardware"), preset,
  ]);
  page = new Calculator(element, context, { ...models, ...hardware, served }, missing);
}

/** @param {URLSearchParams} params */
export const show = (params) => page?.read(params);

class Calculator {
  #context;
  #lists;
  #start; // what the page opens with
  /** @type {string | null} the parameters of the link, as they were last read or written */
  #query = null;
  /** @type {Prediction | null} */
  #answer = null;
  #presets;
  #form;
  #pin;
  #views;
  #ask;
  #resting = 0; // timers
  #quiet = 0;
  #summary = h("div", { class: "summary" });
  #status = h("p", { class: "unseen", role: "status" });
  #error = h("div");
  #glance = h("div", { class: "glance", "aria-hidden": "true" }); // the status says it already
  #charts = h("div", { class: "charts" });
  #launch = h("div", { class: "flags" });
  #csv = h("button", {
    type: "button", id: "calculator-csv", disabled: true, on: { click: () => this.#saveCsv() },
  }, "Download CSV");
  #json = h("button", {
    type: "button", disabled: true, on: { click: () => this.#saveJson() },
  }, "JSON");
  #link = h("button", {
    type: "button", id: "calculator-link", on: { click: () => this.#copyLink() },
  }, "Copy link");

  /**
   * @param {HTMLElement} root
   * @param {TabContext} context
   * @param {Lists} lists
   * @param {string} missing says why the server's own preset is not there
   */
  constructor(root, context, lists, missing) {
    this.#context = context;
    this.#lists = lists;
    this.#start = lists.served ? initialServed(lists.served) : START;
    this.#presets = new Presets(this.#choices(), (state) => this.#take(state), missing);
    this.#form = new Form(lists, structuredClone(this.#start), () => this.#changed());
    this.#pin = new Pin({
      ask: async (state) => postJson("ui/predict", scenario(state, lists)),
      nameOf: (state) => this.#presets.nameOf(state),
      current: () => this.#form.state,
      show: (answer, name) => this.#views?.setPinned(answer, name),
      changed: () => this.#remember(),
    });
    this.#views = new Views(this.#charts, this.#pin.element);
    this.#ask = newest(
      // stated when it is its turn: what is wrong with it then is shown, whatever was asked before
      (/** @type {() => StatedScenario} */ state) => postJson("ui/predict", state()),
      (/** @type {Prediction} */ answer) => this.#draw(answer),
      (error) => this.#fail(error),
    );
    root.append(
      h("header", { class: "intro" }, h("h1", {}, "What speculation would buy"),
        h("p", { class: "soft" }, "For your model, hardware and load, before you train anything. "
          + "Calibrated is what engines reach; the roofline is arithmetic and bandwidth alone."),
        h("div", { class: "tools-row" }, this.#link, this.#csv, this.#json)),
      this.#presets.element,
      this.#form.element,
      h("div", { class: "column" }, this.#error, this.#status, this.#summary, this.#charts,
        measuredBox((points) => this.#views.setPoints(points)),
        h("section", { class: "card", "aria-label": "Launch lines" },
          h("h2", {}, "To launch it"), this.#launch)),
      this.#glance);
  }

  /** Take over the parameters of the hash; ask only where they are new. */
  async read(/** @type {URLSearchParams} */ params) {
    if (String(params) === this.#query) return;
    this.#query = String(params);
    try {
      const pinned = params.get("pin");
      const state = await fromParams(params, this.#start);
      const kept = pinned === null ? null
        : await fromParams(new URLSearchParams(await unpack(pinned)), this.#start);
      this.#form.show(structuredClone(state));
      this.#pin.set(kept);
    } catch {
      this.#form.show(structuredClone(this.#start));
      this.#pin.set(null);
      this.#fail(new Error("This link is broken: part of it is missing. These are the values to "
        + "start with."));
      return;
    }
    this.#askFor({ brief: false });
  }

  // -- inside -------------------------------------------------------------------------------------

  /** Return the presets: what this server runs first, where it serves. */
  #choices() {
    const listed = this.#lists.presets.map(({ name, see, scenario: stated }) => (
      { name, see, state: presetState(stated) }));
    return this.#lists.served ? [{ ...THIS_SERVER, state: this.#start }, ...listed] : listed;
  }

  /** Show a preset in the form and ask for its answer. @param {State} state */
  #take(state) {
    this.#form.show(structuredClone(state));
    this.#changed();
  }

  #saveCsv() {
    if (this.#answer === null) return;
    download("paceline-prediction.csv", toCsv(this.#answer), "text/csv");
  }

  #saveJson() {
    const text = JSON.stringify(this.#answer, null, 1);
    download("paceline-prediction.json", text, "application/json");
  }

  async #copyLink() {
    await this.#remember();
    copyText(location.href, this.#link);
  }

  /** Ask for the numbers of this batch at once, and for all others once the sliders rest. */
  #changed() {
    this.#askFor({ brief: true });
    clearTimeout(this.#resting);
    this.#resting = setTimeout(() => {
      this.#askFor({ brief: false });
      this.#remember(); // browsers refuse a link that changes with every frame
    }, REST);
  }

  /** @param {{ brief: boolean }} options */
  #askFor({ brief }) {
    this.#presets.mark(this.#form.state);
    this.#ask(() => {
      const stated = scenario(this.#form.state, this.#lists);
      return brief ? { ...stated, batches: [], contexts: [] } : stated;
    });
  }

  async #remember() {
    const params = await toParams(this.#form.state);
    const { state: pinned } = this.#pin;
    if (pinned !== null) params.set("pin", await pack(String(await toParams(pinned))));
    this.#query = String(params);
    this.#context.remember(params);
  }

  /** @param {Prediction} answer */
  #draw(answer) {
    clearErrors(this.#form.element);
    this.#error.replaceChildren();
    this.#charts.hidden = false;
    const brief = answer.scenario.batches !== null;
    this.#answer = answer;
    this.#form.showDevices(answer.hardware.devices);
    this.#csv.disabled = this.#json.disabled = brief;
    this.#views.draw(answer, brief);
    this.#summary.replaceChildren(...summary(answer, (index) => this.#feel(answer, index)));
    if (!brief) this.#launch.replaceChildren(...launchLines(answer));
    this.#glance.replaceChildren(...glance(answer));
    this.#announce(answer);
  }

  /** Tell screen readers the result in a sentence, once the sliders rest. */
  #announce(/** @type {Prediction} */ answer) {
    clearTimeout(this.#quiet);
    this.#quiet = setTimeout(() => { this.#status.textContent = spoken(answer); }, QUIET);
  }

  /** Show an error in place of the curves, which would belong to other input. */
  #fail(/** @type {Error} */ error) {
    this.#answer = null;
    this.#csv.disabled = this.#json.disabled = true;
    this.#views.clear();
    this.#charts.hidden = true;
    for (const part of [this.#summary, this.#launch, this.#glance]) part.replaceChildren();
    clearErrors(this.#form.element);
    const atField = showAtField(this.#form.element, withoutField(error));
    const message = atField ? "No curve until the marked field is right." : error.message;
    this.#error.replaceChildren(errorBox(new Error(message)));
  }

  /** @param {Prediction} answer @param {number} index */
  #feel({ ar, drafters }, index) {
    const { name, optimum, commits } = drafters[index];
    if (optimum === null) return;
    const { calibrated } = optimum;
    const plain = shortened(ar.calibrated.tokens_per_second_per_request);
    const tokens = Math.min(4000, Math.max(50, Math.round(6 * plain)));
    this.#context.open("timing", new URLSearchParams({
      ar: String(plain),
      spec: String(shortened(calibrated.tokens_per_second_per_request)),
      al: calibrated.acceptance_length.toFixed(2),
      g: String(Math.max(1, calibrated.draft_length)),
      from: name,
      n: String(tokens),
      commits: rounded(commits).join(","),
    }));
  }
}

/** Return an error for the place beside its field: without the name that the field has in JSON. */
function withoutField(/** @type {FieldError} */ error) {
  const text = error.message.replace(/^[\w.[\]]+: /, "");
  return fieldError(error.field ?? "", text.charAt(0).toUpperCase() + text.slice(1));
}

/** @param {number} value */
const shortened = (value) => Number(value.toPrecision(4));

/** Return shares rounded for a link and still 1 in sum: the largest takes what rounding left. */
function rounded(/** @type {number[]} */ shares) {
  const short = shares.map((share) => Number(share.toFixed(5)));
  const most = short.indexOf(Math.max(...short));
  const others = short.reduce((sum, share, index) => (index === most ? sum : sum + share), 0);
  short[most] = Number((1 - others).toFixed(5));
  return short;
}

// The calculator: what speculation would buy, for a model, hardware, load and drafters that
// somebody states. The server computes (POST ui/predict); here it is asked and drawn.

import { toCsv } from "../calculator/csv.js";
import { Form } from "../calculator/form.js";
import { measuredBox } from "../calculator/measured.js";
import { fromParams, initial, scenario, toParams } from "../calculator/state.js";
import { flags, glance, summary } from "../calculator/summary.js";
import { Views } from "../calculator/views.js";
import { copyText, download, h, loadStyle } from "../lib/dom.js";
import { clearErrors, errorBox, showAtField } from "../lib/errors.js";
import { times } from "../lib/format.js";
import { getJson, newest, postJson } from "../lib/http.js";

const START = { model: "Qwen3.5-27B", hardware: "B200" };
const REST = 150; // ms without a change
let page = null;

export async function mount(element, context) {
  const [models, hardware] = await Promise.all([getJson("ui/models"), getJson("ui/hardware"), loadStyle("tabs/calculator.css")]);
  page = new Calculator(element, context, { ...models, ...hardware });
}

export const show = (params) => page.read(params);

class Calculator {
  constructor(root, context, lists) {
    this.context = context;
    this.query = null; // of the link, as it was last read or written
    this.answer = null;
    this.start = initial(START.model, START.hardware);
    this.form = new Form(lists, () => this.#changed());
    this.summary = h("div", { class: "summary" });
    this.status = h("p", { class: "unseen", role: "status" });
    this.error = h("div");
    this.glance = h("div", { class: "glance", "aria-hidden": "true" }); // the status says it already
    this.charts = h("div", { class: "charts" });
    this.flags = h("div", { class: "flags" });
    const results = h("div", { class: "column" }, this.error, this.status, this.summary, this.charts,
      measuredBox((points) => this.views.setPoints(points)),
      h("section", { class: "card", "aria-label": "Launch lines" }, h("h2", {}, "To launch it"), this.flags));
    root.append(
      h("header", { class: "intro" }, h("h1", {}, "What speculation would buy"),
        h("p", { class: "soft" }, "For your model, hardware and load, before you train anything. The ceiling is arithmetic and bandwidth alone; calibrated is what engines reach."),
        this.#tools()),
      this.form.element, results, this.glance);
    this.views = new Views(this.charts);
    this.ask = newest((body) => postJson("ui/predict", body), (answer) => this.#draw(answer), (error) => this.#failed(error));
  }

  /** Takes over what the hash says; asks only where that is new. */
  async read(params) {
    if (String(params) === this.query) return;
    this.query = String(params);
    try {
      this.form.show(structuredClone(await fromParams(params, this.start)));
    } catch {
      this.form.show(structuredClone(this.start));
      this.#failed(new Error("This link is broken: part of it is missing. These are the values to start with."));
      return;
    }
    this.#ask(false);
  }

  // -- inside --------------------------------------------------------------------------------------

  #tools() {
    const link = h("button", { type: "button", id: "calculator-link", on: { click: async () => {
      await this.#link();
      copyText(location.href, link);
    } } }, "Copy link");
    this.csv = h("button", { type: "button", id: "calculator-csv", disabled: true,
      on: { click: () => download("paceline-prediction.csv", toCsv(this.answer), "text/csv") } }, "Download CSV");
    this.json = h("button", { type: "button", disabled: true,
      on: { click: () => download("paceline-prediction.json", JSON.stringify(this.answer, null, 1), "application/json") } }, "JSON");
    return h("div", { class: "tools-row" }, link, this.csv, this.json);
  }

  /** While somebody moves, what belongs to this batch alone is asked for; the rest when they rest. */
  #changed() {
    this.#ask(true);
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      this.#ask(false);
      this.#link(); // browsers refuse a link that changes with every frame
    }, REST);
  }

  #ask(briefly) {
    try {
      const stated = scenario(this.form.state);
      this.ask(briefly ? { ...stated, batches: [] } : stated);
    } catch (error) {
      this.#failed(error);
    }
  }

  async #link() {
    const params = await toParams(this.form.state);
    this.query = String(params);
    this.context.remember(params);
  }

  #draw(answer) {
    clearErrors(this.form.element);
    this.error.replaceChildren();
    this.charts.hidden = false;
    const brief = answer.scenario.batches !== null;
    this.answer = answer;
    this.csv.disabled = this.json.disabled = brief;
    this.views.draw(answer, brief);
    this.summary.replaceChildren(...summary(answer, (index) => this.#feel(index)).filter(Boolean));
    if (!brief) this.flags.replaceChildren(...flags(answer));
    this.glance.replaceChildren(...glance(answer));
    this.#announce(answer);
  }

  /** For screen readers: the result in a sentence, once the sliders rest. */
  #announce({ drafters }) {
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => {
      this.status.textContent = drafters.map(({ name, optimum: { calibrated } }) =>
        `${name}: ${times(calibrated.speedup)} at draft length ${calibrated.draft_length}`).join("; ");
    }, 700);
  }

  /** Wrong input has no curve: what is drawn would belong to something else. */
  #failed(error) {
    this.answer = null;
    this.csv.disabled = this.json.disabled = true;
    this.views.clear();
    this.charts.hidden = true;
    this.summary.replaceChildren();
    this.flags.replaceChildren();
    this.glance.replaceChildren();
    clearErrors(this.form.element);
    const atField = showAtField(this.form.element, error);
    this.error.replaceChildren(errorBox(atField ? new Error(`No curve: ${error.message}`) : error));
  }

  #feel(index) {
    const { ar, drafters } = this.answer;
    const { name, optimum, commits } = drafters[index];
    const rate = (tier) => tier.tokens_per_second_per_request.toPrecision(4);
    const params = new URLSearchParams({ ar: Number(rate(ar.calibrated)), spec: Number(rate(optimum.calibrated)),
      al: optimum.calibrated.acceptance_length.toFixed(2), g: Math.max(1, optimum.calibrated.draft_length), from: name });
    params.set("n", String(Math.min(4000, Math.max(50, Math.round(6 * Number(rate(ar.calibrated)))))));
    params.set("commits", shares(commits).join(","));
    this.context.open("timing", params);
  }
}

/** Rounded for a link, and still 1 in sum: the most likely one takes what rounding left. */
function shares(commits) {
  const rounded = commits.map((share) => Number(share.toFixed(5)));
  const most = rounded.indexOf(Math.max(...rounded));
  const others = rounded.reduce((sum, share, i) => (i === most ? sum : sum + share), 0);
  rounded[most] = Number((1 - others).toFixed(5));
  return rounded;
}

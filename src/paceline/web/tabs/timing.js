// The timing: two panes play tokens at their own pace, plain decoding beside speculation.

import { closest, h } from "../lib/dom.js";
import { clearErrors, errorBox, fieldError, labelled, showAtField } from "../lib/errors.js";
import { newest, postJson } from "../lib/http.js";
import { Race } from "../lib/race.js";
import { RecordedBox } from "../lib/recorded.js";
import { TEXTS, pieces } from "../lib/texts.js";

/** @import { TimedRun } from "../types/answers" */
/** @import { FieldError, TabContext } from "../types/page" */

/** @typedef {"ar" | "spec" | "al" | "g" | "ttft" | "n"} Name */
/** @typedef {Record<Name, number> & { text: string }} Preset */

/** @type {Preset} */
const DEFAULTS = { ar: 250, spec: 1000, al: 4.5, g: 7, ttft: 200, n: 1500, text: "answer" };
/** @type {[label: string, values: Preset][]} */
const PRESETS = [
  ["250 against 1000 tok/s", { ...DEFAULTS, text: "code" }],
  ["27B on a B200: 75 against 268",
    { ar: 75, spec: 268, al: 4, g: 7, ttft: 300, n: 600, text: "answer" }],
  ["12 against 25 tok/s",
    { ar: 12, spec: 25, al: 2.6, g: 4, ttft: 900, n: 150, text: "answer" }],
  ["No gain: 100 against 95 tok/s",
    { ar: 100, spec: 95, al: 1.3, g: 4, ttft: 250, n: 400, text: "json" }],
];
const OWN = "own"; // in place of the name of a text
/** @type {{ name: Name, field: string, label: string, step: number | "any", min: number }[]} */
const FIELDS = [ // `name` in the hash, `field` in errors
  { name: "ar", field: "ar_tokens_per_second", label: "AR, tok/s", step: "any", min: 0 },
  { name: "spec", field: "tokens_per_second", label: "Speculative, tok/s", step: "any", min: 0 },
  { name: "al", field: "al", label: "AL incl. bonus", step: "any", min: 1 },
  { name: "g", field: "draft_length", label: "Draft length γ", step: 1, min: 1 },
  { name: "ttft", field: "ttft_ms", label: "TTFT, ms", step: "any", min: 0 },
  { name: "n", field: "tokens", label: "Tokens to play", step: 1, min: 1 },
];

/** @type {Timing | null} */
let page = null;

/** @param {HTMLElement} element @param {TabContext} context */
export function mount(element, context) {
  page = new Timing(element, context);
}

/** @param {URLSearchParams} params */
export const show = (params) => page?.show(params);
export const hide = () => page?.hide();

class Timing {
  #root;
  #context;
  #race = new Race("timing");
  #isShown = false;
  #isDue = false; // a run is there that was not presented yet
  #ask;
  /** @type {TimedRun | null} */
  #run = null;
  /** @type {string | null} of the hash, as it was last read or written */
  #query = null;
  #seed = 0;
  /** @type {number[] | null} from the calculator, in place of AL and γ */
  #commits = null;
  /** @type {string | null} the calculator's drafter */
  #source = null;

  #inputs = this.#numberInputs();
  #text = h("select", { id: "timing-text", on: { change: () => this.#changed() } },
    Object.entries(TEXTS).map(([value, { name }]) => h("option", { value }, name)),
    h("option", { value: OWN }, "My own text"));
  #ownText = h("textarea", {
    class: "own-text", rows: 3, hidden: true, "aria-label": "My own text",
    placeholder: "Paste any text", on: { input: () => this.#reload() },
  });
  #given = h("p", { class: "given", hidden: true });
  #error = h("div");

  #recorded = new RecordedBox((body) => this.#playRecorded(body), (error) => this.#fail(error));

  /** @param {HTMLElement} root @param {TabContext} context */
  constructor(root, context) {
    this.#root = root;
    this.#context = context;
    const ask = newest(
      (/** @type {object} */ body) => postJson("ui/timing", body),
      (/** @type {TimedRun} */ run) => this.#load(run),
      (error) => this.#fail(error),
    );
    this.#ask = (/** @type {object} */ body) => {
      this.#setBusy(true);
      ask(body);
    };
    root.append(
      h("header", { class: "intro" },
        h("h1", {}, "How it feels"),
        h("p", { class: "soft" }, "The same text twice at its real pace. Speculation commits "
          + "tokens in bursts: the accepted drafts, and one token of the target's own.")),
      this.#presets(),
      this.#error,
      this.#race.element,
      this.#form(),
      this.#recorded.element,
    );
    root.addEventListener("keydown", (event) => this.#onKey(event));
    document.addEventListener("visibilitychange", () => this.#present());
  }

  show(/** @type {URLSearchParams} */ params) {
    this.#isShown = true;
    this.#read(params);
    this.#present();
  }

  hide() {
    this.#isShown = false;
    this.#present();
  }

  // -- inside -------------------------------------------------------------------------------------

  /** Present a run that is due once somebody can see it; pause while nobody can. */
  #present() {
    if (!this.#isShown || document.hidden) this.#race.pause();
    else if (this.#isDue) {
      this.#isDue = false;
      this.#race.present();
    }
  }

  /** Take over the parameters of the hash; ask only where they are new. */
  #read(/** @type {URLSearchParams} */ params) {
    if (String(params) === this.#query) return;
    for (const { name } of FIELDS) {
      this.#inputs[name].value = params.get(name) ?? String(DEFAULTS[name]);
    }
    const text = params.get("text") ?? "";
    const commits = params.get("commits");
    this.#text.value = text in TEXTS ? text : DEFAULTS.text;
    this.#seed = Number(params.get("seed") ?? 0);
    this.#commits = commits === null ? null : commits.split(",").map(Number);
    this.#source = params.get("from");
    this.#changed();
  }

  // -- building -----------------------------------------------------------------------------------

  /** @returns {Record<Name, HTMLInputElement>} */
  #numberInputs() {
    const input = (/** @type {Name} */ name) => {
      const { step, min } = FIELDS.find((field) => field.name === name) ?? { step: "any", min: 0 };
      return h("input", {
        type: "number", id: `timing-${name}`, step, min, inputMode: "decimal",
        on: { input: () => this.#changed() },
      });
    };
    return {
      ar: input("ar"), spec: input("spec"), al: input("al"), g: input("g"), ttft: input("ttft"),
      n: input("n"),
    };
  }

  #presets() {
    return h("div", { class: "presets", role: "group", "aria-label": "Presets" },
      PRESETS.map(([label, values]) => h("button", {
        type: "button", on: { click: () => this.#usePreset(values) },
      }, label)));
  }

  #form() {
    return h("form", {
      class: "card speeds", id: "timing-form",
      on: { submit: (event) => event.preventDefault() },
    },
    FIELDS.map(({ name, field, label }) => labelled(field, label, this.#inputs[name])),
    labelled("text", "Text", this.#text), this.#ownText, this.#given);
  }

  // -- changes ------------------------------------------------------------------------------------

  /** @param {Preset} values */
  #usePreset({ text, ...numbers }) {
    for (const { name } of FIELDS) this.#inputs[name].value = String(numbers[name]);
    this.#text.value = text;
    this.#useFields();
  }

  #useFields() {
    this.#commits = null;
    this.#changed();
  }

  #changed() {
    this.#recorded.leave();
    this.#ownText.hidden = this.#text.value !== OWN;
    const params = new URLSearchParams();
    for (const { name } of FIELDS) params.set(name, this.#inputs[name].value);
    if (this.#text.value !== OWN) params.set("text", this.#text.value);
    if (this.#seed) params.set("seed", String(this.#seed));
    if (this.#commits) {
      params.set("commits", this.#commits.join(","));
      if (this.#source) params.set("from", this.#source);
    }
    this.#query = String(params);
    this.#context.remember(params);
    this.#showGiven();
    this.#ask(this.#body());
  }

  #body() {
    /** @param {Name} name */
    const value = (name) => {
      const number = this.#inputs[name].valueAsNumber;
      return Number.isFinite(number) ? number : null;
    };
    const speeds = {
      tokens: value("n"), ttft_ms: value("ttft"), seed: this.#seed,
      ar_tokens_per_second: value("ar"), tokens_per_second: value("spec"),
    };
    if (this.#commits) return { ...speeds, commits: this.#commits };
    const acceptance = { al: value("al"), draft_length: value("g") };
    return { ...speeds, acceptance, draft_length: value("g") };
  }

  /** Say what replaces AL and γ: a recorded run, or bursts from the calculator. */
  #showGiven() {
    const text = this.#recorded.isPlaying ? "Playing a recorded run. "
      : this.#commits ? `Bursts as the calculator predicts them${this.#source
        ? ` for ${this.#source}` : ""}. ` : null;
    this.#inputs.al.disabled = this.#inputs.g.disabled = text !== null;
    this.#given.hidden = text === null;
    this.#given.replaceChildren(text ?? "", h("button", {
      type: "button", class: "quiet", on: { click: () => this.#useFields() },
    }, "Use the fields instead"));
  }

  /** @param {object} body */
  #playRecorded(body) {
    this.#showGiven();
    this.#ask(body);
  }

  // -- answers ------------------------------------------------------------------------------------

  /** Say whether the panes still show an older run than the fields ask for. */
  #setBusy(/** @type {boolean} */ isBusy) {
    this.#race.element.setAttribute("aria-busy", String(isBusy));
  }

  /** @param {TimedRun} run */
  #load(run) {
    this.#setBusy(false);
    clearErrors(this.#root);
    this.#error.replaceChildren();
    this.#run = run;
    this.#recorded.showRows(run.rows);
    this.#reload();
  }

  /** @param {FieldError} error */
  #fail(error) {
    this.#setBusy(false);
    clearErrors(this.#root);
    const isPasted = /^(arrivals_ms|recorded)/.test(error.field ?? "");
    const shown = isPasted ? fieldError("evaluation", error.message) : error;
    this.#error.replaceChildren(...(showAtField(this.#root, shown) ? [] : [errorBox(error)]));
    this.#run = null;
    this.#isDue = false;
    this.#race.clear();
  }

  #reload() {
    if (!this.#run) return;
    const text = TEXTS[this.#text.value]?.text ?? (this.#ownText.value || "Paste a text. ");
    this.#race.load([this.#run.ar, this.#run.speculative].map((events) => {
      const total = events.reduce((sum, event) => sum + event.tokens, 0);
      return { events, pieces: pieces(text, total) };
    }));
    this.#isDue = true;
    this.#present();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== " " || closest(event, "input, textarea, select, button, summary")) return;
    event.preventDefault();
    this.#race.toggle();
  }
}

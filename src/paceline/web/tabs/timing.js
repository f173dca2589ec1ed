// The timing: two panes play tokens at the pace they would have, plain decoding beside speculation.

import { h, loadStyle } from "../lib/dom.js";
import { clearErrors, errorBox, labelled, showAtField } from "../lib/errors.js";
import { fixed, times } from "../lib/format.js";
import { newest, postJson } from "../lib/http.js";
import { Clock, Pane } from "../lib/player.js";
import { TEXTS, pieces } from "../lib/texts.js";

const DEFAULTS = { ar: 250, spec: 1000, al: 4.5, g: 7, ttft: 200, n: 1500, text: "answer", seed: 0 };
const PRESETS = [
  ["250 against 1000 tok/s", { ar: 250, spec: 1000, al: 4.5, g: 7, ttft: 200, n: 1500, text: "code" }],
  ["27B on a B200: 75 against 268", { ar: 75, spec: 268, al: 4, g: 7, ttft: 300, n: 600, text: "answer" }],
  ["12 against 25 tok/s", { ar: 12, spec: 25, al: 2.6, g: 4, ttft: 900, n: 150, text: "answer" }],
  ["No gain: 100 against 95 tok/s", { ar: 100, spec: 95, al: 1.3, g: 4, ttft: 250, n: 400, text: "json" }],
];
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const FIELDS = [
  // name in the hash, name in errors, label, step, smallest
  ["ar", "ar_tokens_per_second", "AR, tok/s", "any", 0],
  ["spec", "tokens_per_second", "Speculative, tok/s", "any", 0],
  ["al", "al", "AL incl. bonus", "any", 1],
  ["g", "draft_length", "Draft length γ", 1, 1],
  ["ttft", "ttft_ms", "TTFT, ms", "any", 0],
  ["n", "tokens", "Tokens to play", 1, 1],
];

let page = null;

export async function mount(element, context) {
  await loadStyle("tabs/timing.css");
  page = new Timing(element, context);
}

export const show = (params) => page.read(params);
export const hide = () => page.clock.pause();

/** What was pasted, as ui/timing takes it: one JSON, or lines of it. Raises a SyntaxError. */
function recordedOf(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  if (lines.length > 1 && lines.every((line) => line.startsWith("{") && line.trim().endsWith("}"))) {
    return { recorded: lines.map((line) => JSON.parse(line)) };
  }
  const whole = JSON.parse(text);
  return whole?.arrivals_ms ? { arrivals_ms: whole.arrivals_ms } : { evaluation: whole };
}

class Timing {
  constructor(root, context) {
    this.root = root;
    this.context = context;
    this.panes = [
      new Pane("Plain decoding (AR)", { drafts: false }),
      new Pane("Speculative", { drafts: true }),
    ];
    this.clock = new Clock((ms) => this.#tick(ms));
    this.commits = null; // given by the calculator, in place of AL and γ
    this.recorded = null; // { evaluation } or { arrivals_ms } that somebody pasted
    this.query = null;
    this.ask = newest(
      (body) => postJson("ui/timing", body),
      (answer) => this.#load(answer),
      (error) => this.#failed(error),
    );
    this.#build();
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.clock.pause(); });
  }

  /** Takes over what the hash says; asks only where that is new. */
  read(params) {
    if (String(params) === this.query) return;
    for (const [name] of FIELDS) this.inputs[name].value = params.get(name) ?? DEFAULTS[name];
    this.seed = Number(params.get("seed") ?? DEFAULTS.seed);
    this.text.value = params.get("text") in TEXTS ? params.get("text") : DEFAULTS.text;
    this.own.hidden = true;
    this.commits = params.has("commits") ? params.get("commits").split(",").map(Number) : null;
    this.source = params.get("from");
    this.recorded = null;
    this.#changed();
  }

  // -- building ------------------------------------------------------------------------------------

  #build() {
    this.inputs = {};
    const fields = FIELDS.map(([name, field, label, step, min]) => {
      this.inputs[name] = h("input", {
        type: "number", id: `timing-${name}`, step, min, inputMode: "decimal", on: { input: () => this.#changed() },
      });
      return labelled(field, label, this.inputs[name]);
    });
    this.error = h("div");
    this.given = h("p", { class: "given", hidden: true });
    this.result = h("p", { class: "result", role: "status" });
    this.root.append(
      h("header", { class: "intro" },
        h("h1", {}, "How it feels"),
        h("p", { class: "soft" }, "The same text twice at its real pace. Speculation commits tokens in "
          + "bursts: what was drafted and stood, and one token of the target's own.")),
      h("div", { class: "presets", role: "group", "aria-label": "Presets" },
        PRESETS.map(([label, values]) => h("button", { type: "button", on: { click: () => this.#preset(values) } }, label))),
      h("form", { class: "card speeds", id: "timing-form", on: { submit: (event) => event.preventDefault() } },
        fields, this.#textField(), this.given),
      this.error,
      this.#transport(),
      this.result,
      h("div", { class: "panes" }, this.panes.map((pane) => pane.element)),
      this.#recordedBox(),
    );
    this.root.addEventListener("keydown", (event) => this.#key(event));
  }

  #textField() {
    this.text = h("select", { id: "timing-text", on: { change: () => this.#changed() } },
      Object.entries(TEXTS).map(([value, { name }]) => h("option", { value }, name)),
      h("option", { value: "own" }, "My own text"));
    this.own = h("textarea", {
      class: "own-text", rows: 3, hidden: true, "aria-label": "My own text", placeholder: "Paste any text",
      on: { input: () => this.#reload() },
    });
    return [labelled("text", "Text", this.text), this.own];
  }

  #recordedBox() {
    this.paste = h("textarea", { id: "timing-recorded", class: "code", rows: 4, spellcheck: false,
      placeholder: '{"arrivals_ms": {"ar": [210, 222, …], "speculative": [210, 224, 224, …]}}' });
    this.file = h("input", { type: "file", accept: ".json,.jsonl,application/json", "aria-label": "A recorded run as a file",
      on: { change: async () => { this.paste.value = await this.file.files[0].text(); this.#takeRecorded(); } } });
    this.row = h("select", { id: "timing-row", on: { change: () => this.#askRow() } });
    this.rowField = labelled("row", "Which request of the run", this.row);
    this.rowField.hidden = true;
    return h("details", { class: "card recorded" },
      h("summary", {}, "Play a recorded run"),
      h("p", { class: "hint" }, "What ", h("code", {}, "paceline bench --record"), " or ", h("code", {}, "paceline evaluate"),
        " wrote, or the arrival times of two streamed answers in milliseconds since the request."),
      labelled("evaluation", "JSON, or lines of it", this.paste), this.file,
      h("p", { class: "actions" }, h("button", { type: "button", on: { click: () => this.#takeRecorded() } }, "Play it")),
      this.rowField);
  }

  #transport() {
    this.play = h("button", { type: "button", class: "primary", id: "timing-play", on: { click: () => this.#toggle() } }, "▶ Play");
    this.seek = h("input", { type: "range", id: "timing-seek", min: 0, max: 1, step: 1, value: 0, "aria-label": "Position",
      on: { input: () => this.clock.seek(Number(this.seek.value)) } });
    this.time = h("output", { class: "clock", for: "timing-seek" }, "0.00 s");
    this.speed = h("select", { id: "timing-speed", on: { change: () => this.clock.setSpeed(Number(this.speed.value)) } },
      SPEEDS.map((value) => h("option", { value, selected: value === 1 }, `${value}×`)));
    this.race = h("input", { type: "checkbox", id: "timing-race", on: { change: () => this.#limit() } });
    this.marks = h("input", { type: "checkbox", id: "timing-marks", checked: true,
      on: { change: () => this.root.classList.toggle("plain", !this.marks.checked) } });
    return h("div", { class: "transport card", role: "group", "aria-label": "Playback" },
      this.play,
      h("button", { type: "button", id: "timing-restart", on: { click: () => { this.clock.seek(0); this.clock.play(); this.#tick(0); } } }, "↺ Restart"),
      this.seek, this.time,
      h("label", { class: "inline" }, "Speed ", this.speed),
      h("label", { class: "inline" }, this.race, " Race: stop when one is done"),
      h("label", { class: "inline" }, this.marks, h("span", {}, " Mark ",
        h("span", { class: "drafted" }, "drafted"), " and ", h("span", { class: "own" }, "bonus"), " tokens")));
  }

  // -- changes -------------------------------------------------------------------------------------

  #preset(values) {
    for (const [name, value] of Object.entries(values)) (this.inputs[name] ?? this.text).value = value;
    this.commits = this.recorded = null;
    this.#changed();
  }

  #changed() {
    this.recorded = null;
    this.own.hidden = this.text.value !== "own";
    const params = new URLSearchParams();
    for (const [name] of FIELDS) params.set(name, this.inputs[name].value);
    if (this.text.value !== "own") params.set("text", this.text.value);
    if (this.seed) params.set("seed", this.seed);
    if (this.commits) {
      params.set("commits", this.commits.join(","));
      if (this.source) params.set("from", this.source);
    }
    this.query = String(params);
    this.context.remember(params);
    this.#sayGiven();
    this.ask(this.#body());
  }

  #body() {
    const value = (name) => (this.inputs[name].value === "" ? null : Number(this.inputs[name].value));
    const body = {
      tokens: value("n"), ttft_ms: value("ttft"), seed: this.seed,
      ar_tokens_per_second: value("ar"), tokens_per_second: value("spec"),
    };
    if (this.commits) return { ...body, commits: this.commits };
    return { ...body, acceptance: { al: value("al"), draft_length: value("g") }, draft_length: value("g") };
  }

  /** Bursts that the calculator gave stand in for AL and γ until somebody lets them go. */
  #sayGiven() {
    for (const name of ["al", "g"]) this.inputs[name].disabled = this.commits !== null || this.recorded !== null;
    const text = this.recorded ? "Playing a recorded run. "
      : this.commits ? `Bursts as the calculator predicts them${this.source ? ` for ${this.source}` : ""}. ` : null;
    this.given.hidden = text === null;
    this.given.replaceChildren(text ?? "", h("button", { type: "button", class: "quiet",
      on: { click: () => { this.commits = this.recorded = null; this.#changed(); } } }, "Use the fields instead"));
  }

  #takeRecorded() {
    let parsed;
    try {
      parsed = recordedOf(this.paste.value);
    } catch (error) {
      this.#failed(Object.assign(new Error(`evaluation: no JSON (${error.message})`), { field: "evaluation" }));
      return;
    }
    this.recorded = parsed;
    this.rowField.hidden = true;
    this.row.replaceChildren();
    this.#sayGiven();
    this.ask(this.recorded);
  }

  #askRow() {
    if (this.recorded) this.ask({ ...this.recorded, row: Number(this.row.value) });
  }

  // -- answers -------------------------------------------------------------------------------------

  #load(answer) {
    clearErrors(this.root);
    this.error.replaceChildren();
    this.answer = answer;
    if (answer.rows.length && this.row.options.length === 0) {
      this.row.append(...answer.rows.map((name, value) => h("option", { value }, name)));
    }
    this.rowField.hidden = answer.rows.length === 0;
    this.#reload();
  }

  #failed(error) {
    this.clock.pause();
    clearErrors(this.root);
    const shown = /^(arrivals_ms|recorded)/.test(error.field ?? "") ? { field: "evaluation", message: error.message } : error;
    this.error.replaceChildren(...(showAtField(this.root, shown) ? [] : [errorBox(error)]));
    this.answer = null;
    this.play.disabled = true;
    for (const pane of this.panes) pane.load([], [], 1);
    this.clock.end = 0;
    this.clock.seek(0);
  }

  #reload() {
    if (!this.answer) return;
    const sides = [this.answer.ar, this.answer.speculative];
    const length = Math.max(...sides.map((events) => events.at(-1).t_ms));
    const text = this.text.value === "own" ? this.own.value || "Paste a text. " : TEXTS[this.text.value].text;
    sides.forEach((events, index) => {
      const total = events.reduce((sum, event) => sum + event.tokens, 0);
      this.panes[index].load(events, pieces(text, total), length);
    });
    this.play.disabled = false;
    this.seek.max = String(Math.ceil(length));
    this.#limit();
    this.clock.seek(0);
  }

  #limit() {
    const ends = this.panes.map((pane) => pane.end);
    this.clock.end = this.race.checked ? Math.min(...ends) : Math.max(...ends);
    this.clock.seek(this.clock.position);
  }

  // -- playing -------------------------------------------------------------------------------------

  #toggle() {
    if (this.clock.running) this.clock.pause();
    else {
      this.clock.play();
      this.#tick(this.clock.position);
    }
  }

  #key(event) {
    const typing = event.target.closest("input, textarea, select, button, summary");
    if (event.key !== " " || typing) return;
    event.preventDefault();
    this.#toggle();
  }

  #tick(ms) {
    for (const pane of this.panes) pane.show(ms);
    this.seek.value = String(ms);
    this.time.textContent = `${fixed(ms / 1e3, 2)} s`;
    const label = this.clock.running ? "❚❚ Pause" : "▶ Play";
    if (this.play.textContent !== label) this.play.textContent = label;
    this.#sayWinner(ms);
  }

  #sayWinner(ms) {
    const ends = this.panes.map((pane) => pane.end);
    const first = ends[1] <= ends[0] ? 1 : 0;
    const done = ends[first] > 0 && ms >= Math.min(...ends) - 1e-6;
    this.panes.forEach((pane, index) => {
      pane.badge.hidden = !(done && index === first && ends[0] !== ends[1]);
      pane.badge.textContent = `done first, ${fixed(ends[index] / 1e3, 2)} s`;
    });
    let text = "";
    if (done) {
      const [winner, other] = [this.panes[first], this.panes[1 - first]];
      const share = Math.round((100 * other.tokensAt(winner.end)) / other.total);
      const names = ["Plain decoding", "Speculation"];
      text = `${names[first]} was done after ${fixed(winner.end / 1e3, 2)} s, when `
        + `${names[1 - first].toLowerCase()} had said ${share} %: ${times(other.end / winner.end)} as fast to the last token.`;
    }
    if (this.result.textContent !== text) this.result.textContent = text;
  }
}

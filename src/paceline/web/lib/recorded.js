// Recorded runs that somebody pastes or opens, as ui/timing takes them.

import { h } from "./dom.js";
import { fieldError, labelled, messageOf } from "./errors.js";

/** @import { FieldError } from "../types/page" */

const EXAMPLE = '{"arrivals_ms": {"ar": [210, 222, …], "speculative": [210, 224, 224, …]}}';

/** A box to paste a run into. */
export class RecordedBox {
  element;
  /** @type {object | null} the run that plays, as ui/timing takes it */
  #run = null;
  #play;
  #fail;
  #paste = h("textarea", {
    id: "timing-recorded", class: "code", rows: 4, spellcheck: false, placeholder: EXAMPLE,
  });
  /** @type {HTMLSelectElement} */
  #row = h("select", { id: "timing-row", on: { change: () => this.#playRow() } });
  #rowField = labelled("row", "Which request of the run", this.#row);

  /**
   * @param {(body: object) => void} play gets what to ask ui/timing for
   * @param {(error: FieldError) => void} fail
   */
  constructor(play, fail) {
    this.#play = play;
    this.#fail = fail;
    this.#rowField.hidden = true;
    this.element = h("details", { class: "card recorded" },
      h("summary", {}, "Play a recorded run"),
      h("p", { class: "hint" }, "The JSON of ", h("code", {}, "paceline bench --record"), " or ",
        h("code", {}, "paceline evaluate"), ", or the arrival times of two streamed answers in "
        + "milliseconds since the request."),
      labelled("evaluation", "JSON, or lines of it", this.#paste), this.#file(),
      h("p", { class: "actions" }, h("button", {
        type: "button", on: { click: () => this.#take() },
      }, "Play it")),
      this.#rowField);
  }

  get isPlaying() {
    return this.#run !== null;
  }

  /** Forget the run: something else plays. */
  leave() {
    this.#run = null;
  }

  /** Offer the requests of the run. @param {string[]} names */
  showRows(names) {
    if (this.#row.options.length === 0) {
      this.#row.append(...names.map((name, value) => h("option", { value }, name)));
    }
    this.#rowField.hidden = names.length === 0;
  }

  // -- inside -------------------------------------------------------------------------------------

  #file() {
    /** @type {HTMLInputElement} */
    const input = h("input", {
      type: "file", accept: ".json,.jsonl,application/json",
      "aria-label": "A recorded run as a file",
      on: {
        change: async () => {
          this.#paste.value = await input.files?.[0]?.text() ?? "";
          this.#take();
        },
      },
    });
    return input;
  }

  #take() {
    try {
      this.#run = parsedRun(this.#paste.value);
    } catch (error) {
      this.#fail(fieldError("evaluation", `evaluation: no JSON (${messageOf(error)})`));
      return;
    }
    this.#rowField.hidden = true;
    this.#row.replaceChildren();
    this.#play(this.#run);
  }

  #playRow() {
    if (this.#run) this.#play({ ...this.#run, row: Number(this.#row.value) });
  }
}

/**
 * Return pasted text as ui/timing takes it: one JSON, or lines of it. Throws a SyntaxError.
 *
 * @param {string} text
 * @returns {object}
 */
function parsedRun(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  if (lines.length > 1 && lines.every((line) => line.startsWith("{") && line.endsWith("}"))) {
    return { recorded: lines.map((line) => JSON.parse(line)) };
  }
  const run = JSON.parse(text);
  return run?.arrivals_ms ? { arrivals_ms: run.arrivals_ms } : { evaluation: run };
}

// A pinned scenario: its curves stay beside those of the scenario that is edited.

import { h } from "../lib/dom.js";
import { messageOf } from "../lib/errors.js";
import { deployment } from "./summary.js";

/** @import { Prediction } from "../types/answers" */
/** @import { State } from "./state.js" */

/**
 * `ask` predicts a state, `nameOf` knows the names of presets, `current` returns what is set now.
 * `show` gets the answer to draw, null for none, and its name; `changed` is called when somebody
 * pins or unpins.
 *
 * @typedef {{
 *   ask: (state: State) => Promise<Prediction>, nameOf: (state: State) => string | null,
 *   current: () => State, show: (answer: Prediction | null, name: string) => void,
 *   changed: () => void,
 * }} Use
 */

export class Pin {
  /** @type {State | null} */
  #state = null;
  #use;
  #name = h("span", { class: "pinned", role: "status" });
  #take = h("button", { type: "button", id: "calculator-pin", on: { click: () => this.#pin() } });
  #remove = h("button", {
    type: "button", class: "quiet", id: "calculator-unpin", on: { click: () => this.#unpin() },
  }, "Remove");
  element = h("div", { class: "pin" }, this.#name, this.#take, this.#remove);

  /** @param {Use} use */
  constructor(use) {
    this.#use = use;
    this.set(null);
  }

  /** Return what is pinned, or null. */
  get state() {
    return this.#state;
  }

  /** Pin a state, or nothing. @param {State | null} state */
  async set(state) {
    this.#state = state;
    this.#remove.hidden = state === null;
    this.#take.textContent = state === null ? "Pin these curves" : "Pin these instead";
    this.#show("", null);
    if (state === null) return;
    try {
      const answer = await this.#use.ask(state);
      if (this.#state === state) this.#show(this.#describe(state, answer), answer);
    } catch (error) {
      if (this.#state === state) this.#show(`Pinned, without a curve: ${messageOf(error)}`, null);
    }
  }

  // -- inside -------------------------------------------------------------------------------------

  #pin() {
    this.set(structuredClone(this.#use.current()));
    this.#use.changed();
  }

  #unpin() {
    this.set(null);
    this.#use.changed();
    this.#take.focus(); // the button that had the focus is hidden
  }

  /** @param {string} text @param {Prediction | null} answer */
  #show(text, answer) {
    this.#name.textContent = text;
    this.#use.show(answer, text);
  }

  /** @param {State} state @param {Prediction} answer */
  #describe(state, answer) {
    const { batch, context } = answer.scenario;
    const name = this.#use.nameOf(state) ?? deployment(answer);
    return `Pinned: ${name} (batch ${batch}, context ${context})`;
  }
}

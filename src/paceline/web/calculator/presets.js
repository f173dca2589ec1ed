// Scenarios with a name, to start from: one click fills the whole form.

import { h } from "../lib/dom.js";

/** @import { State } from "./state.js" */

/** @typedef {{ name: string, see: string, state: State }} Choice  what to see, in words */

export class Presets {
  element;
  #choices;
  #buttons;
  #see = h("p", { class: "see", id: "calculator-see", role: "status" });

  /**
   * @param {Choice[]} choices
   * @param {(state: State) => void} choose gets the state of a preset that somebody takes
   * @param {string} missing says which preset is not there, and why; empty for none
   */
  constructor(choices, choose, missing) {
    this.#choices = choices;
    this.#buttons = choices.map(({ name, state }) => h("button", {
      type: "button", "aria-pressed": "false", on: { click: () => choose(state) },
    }, name));
    this.element = h("section", { class: "presets", "aria-label": "Presets" },
      h("div", { class: "names" }, h("span", { class: "soft" }, "Start from"), this.#buttons),
      missing ? h("p", { class: "hint" }, missing) : null, this.#see);
  }

  /** Return the name of the preset that a state is, whatever its load; null for none. */
  nameOf(/** @type {State} */ state) {
    return this.#choiceOf(state)?.name ?? null;
  }

  /** Show which preset a state is, and what to see in it. @param {State} state */
  mark(state) {
    const chosen = this.#choiceOf(state);
    this.#buttons.forEach((button, index) => {
      button.setAttribute("aria-pressed", String(this.#choices[index] === chosen));
    });
    const text = chosen?.see ?? "";
    if (this.#see.textContent !== text) this.#see.textContent = text;
  }

  /** @param {State} state */
  #choiceOf(state) {
    const wanted = withoutLoad(state);
    return this.#choices.find((choice) => withoutLoad(choice.state) === wanted);
  }
}

/** Return a state as text, without the numbers that one tries out. @param {State} state */
const withoutLoad = (state) => JSON.stringify({ ...state, batch: null, context: null });

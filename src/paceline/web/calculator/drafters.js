// One drafter's part of the form: its kind, how well it drafts, what it costs.

import { numeric, select, slider, text } from "../lib/controls.js";
import { seriesColour } from "../lib/colours.js";
import { h } from "../lib/dom.js";
import { labelled } from "../lib/errors.js";
import { COSTS, FORMS, KINDS, costOf, hasBlock } from "./state.js";

/** @import { Control } from "../types/page" */
/** @import { DrafterState } from "./state.js" */

/**
 * `changed` is called after every change, `rebuilt` where the card needs other fields, `remove`
 * takes the drafter away, or is null.
 *
 * @typedef {{ changed: () => void, rebuilt: () => void, remove: (() => void) | null }} Actions
 */

/**
 * Return a card that edits a drafter in place.
 *
 * @param {DrafterState} drafter
 * @param {number} index
 * @param {Actions} actions
 */
export function drafterCard(drafter, index, actions) {
  const fields = new Fields(drafter, index, actions);
  const { remove } = actions;
  const button = h("button", {
    type: "button", class: "quiet remove", "aria-label": `Remove ${drafter.name}`,
    on: { click: () => remove?.() },
  }, "Remove");
  return h(
    "section",
    {
      class: "drafter", style: { borderColor: `var(${seriesColour(index)})` },
      "aria-label": `Drafter ${index + 1}`,
    },
    h("div", { class: "pair" }, fields.name(), fields.kind()),
    KINDS[drafter.kind].ideal ? null : [fields.form(), fields.acceptance()],
    fields.costs(),
    remove === null ? null : button,
  );
}

class Fields {
  #drafter;
  #index;
  #actions;

  /** @param {DrafterState} drafter @param {number} index @param {Actions} actions */
  constructor(drafter, index, actions) {
    this.#drafter = drafter;
    this.#index = index;
    this.#actions = actions;
  }

  name() {
    const control = this.#bound("name", (id, changed) => text(id, { changed, maxLength: 64 }));
    return labelled(this.#at("name"), "Name", control);
  }

  kind() {
    const kinds = Object.entries(KINDS).map(([name, { label }]) => pair(name, label));
    const control = this.#rebuilding("kind", (id, changed) => select(id, kinds, changed));
    return labelled(this.#at("kind"), "Kind", control);
  }

  form() {
    const forms = Object.entries(FORMS);
    const control = this.#rebuilding("form", (id, changed) => select(id, forms, changed));
    return labelled(this.#at("acceptance-form"), "Acceptance as", control);
  }

  acceptance() {
    switch (this.#drafter.form) {
      case "al": return this.#acceptanceLength();
      case "conditional": return this.#rates("0.77 0.73 0.74 0.77",
        "Of the drafts that came as far as the position, the share accepted there");
      case "unconditional": return this.#rates("0.77 0.57 0.42 0.32",
        "Of all drafts, the share accepted at the position: what vLLM logs as per-position "
        + "acceptance");
      default: return this.#alpha();
    }
  }

  costs() {
    const drafter = this.#drafter;
    const { cost, block, seconds } = KINDS[drafter.kind];
    const way = costOf(drafter);
    if (way !== null) drafter.costed = way;
    return [
      cost ? this.#costWay(cost) : null,
      way === "config" ? this.#config() : null,
      way === "share" ? this.#costShare(block ? "a block" : "a token") : null,
      hasBlock(drafter) ? this.#block() : null,
      seconds ? this.#seconds() : null,
    ];
  }

  // -- inside -------------------------------------------------------------------------------------

  #alpha() {
    const label = `α of ${this.#drafter.name}`;
    return labelled(this.#at("acceptance.alpha"), "α, share of draft tokens accepted",
      this.#bound("alpha", (id, changed) => (
        slider(id, { min: 0, max: 1, step: 0.01, label, changed }))));
  }

  #acceptanceLength() {
    return h("div", { class: "pair" },
      labelled(this.#at("acceptance.al"), "AL incl. bonus",
        this.#bound("al", (id, changed) => numeric(id, { min: 1, changed }))),
      labelled(this.#at("acceptance.draft_length"), "measured at γ =",
        this.#bound("measured", (id, changed) => numeric(id, { min: 1, step: 1, changed }))));
  }

  /** @param {string} placeholder @param {string} hint */
  #rates(placeholder, hint) {
    return labelled(this.#at("acceptance"), "Rates, position by position",
      this.#bound("rates", (id, changed) => text(id, { changed, placeholder })), hint);
  }

  /** @param {string[]} ways */
  #costWay(ways) {
    const options = ways.map((way) => pair(way, COSTS[way]));
    return labelled(this.#at("costed"), "Cost",
      this.#rebuilding("costed", (id, changed) => select(id, options, changed)));
  }

  #config() {
    return labelled(this.#at("config"), "Its config.json, or a listed model's name",
      this.#bound("config", (id, changed) => text(id, { rows: 3, class: "code", changed })));
  }

  /** @param {string} unit what the cost is of */
  #costShare(unit) {
    return labelled(this.#at("cost"), `Cost of ${unit}, % of an AR step`,
      this.#bound("cost", (id, changed) => (
        slider(id, { min: 0, max: 50, step: 0.5, label: "Cost", unit: " %", changed }))));
  }

  #block() {
    return labelled(this.#at("block"), "Block: tokens drafted in one pass",
      this.#bound("block", (id, changed) => numeric(id, { min: 1, step: 1, changed })),
      "The anchor is not counted: a DFlash block of 16 drafts 15");
  }

  #seconds() {
    return labelled(this.#at("seconds"), "Time of a look-up, µs",
      this.#bound("seconds", (id, changed) => numeric(id, { min: 0, changed })));
  }

  /** @param {string} name */
  #at(name) {
    return `drafters[${this.#index}].${name}`;
  }

  /**
   * Return a control that shows a field of the drafter and writes to it.
   *
   * @template {keyof DrafterState} Name
   * @param {Name} name
   * @param {(id: string, changed: () => void) => Control<DrafterState[Name]>} make
   * @param {() => void} after
   */
  #bound(name, make, after = this.#actions.changed) {
    const control = make(`drafter-${this.#index}-${name}`, () => {
      this.#drafter[name] = control.value;
      after();
    });
    control.value = this.#drafter[name];
    return control;
  }

  /**
   * Return such a control for a field that decides which other fields the card has.
   *
   * @param {"kind" | "form" | "costed"} name
   * @param {(id: string, changed: () => void) => Control<string>} make
   */
  #rebuilding(name, make) {
    return this.#bound(name, make, this.#actions.rebuilt);
  }
}

/** @param {string} value @param {string} label @returns {[string, string]} */
const pair = (value, label) => [value, label];

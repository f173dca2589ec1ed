// The time of a token by component: a bar for plain decoding, and one for each drafter.

import { h } from "../lib/dom.js";
import { areaSwatch, figure, Legend } from "../lib/figure.js";
import { number, percent } from "../lib/format.js";

/** @import { Components } from "../types/answers" */
/** @import { Child } from "../types/page" */

/** @typedef {{ label: string, components: Components, tokens: number }} Row */

// components that every model may have, in the order of a forward; others come after them
const ORDER = [
  "projections", "attention", "state", "feed_forward", "experts", "shared_experts", "router",
  "indexer", "communication", "head", "sampling", "overhead", "draft",
];
const COLOURS = [1, 5, 3, 2, 4, 6].map((series) => `var(--series-${series})`);
const LEAST = 0.002; // share of a bar below which a component is left out

export class Stack {
  #legend = new Legend();
  #bars = h("div", { class: "bars" });

  /**
   * @param {HTMLElement} parent
   * @param {{ title: string, note: string, tools: Child }} options
   */
  constructor(parent, { title, note, tools }) {
    parent.append(figure(title, note, tools, this.#legend.element, this.#bars));
  }

  /**
   * Draw a bar for each row: milliseconds of its components per committed token.
   *
   * @param {Row[]} rows
   */
  draw(rows) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row.components)))]
      .filter((name) => rows.some((row) => perToken(row, name) > LEAST * total(row)))
      .sort((left, right) => rank(left) - rank(right));
    const widest = Math.max(...rows.map(total));
    this.#legend.show(names.map((name) => (
      { swatch: areaSwatch(fill(name, names)), text: words(name) })));
    this.#bars.replaceChildren(...rows.map((row) => h("div", { class: "stack-bar" },
      h("span", { class: "bar-label" }, row.label),
      h("div", { class: "bar-track" }, names.map((name) => part(row, name, names, widest))),
      h("span", { class: "bar-total" }, `${number(total(row))} ms`))));
  }

  clear() {
    this.#legend.show([]);
    this.#bars.replaceChildren();
  }
}

/** @param {Row} row @param {string} name @param {string[]} names @param {number} widest */
function part(row, name, names, widest) {
  const time = perToken(row, name);
  const share = percent(time / (total(row) || 1));
  return h("span", {
    class: "bar-part",
    title: `${words(name)}: ${number(time)} ms a token, ${share}`,
    style: { background: fill(name, names), width: `${(100 * time) / widest}%` },
  });
}

/** @param {string} name */
const words = (name) => name.replaceAll("_", " ");
/** @param {string} name */
const rank = (name) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length - 2.5);

/** @param {Row} row @param {string} name */
const perToken = ({ components, tokens }, name) => (components[name] ?? 0) / tokens;

/** @param {Row} row */
const total = ({ components, tokens }) => (
  Object.values(components).reduce((sum, time) => sum + time, 0) / tokens);

/** @param {string} name @param {string[]} names */
function fill(name, names) {
  // the draft is hatched, so that it stands apart without a colour of its own
  if (name === "draft") {
    return "repeating-linear-gradient(45deg, var(--ink) 0 2px, transparent 2px 6px)";
  }
  if (name === "overhead") return "var(--line-strong)";
  return COLOURS[names.indexOf(name) % COLOURS.length];
}

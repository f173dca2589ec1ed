// What every chart shares, however it is drawn: the frame with title and note, and the legend.

import { h } from "./dom.js";

/** @import { Child } from "../types/page" */

/**
 * Return a chart's frame.
 *
 * @param {string} title
 * @param {string | null} note
 * @param {...Child} content
 */
export function figure(title, note, ...content) {
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("h3", {}, title), note === null ? null : h("p", { class: "hint" }, note)),
    content);
}

/** A list of swatches with their names. */
export class Legend {
  element = h("ul", { class: "legend" });
  /** @type {HTMLElement[]} */
  #values = [];

  /** @param {{ swatch: HTMLElement, text: string }[]} entries */
  show(entries) {
    this.#values = entries.map(() => h("span", { class: "value" }));
    this.element.replaceChildren(...entries.map(({ swatch, text }, index) => (
      h("li", {}, swatch, h("span", {}, text), this.#values[index]))));
  }

  /** Show a value beside each name. @param {string[]} values */
  setValues(values) {
    this.#values.forEach((element, index) => { element.textContent = values[index] ?? ""; });
  }
}

/**
 * Return the swatch of a series.
 *
 * @param {string} colour a CSS variable such as "--series-1"
 * @param {"line" | "dashed" | "ring"} kind
 */
export const swatch = (colour, kind = "line") => h("span", {
  class: `swatch ${kind}`, style: { borderColor: `var(${colour})` },
});

/** Return the swatch of an area. @param {string} background */
export const areaSwatch = (background) => h("span", { class: "block", style: { background } });

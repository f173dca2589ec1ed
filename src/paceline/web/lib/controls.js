// Controls of forms, each with its element, id and value.

import { h } from "./dom.js";

/** @import { Control, Options } from "../types/page" */

/**
 * Return a slider with a number beside it: the slider to feel the effect, the number to be exact.
 * The slider runs over `values`, or from `min` to `max` in steps. The number may be off the slider;
 * its value is null where it is empty or wrong.
 *
 * @param {string} id
 * @param {{
 *   values?: number[] | null, min?: number, max?: number, step?: number,
 *   label: string, unit?: string, changed: () => void,
 * }} options `changed` is called when somebody moves or types
 * @returns {Control<number | null>}
 */
export function slider(id, options) {
  const { values = null, min = 0, max = 1, step = 0.01, label, unit = "", changed } = options;
  const range = h("input", {
    type: "range",
    id: `${id}-range`,
    "aria-label": `${label}, slider`,
    min: values ? 0 : min,
    max: values ? values.length - 1 : max,
    step: values ? 1 : step,
    on: {
      input: () => {
        number.value = values ? String(values[range.valueAsNumber]) : range.value;
        speak();
        changed();
      },
    },
  });
  const number = h("input", {
    type: "number", id, step: "any", inputMode: "decimal", class: "exact",
    on: { input: () => { place(); changed(); } },
  });
  const speak = () => range.setAttribute("aria-valuetext", `${number.value}${unit}`);
  const place = () => {
    const value = numberIn(number);
    if (value !== null) range.value = String(values ? nearestIndex(values, value) : value);
    speak();
  };
  return {
    id,
    input: number,
    element: h("div", { class: "slider" }, range, number),
    get value() {
      return numberIn(number);
    },
    set value(value) {
      number.value = value === null ? "" : String(value);
      place();
    },
  };
}

/**
 * Return the index of the value that is nearest in proportion.
 *
 * @param {number[]} values
 * @param {number} wanted
 */
function nearestIndex(values, wanted) {
  const distances = values.map((value) => Math.abs(Math.log((value + 1) / (wanted + 1))));
  return distances.indexOf(Math.min(...distances));
}

/** @param {HTMLInputElement} input @returns {number | null} null: it is empty or no number */
function numberIn(input) {
  const value = input.value === "" ? NaN : Number(input.value);
  return Number.isFinite(value) ? value : null;
}

/**
 * Return a row of buttons of which one is pressed.
 *
 * @template {string} Value
 * @param {string} label
 * @param {Record<Value, string>} options the texts of the buttons by their values
 * @param {Value} chosen
 * @param {(value: Value) => void} changed
 */
export function choice(label, options, chosen, changed) {
  const values = /** @type {Value[]} */ (Object.keys(options));
  const buttons = values.map((value) => h("button", {
    type: "button",
    "aria-pressed": String(value === chosen),
    dataset: { value },
    on: { click: () => { choose(value); changed(value); } },
  }, options[value]));
  /** Press a button without telling, to keep several choices in step. @param {Value} value */
  const choose = (value) => {
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.value === value));
    }
  };
  const element = h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  return { element, choose };
}

/**
 * Return a number on its own; its value is null where it is empty or no number.
 *
 * @param {string} id
 * @param {{ changed: () => void, min?: number, step?: number }} options
 * @returns {Control<number | null>}
 */
export function numeric(id, { changed, ...bounds }) {
  const element = h("input", {
    type: "number", id, step: "any", inputMode: "decimal", ...bounds, on: { input: changed },
  });
  return {
    id,
    element,
    get value() {
      return numberIn(element);
    },
    set value(value) {
      element.value = value === null ? "" : String(value);
    },
  };
}

/**
 * Return a list to choose from.
 *
 * @param {string} id
 * @param {Options} options
 * @param {() => void} changed
 */
export function select(id, options, changed) {
  const element = h("select", { id, on: { change: changed } },
    options.map(([value, text]) => h("option", { value }, text)));
  return withValue(id, element);
}

/**
 * Return a field for text, of several lines where `rows` is given.
 *
 * @param {string} id
 * @param {{
 *   changed: () => void, rows?: number, class?: string, placeholder?: string, maxLength?: number,
 * }} options
 */
export function text(id, { changed, rows, ...rest }) {
  const on = { input: changed };
  return withValue(id, rows === undefined
    ? h("input", { id, spellcheck: false, autocomplete: "off", ...rest, on })
    : h("textarea", { id, spellcheck: false, autocomplete: "off", rows, ...rest, on }));
}

/**
 * @template {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} Element
 * @param {string} id
 * @param {Element} element
 */
function withValue(id, element) {
  return {
    id,
    element,
    get value() {
      return element.value;
    },
    /** @param {string} value */
    set value(value) {
      element.value = value;
    },
  };
}

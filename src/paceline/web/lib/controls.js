// Controls that come in pairs: a slider to feel the effect, a number to be exact.

import { h } from "./dom.js";

/**
 * A slider over `values` (or from `min` to `max` in steps) with a number beside it. Gives
 * { element, id, value (get/set) }; `changed()` is called when somebody moves or types. Numbers that
 * are not on the slider are kept; an empty or wrong one reads as null.
 */
export function slider(id, { values = null, min = 0, max = 1, step = 0.01, label, unit = "", changed }) {
  const range = h("input", {
    type: "range", id: `${id}-range`, "aria-label": `${label}, slider`,
    min: values ? 0 : min, max: values ? values.length - 1 : max, step: values ? 1 : step,
    on: { input: () => { number.value = String(values ? values[range.value] : range.value); spoken(); changed(); } },
  });
  const number = h("input", {
    type: "number", id, step: "any", inputMode: "decimal", class: "exact",
    on: { input: () => { place(); changed(); } },
  });
  const spoken = () => range.setAttribute("aria-valuetext", `${number.value}${unit}`);
  const place = () => {
    const value = Number(number.value);
    if (number.value !== "" && Number.isFinite(value)) range.value = String(values ? nearestIndex(values, value) : value);
    spoken();
  };
  return {
    id,
    input: number, // what a label is for
    element: h("div", { class: "slider" }, range, number),
    get value() {
      return number.value === "" ? null : Number(number.value);
    },
    set value(value) {
      number.value = value === null ? "" : String(value);
      place();
    },
  };
}

function nearestIndex(values, wanted) {
  let best = 0;
  values.forEach((value, index) => {
    if (Math.abs(Math.log((value + 1) / (wanted + 1))) < Math.abs(Math.log((values[best] + 1) / (wanted + 1)))) best = index;
  });
  return best;
}

/** A row of choices of which one is on; `changed(value)` is told. */
export function choice(label, options, chosen, changed) {
  const buttons = Object.entries(options).map(([value, text]) => h("button", {
    type: "button", "aria-pressed": String(value === chosen), dataset: { value },
    on: { click: () => { set(value); changed(value); } },
  }, text));
  const set = (value) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
  };
  const element = h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  element.choose = set; // for who holds several of them in step
  return element;
}

/** A number on its own, as { element, id, value }: null where it is empty or no number. */
export function numeric(id, { changed, ...properties }) {
  const element = h("input", { type: "number", id, step: "any", inputMode: "decimal", ...properties, on: { input: changed } });
  return {
    id, element,
    get value() {
      return element.value === "" ? null : Number(element.value);
    },
    set value(value) {
      element.value = value === null ? "" : String(value);
    },
  };
}

/** A list to choose from, as { element, id, value }. `options`: [value, text]. */
export function select(id, options, changed) {
  const element = h("select", { id, on: { change: changed } }, options.map(([value, text]) => h("option", { value }, text)));
  return {
    id, element,
    get value() {
      return element.value;
    },
    set value(value) {
      element.value = value;
    },
  };
}

/** Text, of several lines where `rows` is given, as { element, id, value }. */
export function text(id, { changed, ...properties }) {
  const element = h(properties.rows ? "textarea" : "input", { id, spellcheck: false, autocomplete: "off", ...properties, on: { input: changed } });
  return {
    id, element,
    get value() {
      return element.value;
    },
    set value(value) {
      element.value = value;
    },
  };
}

// Errors shown in place: beside the field they are about, or where the answer would have been.

import { find, findAll, h } from "./dom.js";

/** @import { Control, FieldError } from "../types/page" */

/**
 * Return a labelled control with a place for its error. `field` is the name that the server's
 * errors use; an error of an inner name ("drafters[0].alpha" in "drafters") shows at the nearest
 * field.
 *
 * @param {string} field
 * @param {string} label
 * @param {HTMLElement | Control<unknown>} control an element, or a control of lib/controls.js
 * @param {string | null} hint
 */
export function labelled(field, label, control, hint = null) {
  const element = control instanceof HTMLElement ? control : control.element;
  const input = control instanceof HTMLElement ? control : control.input ?? control.element;
  const id = input.id || `field-${field.replace(/[^a-z0-9]+/gi, "-")}`;
  input.id = id;
  const error = h("p", { class: "error", id: `${id}-error`, role: "alert", hidden: true });
  input.setAttribute("aria-describedby", error.id);
  return h(
    "div",
    { class: "field", dataset: { field } },
    h("label", { for: id }, label),
    element,
    hint === null ? null : h("p", { class: "hint" }, hint),
    error,
  );
}

/** Remove every error that is shown under `root`. @param {HTMLElement} root */
export function clearErrors(root) {
  for (const error of findAll(root, ".error")) {
    error.hidden = true;
    error.textContent = "";
  }
  for (const control of findAll(root, "[aria-invalid]")) control.removeAttribute("aria-invalid");
}

/**
 * Show an error at its field under `root`. Returns false where there is no such field.
 *
 * @param {HTMLElement} root
 * @param {FieldError} error
 */
export function showAtField(root, error) {
  const place = error.field ? nearest(root, error.field) : null;
  const text = place === null ? null : find(place, ".error");
  if (place === null || text === null) return false;
  text.textContent = error.message;
  text.hidden = false;
  find(place, "[aria-describedby]")?.setAttribute("aria-invalid", "true");
  let outer = place.closest("details");
  while (outer) {
    outer.open = true; // an error in a closed section would not be seen
    outer = outer.parentElement?.closest("details") ?? null;
  }
  return true;
}

/** @param {HTMLElement} root @param {string} field */
function nearest(root, field) {
  const places = findAll(root, "[data-field]").filter((place) => !place.hidden);
  for (let name = field; name; name = name.replace(/(\[\d+\]|\.?[^.[\]]+)$/, "")) {
    const place = places.find(({ dataset }) => dataset.field === name)
      ?? places.find(({ dataset }) => dataset.field?.startsWith(`${name}.`));
    if (place) return place;
  }
  return null;
}

/**
 * Return an error that is about one field.
 *
 * @param {string} field
 * @param {string} message
 * @returns {FieldError}
 */
export const fieldError = (field, message) => Object.assign(new Error(message), { field });

/**
 * Return what was thrown as an Error.
 *
 * @param {unknown} thrown
 * @returns {FieldError}
 */
export const asError = (thrown) => (thrown instanceof Error ? thrown : new Error(String(thrown)));

/**
 * Return the message of an error.
 *
 * @param {unknown} thrown
 */
export const messageOf = (thrown) => asError(thrown).message;

/**
 * Return a box that says what went wrong, for an error that is about no field.
 *
 * @param {unknown} thrown
 * @param {(() => unknown) | null} again what the button "Try again" does
 */
export function errorBox(thrown, again = null) {
  return h(
    "div",
    { class: "notice bad", role: "alert" },
    h("p", {}, messageOf(thrown) || String(thrown)),
    again === null ? null
      : h("button", { type: "button", on: { click: () => again() } }, "Try again"),
  );
}

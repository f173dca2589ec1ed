// Errors shown in place: beside the field they are about, or where the answer would have been.

import { h } from "./dom.js";

/**
 * A labelled control (an element, or one of controls.js) with room for its error. `field` is the name that the server's errors use;
 * errors of inner names ("drafters[0].alpha" for "drafters") are shown by the nearest field.
 */
export function labelled(field, label, control, hint = null) {
  const input = control.input ?? control.element ?? control;
  const id = input.id || `field-${field.replace(/[^a-z0-9]+/gi, "-")}`;
  input.id = id;
  const error = h("p", { class: "error", id: `${id}-error`, role: "alert", hidden: true });
  input.setAttribute("aria-describedby", error.id);
  return h(
    "div",
    { class: "field", dataset: { field } },
    h("label", { for: id }, label),
    control.element ?? control,
    hint === null ? null : h("p", { class: "hint" }, hint),
    error,
  );
}

/** Removes every error shown under `root`. */
export function clearErrors(root) {
  for (const error of root.querySelectorAll(".error")) {
    error.hidden = true;
    error.textContent = "";
  }
  for (const control of root.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
}

/** Shows `error` by its field under `root`; gives whether such a field is there. */
export function showAtField(root, error) {
  const place = error.field ? nearest(root, error.field) : null;
  if (place === null) return false;
  const text = place.querySelector(".error");
  text.textContent = error.message;
  text.hidden = false;
  const control = place.querySelector("[aria-describedby]");
  if (control) control.setAttribute("aria-invalid", "true");
  for (let outer = place.closest("details"); outer; outer = outer.parentElement.closest("details")) {
    outer.open = true; // an error in a closed section would not be seen
  }
  return true;
}

function nearest(root, field) {
  const fields = [...root.querySelectorAll("[data-field]")].filter((element) => !element.hidden);
  for (let name = field; name; name = name.replace(/(\[\d+\]|\.?[^.[\]]+)$/, "")) {
    const found = fields.find((element) => element.dataset.field === name)
      ?? fields.find((element) => element.dataset.field.startsWith(`${name}.`));
    if (found) return found;
  }
  return null;
}

/** A box that says what went wrong, for where no field is to blame. */
export function errorBox(error, again = null) {
  return h(
    "div",
    { class: "notice bad", role: "alert" },
    h("p", {}, error.message || String(error)),
    again === null ? null : h("button", { type: "button", on: { click: again } }, "Try again"),
  );
}

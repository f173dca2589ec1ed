// Measured points that somebody pastes or opens. The server reads them, the charts show them.

import { text } from "../lib/controls.js";
import { h } from "../lib/dom.js";
import {
  asError, clearErrors, errorBox, fieldError, labelled, messageOf, showAtField,
} from "../lib/errors.js";
import { postJson } from "../lib/http.js";

/** @import { MeasuredPoint, MeasuredPoints } from "../types/answers" */

const EXAMPLE = '{"points": [{"acceptance_length": 3.1, "speedup": 2.2, "draft_length": 7, '
  + '"batch": 1}]}';

/**
 * Return a box to paste points into.
 *
 * @param {(points: MeasuredPoint[]) => void} show gets the points, [] when they are taken away
 */
export function measuredBox(show) {
  const paste = text("calculator-measured", {
    rows: 4, class: "code", changed: () => {}, placeholder: EXAMPLE,
  });
  const status = h("p", { role: "status", class: "soft" });
  const file = h("input", {
    type: "file", accept: ".json,application/json", "aria-label": "Measured points as a file",
    on: {
      change: async () => {
        paste.value = await file.files?.[0]?.text() ?? "";
        read();
      },
    },
  });
  const read = async () => {
    clearErrors(element);
    status.textContent = "";
    try {
      /** @type {MeasuredPoints} */
      const { points } = await postJson("ui/measured", parsed(paste.value));
      show(points);
      status.textContent = summaryOf(points);
    } catch (error) {
      show([]);
      if (!showAtField(element, asError(error))) status.replaceChildren(errorBox(error));
    }
  };
  const takeAway = () => {
    paste.value = "";
    status.textContent = "";
    clearErrors(element);
    show([]);
  };
  const element = h("section", { class: "card measured", "aria-label": "Measured points" },
    h("h2", {}, "Measured points"),
    h("p", { class: "hint" }, "The JSON of ", h("code", {}, "paceline evaluate"), " or ",
      h("code", {}, "paceline mock --json"),
      ", or points of your own. This page sends them to this server only, which does not keep "
      + "them."),
    labelled("measured", "JSON", paste), file,
    h("p", { class: "actions" },
      h("button", { type: "button", on: { click: takeAway } }, "Clear"),
      h("button", {
        type: "button", class: "primary", id: "calculator-measured-show", on: { click: read },
      }, "Show them")),
    status);
  return element;
}

/** @param {MeasuredPoint[]} points */
function summaryOf(points) {
  const placed = points.filter((point) => point.draft_length !== null).length;
  return `${points.length} points: all in “Speedup against AL”, and the ${placed} with a draft `
    + "length in “Speedup by draft length”.";
}

/** @param {string} given */
function parsed(given) {
  try {
    return JSON.parse(given);
  } catch (error) {
    throw fieldError("measured", `measured: no JSON: ${messageOf(error)}`);
  }
}

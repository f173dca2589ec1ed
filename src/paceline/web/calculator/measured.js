// Measured points that somebody pastes or opens; the server reads them, the charts show them.

import { h } from "../lib/dom.js";
import { errorBox, labelled, showAtField, clearErrors } from "../lib/errors.js";
import { postJson } from "../lib/http.js";
import { text } from "../lib/controls.js";

/** A box that calls `found(points)` with what was read, [] when they are taken away. */
export function measuredBox(found) {
  const paste = text("calculator-measured", { rows: 4, class: "code", changed: () => {},
    placeholder: '{"points": [{"acceptance_length": 3.1, "speedup": 2.2, "draft_length": 7, "batch": 1}]}' });
  const said = h("p", { role: "status", class: "soft" });
  const file = h("input", { type: "file", accept: ".json,application/json", "aria-label": "Measured points as a file",
    on: { change: async () => { paste.value = await file.files[0].text(); show(); } } });
  const show = async () => {
    clearErrors(element);
    said.textContent = "";
    try {
      const { points } = await postJson("ui/measured", parsed(paste.value));
      found(points);
      const placed = points.filter((point) => point.draft_length !== null).length;
      said.textContent = `${points.length} points: all in “Speedup against AL”, ${placed} that know their draft length in “Speedup by draft length”.`;
    } catch (error) {
      found([]);
      if (!showAtField(element, error)) said.replaceChildren(errorBox(error));
    }
  };
  const element = h("section", { class: "card measured", "aria-label": "Measured points" },
    h("h2", {}, "Measured points"),
    h("p", { class: "hint" }, "The JSON of ", h("code", {}, "paceline evaluate"), " or ", h("code", {}, "paceline mock --json"),
      ", or points of your own. They leave this browser only for this server, which reads and forgets them."),
    labelled("measured", "JSON", paste), file,
    h("p", { class: "actions" },
      h("button", { type: "button", on: { click: () => { paste.value = ""; said.textContent = ""; clearErrors(element); found([]); } } }, "Take away"),
      h("button", { type: "button", class: "primary", id: "calculator-measured-show", on: { click: show } }, "Show them")),
    said);
  return element;
}

function parsed(given) {
  try {
    return JSON.parse(given);
  } catch (error) {
    throw Object.assign(new Error(`measured: no JSON: ${error.message}`), { field: "measured" });
  }
}

// One drafter's part of the form: what it is, how well it drafts, what it costs.

import { numeric, select, slider, text } from "../lib/controls.js";
import { h } from "../lib/dom.js";
import { labelled } from "../lib/errors.js";
import { COSTS, FORMS, KINDS, costed, hasBlock } from "./state.js";

/**
 * A card that edits `each` in place. `changed()` after every change, `rebuilt()` where other fields
 * are needed now, `remove` (or null) takes it away.
 */
export function drafterCard(each, index, { changed, rebuilt, remove }) {
  const kind = KINDS[each.kind];
  const at = (name) => `drafters[${index}].${name}`;
  const id = (name) => `drafter-${index}-${name}`;
  /** Binds a control to `each[name]`. */
  const bound = (name, make, after = changed) => {
    const control = make(() => { each[name] = control.value; after(); });
    control.value = each[name];
    return control;
  };
  const name = bound("name", (set) => text(id("name"), { changed: set, maxLength: 64 }));
  const kinds = bound("kind", (set) => select(id("kind"), Object.entries(KINDS).map(([value, { label }]) => [value, label]), set), rebuilt);
  return h(
    "section",
    { class: "drafter", style: { borderColor: `var(--series-${index + 1})` }, "aria-label": `Drafter ${index + 1}` },
    h("div", { class: "pair" }, labelled(at("name"), "Name", name), labelled(at("kind"), "Kind", kinds)),
    kind.ideal ? null : acceptance(each, index, bound, rebuilt),
    costs(each, { at, id, bound, rebuilt }),
    remove === null ? null : h("button", { type: "button", class: "quiet remove", "aria-label": `Remove ${each.name}`, on: { click: remove } }, "Remove"),
  );
}

function acceptance(each, index, bound, rebuilt) {
  const at = `drafters[${index}].acceptance`;
  const id = (name) => `drafter-${index}-${name}`;
  const form = bound("form", (set) => select(id("form"), Object.entries(FORMS), set), rebuilt);
  const parts = {
    alpha: () => [labelled(`${at}.alpha`, "α, share of draft tokens that stand", bound("alpha", (set) =>
      slider(id("alpha"), { min: 0, max: 1, step: 0.01, label: `α of ${each.name}`, changed: set })))],
    al: () => [h("div", { class: "pair" },
      labelled(`${at}.al`, "AL incl. bonus", bound("al", (set) => numeric(id("al"), { min: 1, changed: set }))),
      labelled(`${at}.draft_length`, "measured at γ =", bound("measured", (set) => numeric(id("measured"), { min: 1, step: 1, changed: set }))))],
    conditional: () => [labelled(at, "Rates, position by position", bound("rates", (set) =>
      text(id("rates"), { changed: set, placeholder: "0.77 0.73 0.74 0.77" })),
    "Of the drafts that came as far as the position, the share that stood there")],
    unconditional: () => [labelled(at, "Rates, position by position", bound("rates", (set) =>
      text(id("rates"), { changed: set, placeholder: "0.77 0.57 0.42 0.32" })),
    "Of all drafts, the share that stood at the position: what vLLM logs as per-position acceptance")],
  };
  return [labelled(`${at}-form`, "Acceptance as", form), ...parts[each.form]()];
}

function costs(each, { at, id, bound, rebuilt }) {
  const kind = KINDS[each.kind];
  const parts = [];
  if (kind.cost) {
    each.costed = costed(each);
    const ways = kind.cost.map((value) => [value, COSTS[value]]);
    parts.push(labelled(at("costed"), "Cost", bound("costed", (set) => select(id("costed"), ways, set), rebuilt)));
  }
  if (each.costed === "config" && kind.cost) {
    parts.push(labelled(at("config"), "Its config.json, or a listed model's name", bound("config", (set) =>
      text(id("config"), { rows: 3, class: "code", changed: set }))));
  }
  if (costed(each) === "share") {
    const per = kind.block ? "a block" : "a token";
    parts.push(labelled(at("cost"), `Cost of ${per}, % of an AR step`, bound("cost", (set) =>
      slider(id("cost"), { min: 0, max: 50, step: 0.5, label: "Cost", unit: " %", changed: set }))));
  }
  if (hasBlock(each)) {
    parts.push(labelled(at("block"), "Block: tokens drafted in one pass", bound("block", (set) =>
      numeric(id("block"), { min: 1, step: 1, changed: set })), "The anchor is not counted: a DFlash block of 16 drafts 15"));
  }
  if (kind.seconds) {
    parts.push(labelled(at("seconds"), "Time of a look-up, µs", bound("seconds", (set) => numeric(id("seconds"), { min: 0, changed: set }))));
  }
  return parts;
}

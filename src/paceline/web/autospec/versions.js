// The versions of drafters, with their states.

import { h } from "../lib/dom.js";
import { ago, cohortName, leftOut, MEANINGS, nothing } from "./words.js";

/** @import { AutospecOverview, DrafterState, ShownVersion } from "../types/answers" */

/** States in which a server that follows the store has the version. @type {Set<DrafterState>} */
const DRAFTING = new Set(["canary", "live"]);
const COLUMNS = ["version", "state", "serves", "drafter", "made from", "last step"];

/**
 * @param {AutospecOverview} view
 * @param {string[]} loaded the drafters that this server has
 */
export function versionTable({ versions, time, left_out: { versions: more } }, loaded) {
  if (!versions.length) {
    return nothing("The store has no version yet. Add the drafter that the server has, and make "
      + "it live:", "paceline drafters add app-1 SPEC --store STORE",
    "paceline drafters promote app-1 --to live --store STORE");
  }
  return h("div", {},
    h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Drafters" },
      h("table", { class: "versions" },
        h("thead", {}, h("tr", {}, COLUMNS.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, versions.map((version) => (
          versionRow(version, time, loaded.includes(version.name))))))),
    leftOut(more, "versions are"));
}

/** @param {ShownVersion} version @param {number} now @param {boolean} isLoaded */
function versionRow(version, now, isLoaded) {
  const { name, state, serves, spec, target, lineage, note, changed, actor, reason } = version;
  return h("tr", {},
    h("th", { scope: "row" }, name, note ? h("span", { class: "more" }, note) : null),
    h("td", {}, h("span", { class: `state-of ${state}` }, state),
      h("span", { class: "more" }, MEANINGS[state]),
      DRAFTING.has(state) && !isLoaded
        ? h("span", { class: "more missing" }, "not loaded on this server") : null),
    h("td", {}, serves.map(cohortName).join(", ") || "–"),
    h("td", {}, spec ?? "–", target ? h("span", { class: "more" }, `for ${target}`) : null),
    h("td", {}, lineage.join(" ← ") || "–"),
    h("td", {}, `${ago(changed, now)}, ${actor}`,
      reason ? h("span", { class: "more" }, reason) : null));
}

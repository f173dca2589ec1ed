// Changes under way and what was decided, with the reasons.

import { h } from "../lib/dom.js";
import { fixed, number } from "../lib/format.js";
import { ago, cohortName, leftOut, nothing, RUN } from "./words.js";

/** @import { AutospecOverview, CanaryArm, ShownChange, ShownDecision } from "../types/answers" */

const STAGES = /** @type {const} */ (["scoring", "loading", "canary", "live"]);
const ORIGINS = {
  drift: "the cohort's acceptance fell",
  growth: "the cohort has become a large part of the traffic",
  renewal: "a live corpus is about to expire",
  weights: "a corpus was not enough, and training pays",
  pushed: "promoted by hand",
};

/** @param {AutospecOverview} view */
export function changeList({ changes, time, left_out: { changes: more } }) {
  const active = changes.filter(({ ended }) => ended === null);
  const over = changes.filter(({ ended }) => ended !== null);
  return h("div", { class: "items" },
    active.length ? active.map((change) => changeItem(change, time))
      : nothing("No change is under way. Autospec begins one where acceptance falls, or where you "
        + "push a version:", "paceline drafters promote NAME --to canary --store STORE"),
    earlier(over.map((change) => changeItem(change, time)), more, "changes"));
}

/** @param {ShownChange} change @param {number} now */
function changeItem(change, now) {
  const { version, replaces, cohort, origin, stage, percent, created, ended, reason } = change;
  const isOver = ended !== null;
  const share = stage === "canary" ? `: ${number(percent)} % of the requests` : "";
  return h("article", { class: "item change" },
    h("h3", {}, `${version} in place of ${replaces}, for ${cohortName(cohort)}`),
    h("p", {}, h("span", { class: `state-of ${stage}` }, `${stage}${share}`),
      ` ${ORIGINS[origin]}; begun ${ago(created, now)}`,
      isOver ? `, ended ${ago(ended, now)}` : ""),
    isOver ? null : steps(stage, origin),
    stage === "canary" ? meter(percent) : null,
    change.new && change.old ? arms(version, change.new, replaces, change.old) : null,
    line("Score", change.score),
    change.hold.length ? line("It waits", change.hold.join(" ")) : null,
    line(stage === "stopped" ? "Why it was stopped" : "Why", reason));
}

/** @param {ShownChange["stage"]} stage @param {ShownChange["origin"]} origin */
const steps = (stage, origin) => h("ol", { class: "steps" },
  [origin === "weights" ? "training" : "building", ...STAGES].map((name) => (
    h("li", name === stage ? { "aria-current": "step" } : {}, name))));

/** @param {number} percent */
const meter = (percent) => h("div", {
  class: "meter", role: "meter", "aria-label": "Requests that the new drafter gets, in percent",
  "aria-valuenow": String(percent), "aria-valuemin": "0", "aria-valuemax": "100",
}, h("span", { style: { width: `${percent}%` } }));

/**
 * @param {string} version
 * @param {CanaryArm} fresh
 * @param {string} replaces
 * @param {CanaryArm} old
 */
const arms = (version, fresh, replaces, old) => h("p", {},
  `${version}: ${armText(fresh)}. ${replaces}: ${armText(old)}.`);

/** @param {CanaryArm} arm */
const armText = ({ requests, tokens_per_round: tokens }) => (
  `${fixed(tokens, 2)} tokens per round in ${number(requests, 6)} requests`);

/** @param {AutospecOverview} view */
export function decisionList({ decisions, time, left_out: { decisions: more } }) {
  if (!decisions.length) {
    return nothing("Nothing was decided yet. The loop watches, decides, tries and swaps:", RUN);
  }
  const lasting = decisions.filter(({ ended }) => ended === null);
  const past = decisions.filter(({ ended }) => ended !== null);
  return h("div", { class: "items" },
    lasting.map((decision) => decisionItem(decision, time)),
    lasting.length ? null : h("p", { class: "soft" }, "Nothing lasts of what was decided."),
    earlier(past.map((decision) => decisionItem(decision, time)), more, "decisions"));
}

/** @param {ShownDecision} decision @param {number} now */
function decisionItem({ kind, action, cohorts, noted, ended, gain, cost, why, why_not: not }, now) {
  const until = ended === null ? `decided ${ago(noted, now)}` : `ended ${ago(ended, now)}`;
  return h("article", { class: "item decision" },
    h("h3", {}, `${kind}: ${action}`),
    h("p", { class: "hint" },
      [cohorts.map(cohortName).join(", ") || "all cohorts", until, price(gain, cost)]
        .filter(Boolean).join("; ")),
    why.length ? h("ul", {}, why.map((text) => h("li", {}, text))) : null,
    not.length ? h("div", { class: "why-not" }, h("h4", {}, "Why nothing else"),
      h("ul", {}, not.map((text) => h("li", {}, text)))) : null);
}

/** @param {number | null} gain @param {number | null} cost in the policy's currency */
function price(gain, cost) {
  const parts = [];
  if (gain !== null) parts.push(`would save ${number(gain)}`);
  if (cost !== null) parts.push(`would cost ${number(cost)}`);
  return parts.length ? `${parts.join(" and ")} (in the policy's currency)` : "";
}

/** @param {HTMLElement[]} items @param {number} more @param {string} what */
function earlier(items, more, what) {
  if (!items.length) return null;
  return h("details", {},
    h("summary", {}, `Earlier ${what} (${items.length})`), items, leftOut(more, `${what} are`));
}

/** @param {string} name @param {string} text */
const line = (name, text) => (text ? h("p", {}, h("strong", {}, `${name}: `), text) : null);

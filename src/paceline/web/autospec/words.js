// What the parts of the Autospec tab say alike: cohorts, times, states, and the next command.

import { h } from "../lib/dom.js";
import { fixed, number, percent, span } from "../lib/format.js";
import { cohortText } from "../lib/live_tables.js";

/** @import { Child } from "../types/page" */
/** @import { DrafterState } from "../types/answers" */

/** What a state of a version means. @type {{ [State in DrafterState]: string }} */
export const MEANINGS = {
  registered: "something is making it",
  trained: "its files are in the store",
  scored: "scored on captured traffic",
  shadow: "scored on live traffic, drafts for nobody",
  canary: "drafts for a share of the traffic",
  live: "drafts for the cohorts that it serves",
  retired: "drafts for nobody any more",
};

/** Return a cohort as people read it; "" is all requests. @param {string} label */
export const cohortName = (label) => (label === "" ? "all requests" : cohortText(label));

/** @param {number} time @param {number} now */
export const ago = (time, now) => `${span(now - time)} ago`;

/**
 * Return a value with its interval, as "3.21 (3.10 to 3.32)".
 *
 * @param {{ al: number, low: number | null, high: number | null }} value
 */
export function withInterval({ al, low, high }) {
  const interval = `${fixed(low, 2)} to ${fixed(high, 2)}`;
  return low === null || high === null ? fixed(al, 2) : `${fixed(al, 2)} (${interval})`;
}

/** Return a share with its sign, as "−7.2 %". @param {number | null} share */
export const signed = (share) => (
  share === null ? "–" : `${share < 0 ? "−" : "+"}${percent(Math.abs(share), 1)}`);

/** @param {string} title @param {string} hint @param {...Child} content */
export const section = (title, hint, ...content) => h("section", { class: "card" },
  h("h2", {}, title), h("p", { class: "hint" }, hint), content);

/**
 * Return what stands where there is nothing yet: why, and the command that brings it.
 *
 * @param {string} why
 * @param {...string} commands
 */
export const nothing = (why, ...commands) => h("div", { class: "empty" },
  h("p", { class: "soft" }, why),
  commands.length ? h("pre", {}, h("code", {}, commands.join("\n"))) : null);

/** Say how many more there are. @param {number} count @param {string} what */
export const leftOut = (count, what) => (
  count ? h("p", { class: "hint left-out" }, `${number(count, 6)} more ${what} not shown.`) : null);

export const RUN = "paceline autospec run STORE --traces FOLDER --server URL";

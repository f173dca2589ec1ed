// The tables of the Live tab: bars with their numbers beside them, and the numbers by drafter.

import { h } from "./dom.js";
import { fixed, number, percent, seconds, times } from "./format.js";

/** @import { LiveGroup, LiveLengths } from "../types/answers" */

/** Return bars of the share accepted by position of the draft. @param {LiveLengths} lengths */
export function positionBars({ positions }) {
  const drafted = positions.filter((position) => position.drafted);
  if (!drafted.length) return nothing("Nothing was drafted in this time.");
  return barTable(["position", "accepted", "of drafted"], drafted.map((position, index) => ({
    name: index + 1,
    share: position.accepted / position.drafted,
    value: percent(position.accepted / position.drafted),
    count: number(position.drafted, 6),
  })), "--series-3");
}

/** Return bars of the rounds by draft length. @param {LiveLengths} lengths */
export function lengthBars({ rounds_by_draft_length: counts, rounds }) {
  if (!rounds) return nothing("Nothing was decoded in this time.");
  const last = counts.findLastIndex((count) => count > 0);
  const most = Math.max(...counts);
  return barTable(["length", "of rounds", "rounds"], counts.slice(0, last + 1).map(
    (count, length) => ({
      name: length,
      share: count / most,
      value: percent(count / rounds),
      count: number(count, 6),
    })), "--series-2");
}

/**
 * @param {[string, string, string]} heads of the names, values and counts
 * @param {{ name: number, share: number, value: string, count: string }[]} rows
 * @param {string} colour a CSS variable
 */
function barTable([name, value, count], rows, colour) {
  /** @param {number} share */
  const bar = (share) => (share === 0 ? null : h("div", {
    class: "bar-of",
    style: { width: `${(100 * share).toFixed(1)}%`, background: `var(${colour})` },
  }));
  return h("table", { class: "bars" },
    h("thead", {}, h("tr", {}, columnHead(name), h("th", { class: "wide" }), columnHead(value),
      columnHead(count))),
    h("tbody", {}, rows.map((row) => h("tr", {},
      h("th", { scope: "row" }, `${row.name}`),
      h("td", { class: "wide", "aria-hidden": "true" }, bar(row.share)),
      h("td", {}, row.value),
      h("td", { class: "soft" }, row.count)))));
}

/** @type {[name: string, more: string, cell: (group: LiveGroup) => string][]} */
const COLUMNS = [
  ["tokens", "committed", ({ tokens }) => number(tokens, 6)],
  ["AL", "incl. bonus", ({ speculation }) => fixed(speculation.acceptance_length, 2)],
  ["draft length", "mean of all rounds", ({ drafter, speculation }) => (
    drafter ? fixed(speculation.draft_length, 1) : "")],
  ["accepted", "of drafted tokens", ({ speculation }) => acceptedShare(speculation)],
  ["speedup", "by the cost table", ({ drafter, speedup_vs_ar: speedup }) => (
    drafter ? times(speedup) : "")],
  ["TPOT", "median", ({ latency }) => seconds(latency.tpot?.p50)],
  ["TPOT", "90 %", ({ latency }) => seconds(latency.tpot?.p90)],
  ["TPOT", "99 %", ({ latency }) => seconds(latency.tpot?.p99)],
  ["TTFT", "median", ({ latency }) => seconds(latency.ttft?.p50)],
  ["TTFT", "99 %", ({ latency }) => seconds(latency.ttft?.p99)],
  ["requests", "ended", ({ latency }) => number(latency.streams, 6)],
];

/**
 * Return a table with a row for each drafter and cohort, and below it a row for each part of the
 * drafter.
 *
 * @param {LiveGroup[]} groups
 */
export function groupTable(groups) {
  if (!groups.length) return nothing("No request in this time.");
  return h("table", {},
    h("thead", {}, h("tr", {},
      columnHead("drafter"),
      h("th", { scope: "col", class: "name" }, "cohort"),
      COLUMNS.map(([name, more]) => (
        columnHead(name, h("br"), h("span", { class: "hint" }, more)))))),
    h("tbody", {}, groups.map((group) => [
      h("tr", {},
        h("th", { scope: "row", class: "name" }, group.drafter ?? "AR"),
        h("td", { class: "name" }, cohortText(group.cohort)),
        COLUMNS.map(([, , cell]) => h("td", {}, cell(group)))),
      Object.entries(group.speculation.parts).map(([name, part]) => partRow(name, part)),
    ])));
}

/**
 * Return a cohort as people read it: without the parts that nothing is known of.
 *
 * @param {string} label `model|app|language|region`, as the server writes it
 */
export function cohortText(label) {
  const parts = label.split("|").map(decodeURIComponent);
  return parts.filter((part, place) => !place || !["none", "und"].includes(part)).join(" · ");
}

/**
 * Return the row of one part of a drafter: it drafts some of the rounds, and has no requests.
 *
 * @param {string} name
 * @param {LiveLengths} part
 */
function partRow(name, part) {
  return h("tr", { class: "part" },
    h("th", { scope: "row", class: "name" }, `└ ${name}`),
    h("td", { class: "name" }, `${number(part.draft_rounds, 6)} drafts`),
    h("td"),
    h("td", {}, fixed(part.acceptance_length, 2)),
    h("td", {}, fixed(part.draft_length, 1)),
    h("td", {}, acceptedShare(part)),
    h("td", { colSpan: COLUMNS.length - 4 }));
}

/** @param {LiveLengths} lengths */
const acceptedShare = ({ draft_tokens: drafted, accepted_tokens: accepted }) => (
  drafted ? percent(accepted / drafted) : "");

/** @param {string} name @param {...Node} more */
const columnHead = (name, ...more) => h("th", { scope: "col" }, name, ...more);

/** @param {string} text */
const nothing = (text) => h("p", { class: "soft empty" }, text);

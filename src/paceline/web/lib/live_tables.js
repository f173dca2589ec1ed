// The tables of the Live tab: bars with their numbers beside them, and what each drafter did.

import { h } from "./dom.js";
import { fixed, number, percent, seconds, times } from "./format.js";

/** Share accepted by position of the draft. */
export function positionBars({ positions }) {
  const drafted = positions.filter((position) => position.drafted);
  if (!drafted.length) return nothing("Nothing was drafted in this time.");
  return bars(["position", "accepted", "of drafted"], drafted.map((position, index) => ({
    name: index + 1,
    share: position.accepted / position.drafted,
    value: percent(position.accepted / position.drafted),
    count: number(position.drafted, 6),
  })), "--series-3");
}

/** Rounds by draft length. */
export function lengthBars({ rounds_by_draft_length: lengths, rounds }) {
  if (!rounds) return nothing("Nothing was decoded in this time.");
  const last = lengths.findLastIndex((count) => count > 0);
  const most = Math.max(...lengths);
  return bars(["length", "of rounds", "rounds"], lengths.slice(0, last + 1).map((count, length) => ({
    name: length,
    share: count / most,
    value: percent(count / rounds),
    count: number(count, 6),
  })), "--series-2");
}

function bars([name, value, count], rows, colour) {
  return h("table", { class: "bars" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, name), h("th", { class: "wide" }),
      h("th", { scope: "col" }, value), h("th", { scope: "col" }, count))),
    h("tbody", {}, rows.map((row) => h("tr", {},
      h("th", { scope: "row" }, `${row.name}`),
      h("td", { class: "wide", "aria-hidden": "true" }, row.share === 0 ? null : h("div", { class: "bar-of", style: {
        width: `${(100 * row.share).toFixed(1)}%`, background: `var(${colour})`,
      } })),
      h("td", {}, row.value),
      h("td", { class: "soft" }, row.count)))));
}

const COLUMNS = [
  ["tokens", "committed", (one) => number(one.tokens, 6)],
  ["AL", "incl. bonus", (one) => fixed(one.speculation.acceptance_length, 2)],
  ["draft length", "mean of all rounds", (one) => (one.drafter ? fixed(one.speculation.draft_length, 1) : "")],
  ["accepted", "of drafted tokens", ({ speculation: of }) => (of.draft_tokens ? percent(of.accepted_tokens / of.draft_tokens) : "")],
  ["speedup", "by the cost table", (one) => (one.drafter ? times(one.speedup_vs_ar) : "")],
  ["TPOT", "median", (one) => seconds(one.latency.tpot?.p50)],
  ["TPOT", "90 %", (one) => seconds(one.latency.tpot?.p90)],
  ["TPOT", "99 %", (one) => seconds(one.latency.tpot?.p99)],
  ["TTFT", "median", (one) => seconds(one.latency.ttft?.p50)],
  ["TTFT", "99 %", (one) => seconds(one.latency.ttft?.p99)],
  ["requests", "ended", (one) => number(one.latency.streams, 6)],
];

/** One row for each drafter and cohort, and below it one for each part of the drafter. */
export function groupTable(groups) {
  if (!groups.length) return nothing("No request in this time.");
  return h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "drafter"), h("th", { scope: "col", class: "name" }, "cohort"),
      COLUMNS.map(([name, more]) => h("th", { scope: "col" }, name, h("br"), h("span", { class: "hint" }, more))))),
    h("tbody", {}, groups.flatMap((one) => [
      h("tr", {}, h("th", { scope: "row", class: "name" }, one.drafter ?? "AR"), h("td", { class: "name" }, one.cohort),
        COLUMNS.map(([, , cell]) => h("td", {}, cell(one)))),
      ...Object.entries(one.speculation.parts).map(partRow),
    ])));
}

/** A part of a drafter drafts some of its rounds: it has an acceptance, and no requests. */
function partRow([name, part]) {
  return h("tr", { class: "part" }, h("th", { scope: "row", class: "name" }, `└ ${name}`),
    h("td", { class: "name" }, `${number(part.draft_rounds, 6)} drafts`), h("td", {}),
    h("td", {}, fixed(part.acceptance_length, 2)),
    h("td", {}, fixed(part.draft_length, 1)),
    h("td", {}, percent(part.accepted_tokens / part.draft_tokens)),
    h("td", { colSpan: COLUMNS.length - 4 }));
}

const nothing = (text) => h("p", { class: "soft empty" }, text);

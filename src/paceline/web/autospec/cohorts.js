// Cohorts over time: a small chart for each, with what is usual at these hours and what happened.

import { Chart } from "../lib/chart.js";
import { h } from "../lib/dom.js";
import { fixed, number, percent } from "../lib/format.js";
import { ago, cohortName, leftOut, nothing, section, signed } from "./words.js";

/** @import { AutospecOverview, CohortDrift, CohortMark, ShownCohort } from "../types/answers" */
/** @import { Axis, Happening, Series } from "../types/page" */

/** @typedef {{ element: HTMLElement, text: HTMLElement, marks: HTMLElement, chart: Chart }} Card */

/** The unit of a curve's axis, and how many it shows. */
const SPANS = {
  minute: { unit: "minutes", seconds: 60, shown: 180 },
  hour: { unit: "days", seconds: 86400, shown: 7 },
  day: { unit: "days", seconds: 86400, shown: 60 },
};
const HEIGHT = 150;
const DASH = [5, 4];
/** @type {{ [Kind in CohortMark["kind"]]: { word: string, colour: string } }} */
const KINDS = {
  live: { word: "live", colour: "--good" },
  tried: { word: "tried", colour: "--series-4" },
  stopped: { word: "stopped", colour: "--bad" },
};

export class CohortCards {
  #grid = h("div", { class: "grid" });
  #foot = h("div");
  /** @type {Map<string, Card>} by the cohort's label */
  #cards = new Map();
  /** @type {Axis} */
  #x = { label: "days ago", max: 0, format: (value) => number(Math.abs(value)) };
  #second = 1 / SPANS.hour.seconds; // in the unit of the axis
  element;

  /** @param {HTMLElement} choice hours or days */
  constructor(choice) {
    this.element = section("Cohorts over time",
      "AL incl. bonus of each cohort, without what is only tried. Dashed: what is usual for its "
      + "drafter at these hours of the week, once there are days enough to know it.",
      h("div", { class: "choice-line" }, choice), this.#grid, this.#foot);
  }

  /** @param {AutospecOverview} view */
  show(view) {
    const { cohorts, time, left_out: { cohorts: more } } = view;
    const { unit, seconds, shown } = SPANS[view.by];
    if (this.#x.min !== -shown) this.#cards.forEach(({ chart }) => chart.clear()); // another axis
    this.#x.min = -shown;
    this.#x.label = `${unit} ago`;
    this.#second = 1 / seconds;
    const labels = new Set(cohorts.map(({ cohort }) => cohort));
    for (const [label, card] of this.#cards) {
      if (labels.has(label)) continue;
      card.element.remove();
      this.#cards.delete(label);
    }
    for (const cohort of cohorts) this.#showCohort(cohort, time);
    this.#foot.replaceChildren(...[
      withoutCurves(view), leftOut(more, "cohorts, the smallest, are"),
    ].filter((part) => part !== null));
  }

  /** @param {ShownCohort} cohort @param {number} now */
  #showCohort(cohort, now) {
    const card = this.#cards.get(cohort.cohort) ?? this.#newCard(cohort.cohort);
    this.#grid.append(card.element); // in the order of the answer
    card.text.replaceChildren(...facts(cohort));
    card.marks.replaceChildren(...cohort.marks.map(({ time, kind, version }) => h("li", {},
      h("strong", {}, version), ` ${KINDS[kind].word}, ${ago(time, now)}`)));
    const { curve } = cohort;
    card.chart.plot.parentElement?.toggleAttribute("hidden", curve === null);
    if (curve === null) return;
    const x = curve.time.map((time) => (time - now) * this.#second);
    /** @type {Series[]} */
    const series = [{ label: "AL incl. bonus", colour: "--series-1", x, y: curve.al }];
    if (curve.expected.some((value) => value !== null)) {
      series.push({ label: "usual", colour: "--series-2", dash: DASH, x, y: curve.expected });
    }
    card.chart.draw({ series, happenings: this.#happenings(cohort.marks, now) });
  }

  /** Return what a chart shows of marks. @param {CohortMark[]} marks @param {number} now */
  #happenings(marks, now) {
    return marks.map(({ time, kind, version }) => (/** @type {Happening} */ ({
      x: (time - now) * this.#second,
      text: `${version} ${KINDS[kind].word}`,
      colour: KINDS[kind].colour,
    })));
  }

  /** @param {string} label */
  #newCard(label) {
    const text = h("div", { class: "facts" });
    const marks = h("ul", { class: "marks" });
    const element = h("article", { class: "cohort", dataset: { cohort: label } }, text);
    const chart = new Chart(element, {
      title: cohortName(label), x: this.#x, y: { label: "AL", atLeast: 2 }, height: HEIGHT,
      missing: "–",
    });
    element.append(marks);
    const card = { element, text, marks, chart };
    this.#cards.set(label, card);
    return card;
  }
}

/** @param {ShownCohort} shown */
function facts(shown) {
  const { cohort, requests, share, curve, drift } = shown;
  const traffic = requests
    ? `${number(requests, 6)} requests in the last week, ${percent(share)} of the rounds`
    : "no request with a draft in the last week";
  return [
    curve === null ? h("h3", {}, cohortName(cohort)) : null,
    who(shown),
    h("p", { class: "hint" }, `${traffic}.`),
    drift === null ? null : h("p", { class: "hint drift" }, driftText(drift)),
  ].filter((part) => part !== null);
}

/** Say who drafts for a cohort. @param {ShownCohort} cohort */
function who({ cohort, live, is_own: isOwn, shares, shared_because: because }) {
  const parts = Object.entries(shares);
  if (parts.length) {
    const text = parts.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
    return h("p", {}, h("strong", {}, text), h("span", { class: "more" }, because));
  }
  if (live === null) return h("p", {}, "No version of the store is live.");
  const whose = isOwn || cohort === "" ? "" : ", the version of all requests";
  return h("p", {}, h("strong", {}, live), ` drafts for it${whose}.`);
}

/** @param {CohortDrift} drift */
function driftText({ by_loop: isByLoop, reference_days: known, days, change, error, ...al }) {
  const { seen, expected } = al;
  const span = `the last ${number(days)} days`;
  if (change === null) {
    const so = seen === null ? "" : `; AL of ${span} is ${fixed(seen, 2)}`;
    return `Nothing is judged yet, with ${known} days of reference${so}.`;
  }
  const sure = error === null ? "" : ` (± ${percent(1.96 * error, 1)})`;
  return `${fixed(seen, 2)} in ${span} where ${fixed(expected, 2)} is usual: ${signed(change)}`
    + `${sure}${isByLoop ? ", by the loop" : ""}.`;
}

/** Say why there are no curves. @param {AutospecOverview} view */
function withoutCurves({ traces: { state, message }, cohorts }) {
  if (state === "none") {
    return nothing("This server writes no traces, so acceptance over time is not known. Start it "
      + "with them:", "paceline serve --drafter auto --autospec STORE --traces FOLDER");
  }
  if (state === "failed") {
    return h("p", { class: "error", role: "alert" }, `The traces cannot be read: ${message}`);
  }
  if (state === "reading") {
    return h("p", { class: "hint", role: "status" }, "The traces are being read; curves follow.");
  }
  return cohorts.some(({ curve }) => curve !== null) ? null
    : nothing("No request with a draft has ended yet. Curves come with the first one.");
}

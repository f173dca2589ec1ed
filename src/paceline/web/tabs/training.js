// Runs of training: how far each is, its loss and speed, and acceptance by set and position. Asked
// now and then, and only while somebody looks.

import { Asking } from "../lib/asking.js";
import { Chart } from "../lib/chart.js";
import { h } from "../lib/dom.js";
import { errorBox } from "../lib/errors.js";
import { fixed, number, percent, span } from "../lib/format.js";
import { getJson } from "../lib/http.js";

/** @import { RunState, TrainingRuns } from "../types/answers" */
/** @import { Series } from "../types/page" */

/** @typedef {{ element: HTMLElement, state: HTMLElement, facts: HTMLElement, sets: HTMLElement,
 *   lengths: Chart, loss: Chart }} Card */

const EVERY = 2_000; // milliseconds between two questions
const HEIGHT = 220;
const HOUR = 3600; // seconds
const COLOURS = 6; // of series that differ; more sets are dashed
const DASH = [5, 4];
/** @type {TrainingTab | null} */
let tab = null;

/** @param {HTMLElement} element */
export function mount(element) {
  tab = new TrainingTab(element);
}

export const show = () => tab?.show();
export const hide = () => tab?.hide();

class TrainingTab {
  #asking = new Asking(EVERY, () => this.#ask(), (error) => this.#complain(error));
  #trouble = h("div");
  #runs = h("div", { class: "runs" });
  /** @type {Map<string, Card>} by the run's folder */
  #cards = new Map();

  /** @param {HTMLElement} element */
  constructor(element) {
    element.append(h("h1", {}, "Training"), this.#trouble, this.#runs);
  }

  show() {
    this.#asking.show();
  }

  hide() {
    this.#asking.hide();
  }

  async #ask() {
    /** @type {TrainingRuns} */
    const { runs, errors } = await getJson("ui/training");
    for (const run of runs) this.#show(run);
    this.#trouble.replaceChildren(...Object.values(errors).map((text) => errorBox(text)));
  }

  /** @param {unknown} error */
  #complain(error) {
    if (!this.#trouble.hasChildNodes()) this.#trouble.append(errorBox(error));
  }

  /** @param {RunState} run */
  #show(run) {
    const card = this.#cards.get(run.folder) ?? this.#newCard(run.folder);
    card.state.className = run.is_running ? "state" : "state stale";
    card.state.textContent = stateOf(run);
    card.facts.replaceChildren(...facts(run));
    card.loss.draw({ series: [
      { label: "loss", colour: "--series-1", x: run.loss.step, y: run.loss.value },
    ] });
    card.lengths.draw({ series: [
      ...run.sets.map(({ name, kind, curve }, index) => (/** @type {Series} */ ({
        label: `${name}, ${kind}`, colour: `--series-${(index % COLOURS) + 1}`,
        x: curve.step, y: curve.value, ...(index < COLOURS ? {} : { dash: DASH }),
      }))),
    ] });
    card.sets.replaceChildren(...(run.sets.length ? [setTable(run)] : []));
  }

  /** @param {string} folder */
  #newCard(folder) {
    const state = h("span", { class: "state" });
    const info = h("div", { class: "facts" });
    const grid = h("div", { class: "grid" });
    const sets = h("div", {
      class: "scroll", tabIndex: 0, role: "region", "aria-label": "Acceptance by set and position",
    });
    const x = { label: "optimizer step", min: 0 };
    const lengths = new Chart(grid, {
      title: "AL incl. bonus by evaluation", x, y: { label: "AL", atLeast: 2 }, height: HEIGHT,
    });
    const loss = new Chart(grid, {
      title: "Loss", note: "Plain cross entropy of a slot, in nats.", x, y: { label: "nats" },
      height: HEIGHT,
    });
    const element = h("article", { class: "card", dataset: { run: folder } },
      h("div", { class: "head" }, h("h2", {}, folder), state), info, sets, grid);
    this.#runs.append(element);
    const card = { element, state, facts: info, sets, lengths, loss };
    this.#cards.set(folder, card);
    return card;
  }
}

/** Say what a run does. @param {RunState} run */
function stateOf({ is_running: isRunning, is_falling: isFalling, step }) {
  if (!isRunning) return step ? "no process is training in this folder" : "nothing is logged yet";
  return isFalling ? "training; the learning rate falls" : "training";
}

/** Return lines of how far and how fast a run is. @param {RunState} run */
function facts({ step, speed, forecast, fallen, gaps, loss, is_running: isRunning }) {
  const lines = [];
  if (speed) {
    const left = isRunning ? `, ${duration(speed.hours_left)} left` : "";
    lines.push(`Step ${number(step, 7)}, ${duration(speed.hours)} of steps${left}. Loss `
      + `${fixed(loss.value.at(-1), 3)} nats.`);
    if (loss.value.at(-1) === null) {
      lines.push("The loss is not a finite number any more: the run has diverged.");
    }
    const phases = Object.entries(speed.phases).map(([name, ms]) => `${name} ${number(ms)}`);
    lines.push(`${number(speed.slots_per_second)} slots/s, ${percent(speed.peak_share)} of the `
      + `matmul peak; a step takes ${number(speed.step_ms)} ms: ${phases.join(", ")}.`);
  } else {
    lines.push(`Step ${number(step, 7)}.`);
  }
  if (forecast && isRunning) {
    lines.push(`Forecast for the end: AL ${fixed(forecast.al, 2)} (${fixed(forecast.low, 2)} to `
      + `${fixed(forecast.high, 2)}).`);
  }
  for (const [name, gap] of Object.entries(gaps)) {
    lines.push(`Production gap of ${name}: AL ${fixed(gap, 2)}, held out minus foreign.`);
  }
  return [
    ...lines.map((line) => h("p", {}, line)),
    ...Object.entries(fallen).map(([name, share]) => (
      h("p", { class: "fallen" }, `AL fell by ${percent(share)} on ${name}.`))),
  ];
}

/** @param {number | null} hours */
const duration = (hours) => (hours === null ? "an unknown time" : span(HOUR * hours));

/** Return acceptance by set and position. @param {RunState} run */
function setTable({ sets }) {
  const most = Math.max(...sets.map(({ positions }) => positions.length));
  const places = Array.from({ length: most }, (_, place) => place);
  return h("table", {},
    h("thead", {}, h("tr", {},
      ["set", "AL", "best", ...places.map((place) => String(place + 1))].map((name) => (
        h("th", { scope: "col" }, name))))),
    h("tbody", {}, sets.map(({ name, kind, al, best, positions }) => h("tr", {},
      h("th", { scope: "row" }, `${name}, ${kind}`),
      h("td", {}, fixed(al, 2)), h("td", {}, fixed(best, 2)),
      places.map((place) => (
        h("td", {}, place < positions.length ? percent(positions[place] ?? null) : "")))))));
}

// The calculator's charts: each draws one answer of ui/predict.

import { Chart } from "../lib/chart.js";
import { seriesColour } from "../lib/colours.js";
import { choice, select } from "../lib/controls.js";
import { h } from "../lib/dom.js";
import { count, fixed, number, rate, times } from "../lib/format.js";
import { HeatMap } from "./heat.js";
import {
  MEASURED, NOT_FITTING, TIERS, TIER_NAMES, batchBands, byBatch, byLength, dot, fitBands, front,
  ifWhole, inTiers, noteOf, pinnedLines, shownPoints, style, unique,
} from "./series.js";
import { Stack } from "./stack.js";
import { deployment } from "./summary.js";

/** @import { MeasuredPoint, Prediction } from "../types/answers" */
/** @import { Axis } from "../types/page" */
/** @import { Tier } from "./series.js" */

/**
 * A chart, and what it needs: `overBatches` needs an answer with all batches.
 *
 * @typedef {{
 *   card: HTMLElement, draw: () => void, overBatches: boolean, seen: boolean, stale: boolean,
 * }} Cell
 */

/** @type {Axis} */
const SPEEDUP = { label: "speedup over AR (×)", min: 0, format: number };
/** @type {Axis} */
const LENGTH = { label: "draft length γ (tokens, bonus not counted)", format: ifWhole };
/** @type {Axis} */
const BATCH = { label: "batch (requests)", log: 2, format: String };
const LEVEL = { y: 1, text: "AR" };

export class Views {
  /** @type {Prediction | null} the latest answer, and the latest one with all batches */
  #answer = null;
  /** @type {Prediction | null} */
  #batches = null;
  /** @type {Prediction | null} */
  #pinned = null;
  #pinnedName = "";
  /** @type {MeasuredPoint[]} */
  #points = [];
  /** @type {Tier} */
  #tier = "calibrated";
  /** @type {((tier: Tier) => void)[]} press the tier in each choice of tiers */
  #chooseTier = [];
  #heatDrafter = select("calculator-heat", [], () => this.#refresh());
  #charts;
  /** @type {Cell[]} */
  #cells = [];
  // a chart is drawn when it comes into sight: a slider waits for none that nobody sees
  #sight = new IntersectionObserver((entries) => this.#see(entries), { rootMargin: "80px" });
  #parent;
  #pin;

  /** @param {HTMLElement} parent @param {HTMLElement} pin controls of the pinned scenario */
  constructor(parent, pin) {
    this.#parent = parent;
    this.#pin = pin;
    this.#heatDrafter.element.setAttribute("aria-label", "Drafter of the heat map");
    this.#charts = { ...this.#lineCharts(), ...this.#componentCharts(), ...this.#lastCharts() };
  }

  /**
   * Draw an answer. A brief one has one batch only: the charts over batches stay as they are.
   *
   * @param {Prediction} answer
   * @param {boolean} brief
   */
  draw(answer, brief) {
    this.#answer = answer;
    if (!brief) this.#batches = answer;
    this.#refresh(brief);
  }

  /** @param {MeasuredPoint[]} points */
  setPoints(points) {
    this.#points = points;
    this.#refresh();
  }

  /** Draw the curves of another scenario beside those of the answer. */
  setPinned(/** @type {Prediction | null} */ pinned, /** @type {string} */ name) {
    this.#pinned = pinned;
    this.#pinnedName = name;
    this.#refresh();
  }

  clear() {
    this.#answer = this.#batches = null;
    for (const chart of Object.values(this.#charts)) chart.clear();
  }

  // -- the charts ---------------------------------------------------------------------------------

  #lineCharts() {
    return {
      rates: new Chart(this.#cell((answer) => this.#drawRates(answer)), {
        title: "Tokens per second by draft length", height: 340, missing: NOT_FITTING,
        note: "Solid: calibrated with an engine's efficiency and overheads. Dashed: the roofline, "
          + "which no engine passes. A ring marks the optimum, dots are published measurements.",
        subject: () => this.#subject("batch", "context"),
        x: LENGTH, y: { label: "tok/s of a request", min: 0, format: number },
      }),
      curve: new Chart(this.#cell((answer) => this.#drawCurve(answer)), {
        title: "Speedup by draft length", height: 340, y: SPEEDUP, missing: NOT_FITTING,
        note: "The roofline's speedup is no upper bound: overheads slow steps without drafts too. "
          + "Dots are measured: published ones, and those that you paste below.",
        x: LENGTH, subject: () => this.#subject("batch", "context"),
      }),
      gain: new Chart(this.#cell((answer) => this.#drawGain(answer), { overBatches: true }), {
        title: "Best speedup by batch", x: BATCH, y: SPEEDUP, missing: NOT_FITTING,
        note: "At each batch with the draft length that is best there.", tools: this.#pin,
        subject: () => `${this.#subject("context")} ${this.#pinnedName}`,
      }),
      length: new Chart(this.#cell((answer) => this.#drawLength(answer), { overBatches: true }), {
        title: "Best draft length by batch", note: "0: speculation does not pay.", x: BATCH,
        missing: NOT_FITTING, subject: () => this.#subject("context"),
        y: { label: "draft length γ (tokens)", min: 0, format: ifWhole },
      }),
      context: new Chart(
        this.#cell((answer) => this.#drawContext(answer), { overBatches: true, wide: true }), {
          title: "Best speedup by context", y: SPEEDUP, missing: NOT_FITTING,
          subject: () => `${this.#subject("batch")} ${this.#pinnedName}`,
          note: "At the batch that is set (of pinned curves: that was set), and each context with "
            + "the draft length that is best there.",
          x: { label: "context (tokens of each request)", log: 2, format: String },
        }),
    };
  }

  #componentCharts() {
    return {
      stack: new Stack(this.#cell((answer) => this.#drawStack(answer)), {
        title: "Time of a token by component", tools: this.#tiers("Tier of the components"),
        note: "A round's time at the optimum ÷ the tokens that it commits (AL incl. bonus).",
      }),
      heat: new HeatMap(this.#cell((answer) => this.#drawHeat(answer), { overBatches: true }), {
        title: "Speedup by batch and draft length",
        note: "Circles: the best draft length of each batch.",
        subject: () => (
          `${this.#subject("context")} ${this.#heatDrafter.element.value}, ${this.#tier}.`),
        tools: [this.#heatDrafter.element, this.#tiers("Tier of the heat map")],
      }),
    };
  }

  #lastCharts() {
    return {
      pareto: new Chart(this.#cell((answer) => this.#drawPareto(answer), { overBatches: true }), {
        title: "Per user against per device",
        note: "Each line runs over the batches. Up and to the right is better.",
        subject: () => this.#subject("context"),
        x: { label: "tok/s of one request", min: 0, format: number },
        y: { label: "tok/s of one device", log: 10, format: count },
      }),
      scatter: new Chart(this.#cell((answer) => this.#drawScatter(answer)), {
        title: "Speedup against AL", y: SPEEDUP,
        subject: () => this.#subject("batch", "context"),
        note: "The line y = x is what free drafts would give. Curves: this scenario by draft "
          + "length. Dots: measured, paste them below.",
        x: { label: "AL incl. bonus (tokens a round)", min: 1, format: number },
      }),
    };
  }

  /**
   * Return a card for a chart.
   *
   * @param {(answer: Prediction) => void} draw gets the latest answer that the chart can use
   * @param {{ wide?: boolean, overBatches?: boolean }} options
   */
  #cell(draw, { wide = false, overBatches = false } = {}) {
    const card = h("div", { class: wide ? "card wide" : "card" });
    const drawLatest = () => {
      const answer = overBatches ? this.#batches : this.#answer;
      if (answer !== null) draw(answer);
    };
    this.#cells.push({ card, draw: drawLatest, overBatches, seen: false, stale: false });
    this.#parent.append(card);
    this.#sight.observe(card);
    return card;
  }

  /** Return what a saved picture shows. @param {("batch" | "context")[]} load that is no axis */
  #subject(...load) {
    if (this.#answer === null) return "";
    const { scenario } = this.#answer;
    const sizes = load.map((name) => `, ${name} ${scenario[name]}`);
    return `${deployment(this.#answer)}${sizes.join("")}.`;
  }

  /** @param {string} label */
  #tiers(label) {
    const { element, choose } = choice(label, TIERS, this.#tier, (tier) => {
      this.#tier = tier;
      for (const press of this.#chooseTier) press(tier);
      this.#refresh();
    });
    this.#chooseTier.push(choose);
    return element;
  }

  // -- what is in sight ---------------------------------------------------------------------------

  #refresh(brief = false) {
    for (const cell of this.#cells) cell.stale ||= !(brief && cell.overBatches);
    this.#drawSeen();
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #see(entries) {
    for (const { target, isIntersecting } of entries) {
      for (const cell of this.#cells) if (cell.card === target) cell.seen = isIntersecting;
    }
    this.#drawSeen();
  }

  #drawSeen() {
    if (this.#answer === null) return;
    for (const cell of this.#cells) {
      if (!cell.seen || !cell.stale || (cell.overBatches && !this.#batches)) continue;
      cell.stale = false;
      cell.draw();
    }
  }

  // -- drawing ------------------------------------------------------------------------------------

  /** @param {Prediction} answer */
  #drawRates({ drafters, published, scenario: { batch } }) {
    this.#charts.rates.draw({
      ...byLength(drafters, "tokens_per_second_per_request", rate),
      dots: published.filter((point) => point.batch === batch).flatMap((point) => {
        const { tokens_per_second: all, draft_length: x } = point;
        return all === null ? []
          : [{
            x, y: all / batch, note: `${rate(all / batch)}: ${noteOf(point)}`, colour: MEASURED,
          }];
      }),
    });
  }

  /** @param {Prediction} answer */
  #drawCurve({ drafters, published, scenario: { batch } }) {
    const points = [...shownPoints(published), ...this.#points];
    this.#charts.curve.draw({
      ...byLength(drafters, "speedup", times),
      dots: points.filter((point) => (point.batch ?? batch) === batch)
        .flatMap((point) => (point.draft_length === null ? [] : [dot(point.draft_length, point)])),
      rulers: [LEVEL],
    });
  }

  /** @param {Prediction} answer */
  #drawGain({ drafters }) {
    this.#charts.gain.draw({
      series: [
        ...pinnedLines(this.#pinned, ({ by_batch: best }) => (
          { x: best.batch, y: best.calibrated.speedup })),
        ...byBatch(drafters, "speedup"),
      ],
      rulers: [LEVEL],
      bands: batchBands(drafters),
    });
  }

  /** @param {Prediction} answer */
  #drawContext({ drafters }) {
    const views = drafters.flatMap(({ by_context: view }) => (view === null ? [] : [view]));
    this.#charts.context.draw({
      series: [
        ...pinnedLines(this.#pinned, ({ by_context: view }) => (
          { x: view?.context ?? [], y: view?.calibrated.speedup ?? [] })),
        ...inTiers(drafters, ({ by_context: view }, tier) => (
          { x: view?.context ?? [], y: view?.[tier].speedup ?? [] })),
      ],
      rulers: [LEVEL],
      bands: views.length ? fitBands(views[0].context, views) : [],
    });
  }

  /** @param {Prediction} answer */
  #drawLength({ drafters }) {
    const series = byBatch(drafters, "draft_length");
    this.#charts.length.draw({
      series: series.map((line) => ({ ...line, stepped: true })), bands: batchBands(drafters),
    });
  }

  /** @param {Prediction} answer */
  #drawPareto({ drafters, ar_by_batch: plain }) {
    const ar = TIER_NAMES.map((tier) => (
      { label: `AR, ${tier}`, colour: "--soft", ...style(tier), ...front(plain[tier]) }));
    const others = inTiers(drafters, (drafter, tier) => front(drafter.by_batch[tier]));
    this.#charts.pareto.draw({ series: [...ar, ...others] });
  }

  /** @param {Prediction} answer */
  #drawScatter({ drafters, published }) {
    this.#charts.scatter.draw({
      series: inTiers(drafters, ({ curve }, tier) => (
        unique({ x: curve.acceptance_length, y: curve[tier].speedup }))),
      dots: [...shownPoints(published), ...this.#points]
        .map((point) => dot(point.acceptance_length, point)),
      rulers: [{ slope: 1, text: "y = x" }],
    });
  }

  /** @param {Prediction} answer */
  #drawStack({ ar, drafters }) {
    const tier = this.#tier;
    this.#charts.stack.draw([
      { label: "AR", components: ar[tier].components, tokens: 1 },
      ...drafters.flatMap(({ name, optimum }) => {
        if (optimum === null) return [];
        const { draft_length: length, acceptance_length: al, components } = optimum[tier];
        return [{ label: `${name}, γ = ${length}, AL ${fixed(al, 2)}`, components, tokens: al }];
      }),
    ]);
  }

  /** @param {Prediction} answer */
  #drawHeat({ drafters }) {
    const names = drafters.map(({ name }) => name);
    const { element } = this.#heatDrafter;
    if ([...element.options].map(({ value }) => value).join() !== names.join()) {
      const chosen = element.value;
      element.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
      element.value = names.includes(chosen) ? chosen : names[0];
    }
    const index = names.indexOf(element.value);
    const { batch, draft_length: lengths, [this.#tier]: values } = drafters[index].heat_map;
    this.#charts.heat.draw({ batches: batch, lengths, values, accent: seriesColour(index) });
  }
}

// The calculator's charts: each draws one answer of ui/predict.

import { Chart } from "../lib/chart.js";
import { seriesColour } from "../lib/colours.js";
import { choice, select } from "../lib/controls.js";
import { h } from "../lib/dom.js";
import { count, fixed, number, times } from "../lib/format.js";
import { HeatMap } from "./heat.js";
import { Stack } from "./stack.js";

/** @import { BestNumbers, DrafterAnswer, MeasuredPoint } from "../types/answers" */
/** @import { Prediction, Throughput } from "../types/answers" */
/** @import { Axis, Dot, Mark, Series } from "../types/page" */

/** @typedef {"ceiling" | "calibrated"} Tier */
/** @typedef {{ x: number[], y: (number | null)[] }} Line */
/**
 * A chart, and what it needs: `overBatches` needs an answer with all batches.
 *
 * @typedef {{
 *   card: HTMLElement, draw: () => void, overBatches: boolean, seen: boolean, stale: boolean,
 * }} Cell
 */

const TIERS = { ceiling: "ceiling", calibrated: "calibrated" };
const TIER_NAMES = /** @type {Tier[]} */ (Object.keys(TIERS));
const DASH = [6, 4];
/** @type {Axis} */
const SPEEDUP = { label: "speedup over AR (×)", min: 0, format: number };
/** @type {Axis} */
const BATCH = { label: "batch (requests)", log: 2, format: String };
const LEVEL = { y: 1, text: "AR" };
const MEASURED = "--series-6";

export class Views {
  /** @type {Prediction | null} the latest answer, and the latest one with all batches */
  #answer = null;
  /** @type {Prediction | null} */
  #batches = null;
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

  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.#parent = parent;
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

  clear() {
    this.#answer = this.#batches = null;
    for (const chart of Object.values(this.#charts)) chart.clear();
  }

  // -- the charts ---------------------------------------------------------------------------------

  #lineCharts() {
    return {
      curve: new Chart(this.#cell((answer) => this.#drawCurve(answer), { wide: true }), {
        title: "Speedup by draft length", height: 340, y: SPEEDUP,
        note: "Solid: ceiling, the pure roofline. Dashed: calibrated with efficiencies and "
          + "overheads. A ring marks the optimum, dots are measured.",
        x: { label: "draft length γ (tokens, bonus not counted)", format: ifWhole },
      }),
      gain: new Chart(this.#cell((answer) => this.#drawGain(answer), { overBatches: true }), {
        title: "Best speedup by batch", x: BATCH, y: SPEEDUP,
        note: "At each batch with the draft length that is best there.",
      }),
      length: new Chart(this.#cell((answer) => this.#drawLength(answer), { overBatches: true }), {
        title: "Best draft length by batch", note: "0: speculation does not pay.", x: BATCH,
        y: { label: "draft length γ (tokens)", min: 0, format: ifWhole },
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
        tools: [this.#heatDrafter.element, this.#tiers("Tier of the heat map")],
      }),
    };
  }

  #lastCharts() {
    return {
      pareto: new Chart(this.#cell((answer) => this.#drawPareto(answer), { overBatches: true }), {
        title: "Per user against per device",
        note: "Each line runs over the batches. Up and to the right is better.",
        x: { label: "tok/s of one request", min: 0, format: number },
        y: { label: "tok/s of one device", log: 10, format: count },
      }),
      scatter: new Chart(this.#cell((answer) => this.#drawScatter(answer)), {
        title: "Speedup against AL", y: SPEEDUP,
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
  #drawCurve({ drafters, scenario: { batch } }) {
    this.#charts.curve.draw({
      series: inTiers(drafters, ({ curve }, tier) => (
        { x: curve.draft_length, y: curve[tier].speedup })),
      marks: drafters.flatMap((drafter, index) => (
        TIER_NAMES.map((tier) => optimumMark(drafter, tier, index)))),
      dots: this.#points.filter((point) => (point.batch ?? batch) === batch)
        .flatMap((point) => (point.draft_length === null ? [] : [dot(point.draft_length, point)])),
      rulers: [LEVEL],
    });
  }

  /** @param {Prediction} answer */
  #drawGain({ drafters }) {
    this.#charts.gain.draw({ series: byBatch(drafters, "speedup"), rulers: [LEVEL] });
  }

  /** @param {Prediction} answer */
  #drawLength({ drafters }) {
    const series = byBatch(drafters, "draft_length");
    this.#charts.length.draw({ series: series.map((line) => ({ ...line, stepped: true })) });
  }

  /** @param {Prediction} answer */
  #drawPareto({ drafters, ar_by_batch: plain }) {
    const ar = TIER_NAMES.map((tier) => (
      { label: `AR, ${tier}`, colour: "--soft", ...style(tier), ...front(plain[tier]) }));
    const others = inTiers(drafters, (drafter, tier) => front(drafter.by_batch[tier]));
    this.#charts.pareto.draw({ series: [...ar, ...others] });
  }

  /** @param {Prediction} answer */
  #drawScatter({ drafters }) {
    this.#charts.scatter.draw({
      series: inTiers(drafters, ({ curve }, tier) => (
        unique({ x: curve.acceptance_length, y: curve[tier].speedup }))),
      dots: this.#points.map((point) => dot(point.acceptance_length, point)),
      rulers: [{ slope: 1, text: "y = x" }],
    });
  }

  /** @param {Prediction} answer */
  #drawStack({ ar, drafters }) {
    const tier = this.#tier;
    this.#charts.stack.draw([
      { label: "AR", components: ar[tier].components, tokens: 1 },
      ...drafters.map(({ name, optimum }) => {
        const { draft_length: length, acceptance_length: al, components } = optimum[tier];
        return { label: `${name}, γ = ${length}, AL ${fixed(al, 2)}`, components, tokens: al };
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

/** @param {number} value */
const ifWhole = (value) => (Number.isInteger(value) ? String(value) : "");

/** @param {Tier} tier */
const style = (tier) => (tier === "ceiling" ? {} : { dash: DASH });

/**
 * Return a series for each drafter and tier.
 *
 * @param {DrafterAnswer[]} drafters
 * @param {(drafter: DrafterAnswer, tier: Tier) => Line} line
 * @returns {Series[]}
 */
const inTiers = (drafters, line) => drafters.flatMap((drafter, index) => TIER_NAMES.map((tier) => (
  {
    label: `${drafter.name}, ${tier}`, colour: seriesColour(index), ...style(tier),
    ...line(drafter, tier),
  })));

/** @param {DrafterAnswer[]} drafters @param {keyof BestNumbers} name */
const byBatch = (drafters, name) => inTiers(drafters, ({ by_batch: best }, tier) => (
  { x: best.batch, y: best[tier][name] }));

/** @param {DrafterAnswer} drafter @param {Tier} tier @param {number} index @returns {Mark} */
function optimumMark({ optimum }, tier, index) {
  const { draft_length: x, speedup: y } = optimum[tier];
  return {
    x, y, colour: seriesColour(index),
    text: tier === "ceiling" ? `γ* = ${x}, ${times(y)}` : "",
    below: optimum.calibrated.speedup >= y,
  };
}

/** Return speeds per device over speeds per request, for the batches that fit. */
function front(/** @type {Throughput} */ numbers) {
  const devices = numbers.tokens_per_second_per_device;
  /** @type {[number, number | null][]} */
  const points = numbers.tokens_per_second_per_request.flatMap((value, index) => (
    value === null ? [] : [[value, devices[index]]]));
  points.sort(([left], [right]) => left - right);
  return { x: points.map(([x]) => x), y: points.map(([, y]) => y) };
}

/** Return a line without the later of two points at the same x, which a table cannot hold. */
function unique(/** @type {Line} */ { x, y }) {
  const isFirst = x.map((value, index) => x.indexOf(value) === index);
  return { x: x.filter((_, index) => isFirst[index]), y: y.filter((_, index) => isFirst[index]) };
}

/** @param {number} x @param {MeasuredPoint} point @returns {Dot} */
function dot(x, { acceptance_length: al, speedup, note }) {
  const about = note ? `${note}: ` : "";
  const text = `${about}${times(speedup)} at AL ${fixed(al, 2)} incl. bonus`;
  return { x, y: speedup, note: text, colour: MEASURED };
}

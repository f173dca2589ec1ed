// The calculator's charts: each knows how to draw one answer of ui/predict.

import { choice, select } from "../lib/controls.js";
import { chart } from "../lib/chart.js";
import { h } from "../lib/dom.js";
import { count, fixed, number, times } from "../lib/format.js";
import { HeatMap } from "./heat.js";
import { Stack } from "./stack.js";

const TIERS = { ceiling: "ceiling", calibrated: "calibrated" };
const DASH = [6, 4];
const speedup = { label: "speedup over AR (×)", min: 0, format: (value) => `${number(value)}` };
const whole = (value) => (Number.isInteger(value) ? String(value) : "");
const rule = { y: 1, text: "AR" };
const tint = (index) => `--series-${index + 1}`;

export class Views {
  constructor(parent) {
    // charts that nobody sees are drawn when they come into sight: a slider waits for none of them
    this.cells = [];
    const sight = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "80px" });
    const cell = (draw, { wide = false, overBatches = false } = {}) => {
      const card = h("div", { class: wide ? "card wide" : "card" });
      parent.append(card);
      this.cells.push({ card, draw, overBatches, seen: false, stale: false });
      sight.observe(card);
      return card;
    };
    this.answer = null;
    this.points = [];
    this.tier = "calibrated";
    this.curve = chart(cell(() => this.#drawCurve(), { wide: true }), { title: "Speedup by draft length", height: 340,
      note: "Solid: ceiling, the pure roofline. Dashed: calibrated with efficiencies and overheads. A ring marks the optimum, dots are measured.",
      x: { label: "draft length γ (tokens, bonus not counted)", format: whole }, y: speedup });
    const batch = { label: "batch (requests)", log: 2, format: String };
    this.gain = chart(cell(() => this.#drawGain(), { overBatches: true }), { title: "Best speedup by batch", note: "At each batch with the draft length that is best there.", x: batch, y: speedup });
    this.length = chart(cell(() => this.#drawLength(), { overBatches: true }), { title: "Best draft length by batch", note: "0: speculation does not pay.",
      x: batch, y: { label: "draft length γ (tokens)", min: 0, format: whole } });
    this.stack = new Stack(cell(() => this.#drawStack()), { title: "Time of a token by component", tools: this.#tiers("Tier of the components"),
      note: "A round's time at the optimum ÷ the tokens that it commits (AL incl. bonus)." });
    this.heat = new HeatMap(cell(() => this.#drawHeat(), { overBatches: true }), { title: "Speedup by batch and draft length", note: "Circles: the best draft length of each batch.",
      tools: [this.#drafterChoice(), this.#tiers("Tier of the heat map")] });
    this.pareto = chart(cell(() => this.#drawPareto(), { overBatches: true }), { title: "Per user against per device", note: "Each line runs over the batches; up and to the right is better.",
      x: { label: "tok/s of one request", min: 0, format: number }, y: { label: "tok/s of one device", log: 10, format: count } });
    this.scatter = chart(cell(() => this.#drawScatter()), { title: "Speedup against AL", note: "The line y = x is what free drafts would give. Curves: this scenario by draft length; dots: measured, paste them below.",
      x: { label: "AL incl. bonus (tokens a round)", min: 1, format: number }, y: speedup });
  }

  /** A `brief` answer knows one batch only: the charts over batches stay as they are. */
  draw(answer, brief) {
    this.answer = answer;
    if (!brief) this.batches = answer;
    this.#refresh(brief);
  }

  setPoints(points) {
    this.points = points;
    this.#refresh();
  }

  clear() {
    this.answer = this.batches = null;
    for (const each of [this.curve, this.gain, this.length, this.stack, this.heat, this.pareto, this.scatter]) each.clear();
  }

  // -- inside --------------------------------------------------------------------------------------

  #refresh(brief = false) {
    for (const each of this.cells) each.stale ||= !(brief && each.overBatches);
    this.#drawSeen();
  }

  #seen(entries) {
    for (const { target, isIntersecting } of entries) {
      this.cells.find(({ card }) => card === target).seen = isIntersecting;
    }
    this.#drawSeen();
  }

  #drawSeen() {
    if (!this.answer) return;
    for (const each of this.cells) {
      if (!each.seen || !each.stale || (each.overBatches && !this.batches)) continue;
      each.stale = false;
      each.draw();
    }
  }

  #tiers(label) {
    const control = choice(label, TIERS, this.tier, (tier) => {
      this.tier = tier;
      for (const other of this.tierControls) if (other !== control) other.choose(tier);
      this.#refresh();
    });
    (this.tierControls ??= []).push(control);
    return control;
  }

  #drafterChoice() {
    this.heatDrafter = select("calculator-heat", [], () => this.#refresh());
    this.heatDrafter.element.setAttribute("aria-label", "Drafter of the heat map");
    return this.heatDrafter.element;
  }

  #drawCurve() {
    const { drafters, scenario: { batch } } = this.answer;
    this.curve.draw({
      series: both(drafters, (drafter, tier) => [drafter.curve.draft_length, drafter.curve[tier].speedup]),
      marks: drafters.flatMap((drafter, index) => Object.keys(TIERS).map((tier) => {
        const best = drafter.optimum[tier];
        const text = tier === "ceiling" ? `γ* = ${best.draft_length}, ${times(best.speedup)}` : "";
        const below = drafter.optimum.calibrated.speedup >= best.speedup;
        return { x: best.draft_length, y: best.speedup, text, below, colour: tint(index) };
      })),
      dots: this.points.filter((point) => point.draft_length !== null && (point.batch ?? batch) === batch)
        .map((point) => ({ x: point.draft_length, y: point.speedup, note: described(point), colour: "--series-6" })),
      rulers: [rule],
    });
  }

  #byBatch(name) {
    return both(this.batches.drafters, (drafter, tier) => [drafter.by_batch.batch, drafter.by_batch[tier][name]]);
  }

  #drawGain() {
    this.gain.draw({ series: this.#byBatch("speedup"), rulers: [rule] });
  }

  #drawLength() {
    this.length.draw({ series: this.#byBatch("draft_length").map((one) => ({ ...one, stepped: true })) });
  }

  #drawPareto() {
    const { drafters, ar_by_batch: plain } = this.batches;
    const line = (source, tier, rest) => {
      const x = source[tier].tokens_per_second_per_request;
      const points = x.map((value, i) => [value, source[tier].tokens_per_second_per_device[i]]).filter(([value]) => value !== null)
        .sort((a, b) => a[0] - b[0]);
      return { x: points.map(([value]) => value), y: points.map(([, value]) => value), ...rest };
    };
    const series = Object.keys(TIERS).map((tier) => line(plain, tier, { label: `AR, ${tier}`, colour: "--soft", ...style(tier) }));
    drafters.forEach((drafter, index) => Object.keys(TIERS).forEach((tier) => series.push(
      line(drafter.by_batch, tier, { label: `${drafter.name}, ${tier}`, colour: tint(index), ...style(tier) }))));
    this.pareto.draw({ series });
  }

  #drawScatter() {
    const { drafters } = this.answer;
    this.scatter.draw({
      series: both(drafters, (drafter, tier) => [drafter.curve.acceptance_length, drafter.curve[tier].speedup]).map(unique),
      dots: this.points.map((point) => ({ x: point.acceptance_length, y: point.speedup, note: described(point), colour: "--series-6" })),
      rulers: [{ slope: 1, text: "y = x" }],
    });
  }

  #drawStack() {
    const { tier, answer: { ar, drafters } } = this;
    this.stack.draw([
      { label: "AR", components: ar[tier].components, tokens: 1 },
      ...drafters.map(({ name, optimum }) => ({
        label: `${name}, γ = ${optimum[tier].draft_length}, AL ${fixed(optimum[tier].acceptance_length, 2)}`,
        components: optimum[tier].components, tokens: optimum[tier].acceptance_length,
      })),
    ]);
  }

  #drawHeat() {
    const { tier, batches: { drafters } } = this;
    const names = drafters.map(({ name }) => name);
    const { element } = this.heatDrafter;
    if ([...element.options].map((option) => option.value).join() !== names.join()) {
      const chosen = element.value;
      element.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
      element.value = names.includes(chosen) ? chosen : names[0];
    }
    const index = names.indexOf(element.value);
    const map = drafters[index].heat_map;
    this.heat.draw({ batches: map.batch, lengths: map.draft_length, values: map[tier], accent: tint(index) });
  }
}

const style = (tier) => (tier === "ceiling" ? {} : { dash: DASH });

/** A series for each drafter and tier. `values(drafter, tier)` gives [x, y]. */
function both(drafters, values) {
  return drafters.flatMap((drafter, index) => Object.keys(TIERS).map((tier) => {
    const [x, y] = values(drafter, tier);
    return { label: `${drafter.name}, ${tier}`, x, y, colour: tint(index), ...style(tier) };
  }));
}

/** Without the later of two points at the same x, which a joined table could not hold. */
function unique(one) {
  const keep = one.x.map((value, i) => one.x.indexOf(value) === i);
  return { ...one, x: one.x.filter((_, i) => keep[i]), y: one.y.filter((_, i) => keep[i]) };
}

function described({ acceptance_length: al, speedup: value, note }) {
  return `${note ? `${note}: ` : ""}${times(value)} at AL ${fixed(al, 2)} incl. bonus`;
}

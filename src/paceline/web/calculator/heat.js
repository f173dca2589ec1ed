// A heat map of the speedup over batch and draft length. The pointer or the arrow keys read it.

import { Chart } from "../lib/chart.js";
import { channels, colour, onThemeChange } from "../lib/colours.js";
import { h } from "../lib/dom.js";
import { times } from "../lib/format.js";

/** @import { Axis, Cell, Child, Ramp } from "../types/page" */

/**
 * `values[b][g]` are speedups; null stands for a draft that does not fit the memory at the batch.
 *
 * @typedef {{
 *   batches: number[], lengths: number[], values: (number | null)[][], accent: string,
 * }} HeatData
 */
/** @typedef {[batch: number, length: number]} Place  indexes into batches and lengths */

const HEIGHT = 310;
const BESIDE = 70; // pixels of the chart that are no cells
/** @type {{ [key: string]: Place }} */
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export class HeatMap {
  #chart;
  #x;
  #y;
  #scale = h("p", { class: "heat-scale" });
  #readout = h("output", { class: "readout", "aria-live": "polite" });
  /** @type {HeatData | null} */
  #data = null;
  /** @type {Place | null} */
  #place = null;

  /**
   * @param {HTMLElement} parent
   * @param {{ title: string, note: string, tools: Child, subject: () => string }} options
   */
  constructor(parent, { title, note, tools, subject }) {
    this.#x = indexAxis("batch (requests)", 40, (width) => width);
    this.#y = indexAxis("draft length γ (tokens)", 18, () => HEIGHT);
    this.#chart = new Chart(parent, {
      title, note, subject, height: HEIGHT, table: false, x: this.#x.axis, y: this.#y.axis,
      tools: h("div", { class: "heat-tools" }, tools),
    });
    const { plot } = this.#chart;
    plot.classList.add("heat");
    plot.tabIndex = 0;
    plot.setAttribute("aria-label", `${title}. Arrow keys move from cell to cell`);
    plot.addEventListener("pointermove", (event) => this.#onPointer(event));
    plot.addEventListener("pointerleave", () => this.#choose(null));
    plot.addEventListener("keydown", (event) => this.#onKey(event));
    plot.after(h("div", { class: "heat-foot" }, this.#scale, this.#readout));
    onThemeChange(() => this.#paint());
  }

  /** @param {HeatData} data */
  draw(data) {
    const { batches, lengths } = data;
    this.#data = data;
    this.#x.show(batches);
    this.#y.show(lengths);
    const [batch, length] = this.#place ?? [0, 0];
    if (batch >= batches.length || length >= lengths.length) this.#place = null;
    this.#paint();
    this.#read();
  }

  clear() {
    this.#data = this.#place = null;
    this.#chart.clear();
    this.#scale.replaceChildren();
    this.#readout.textContent = "";
  }

  // -- inside -------------------------------------------------------------------------------------

  #paint() {
    if (this.#data === null) return;
    const { values, accent } = this.#data;
    const top = Math.max(1.05, ...values.flat().filter((value) => value !== null));
    const shade = shader(colour("--card"), colour(accent), colour("--bad"), top);
    const isWhole = values.flat().every((value) => value !== null);
    /** @type {Ramp} */
    const ramp = {
      low: "slower than AR", high: times(top), hatched: isWhole ? "" : "does not fit the memory",
      stops: [[0, shade(0.5)], [0.33, shade(1)], [1, shade(top)]],
    };
    this.#chart.draw({
      series: [{
        label: "best draft length", colour: "--ink", circles: true,
        x: values.map((_, batch) => batch), y: values.map(bestLength),
      }],
      cells: this.#cells(shade),
      ramp,
    });
    const stops = ramp.stops.map(([place, fill]) => `${fill} ${100 * place}%`);
    const background = `linear-gradient(to right, ${stops.join(", ")})`;
    this.#scale.replaceChildren(
      `${ramp.low} `, h("span", { class: "ramp", style: { background } }), ` ${ramp.high}`,
      ramp.hatched && h("span", { class: "not-fitting" }, h("span", { class: "hatch" }),
        ramp.hatched));
  }

  /** @param {(value: number) => string} shade @returns {Cell[]} */
  #cells(shade) {
    if (this.#data === null) return [];
    const { lengths, values } = this.#data;
    const [batch, length] = this.#place ?? [];
    return values.flatMap((column, x) => lengths.map((_, y) => {
      const value = column[y];
      const fill = value === null ? null : shade(value);
      return { x, y, fill, outlined: x === batch && y === length };
    }));
  }

  /** @param {PointerEvent} event */
  #onPointer(event) {
    this.#choose(this.#chart.unitAt(event));
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const move = MOVES[event.key];
    if (!move || this.#data === null) return;
    event.preventDefault();
    const [batch, length] = this.#place ?? [0, 0];
    const { batches, lengths } = this.#data;
    this.#choose([
      within(batch + move[0], batches.length), within(length + move[1], lengths.length),
    ]);
  }

  /** @param {Place | null} place */
  #choose(place) {
    if (String(place) === String(this.#place)) return;
    this.#place = place;
    this.#paint();
    this.#read();
  }

  #read() {
    if (this.#data === null || this.#place === null) {
      this.#readout.textContent = "";
      return;
    }
    const [batch, length] = this.#place;
    const { batches, lengths, values } = this.#data;
    const value = values[batch]?.[length] ?? null;
    const result = value === null ? "does not fit the memory" : times(value);
    this.#readout.textContent = `batch ${batches[batch]}, γ = ${lengths[length]}: ${result}`;
  }
}

/**
 * Return an axis over the indexes of a list, labelled with its values as far as there is space.
 *
 * @param {string} label
 * @param {number} space pixels that a label takes
 * @param {(width: number) => number} lengthOf length of the axis by the width of the chart
 */
function indexAxis(label, space, lengthOf) {
  /** @type {number[]} */
  let values = [];
  /** @type {Axis} */
  const axis = {
    label,
    format: (index) => String(values[index] ?? ""),
    ticks: (width) => {
      const every = Math.max(1, Math.ceil((space * values.length) / (lengthOf(width) - BESIDE)));
      return values.map((_, index) => index).filter((index) => index % every === 0);
    },
  };
  /** Take the list. @param {number[]} list */
  const show = (list) => {
    values = list;
    axis.min = -0.5;
    axis.max = list.length - 0.5;
  };
  return { axis, show };
}

/**
 * Return the index of the best speedup of a batch; null where no draft fits.
 *
 * @param {(number | null)[]} column
 */
function bestLength(column) {
  if (column.slice(1).every((value) => value === null)) return null;
  const speedups = column.map((value) => value ?? 0);
  return speedups.indexOf(Math.max(...speedups));
}

/** @param {number} index @param {number} length */
const within = (index, length) => Math.max(0, Math.min(index, length - 1));

/**
 * Return a function from speedups to colours: towards `bad` below 1, towards `good` above it, which
 * `top` reaches.
 *
 * @param {string} card
 * @param {string} good
 * @param {string} bad
 * @param {number} top
 */
function shader(card, good, bad, top) {
  const base = channels(card);
  return (/** @type {number} */ value) => {
    if (Math.abs(value - 1) < 1e-6) return `rgb(${base.join(" ")})`;
    const share = value >= 1 ? (value - 1) / (top - 1) : Math.min((1 - value) / 0.5, 1);
    const target = channels(value >= 1 ? good : bad);
    const part = 0.06 + 0.94 * share;
    const mixed = base.map((from, index) => Math.round(from + (target[index] - from) * part));
    return `rgb(${mixed.join(" ")})`;
  };
}

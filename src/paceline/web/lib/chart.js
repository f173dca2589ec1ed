// Charts with axes, drawn by uPlot in the page's colours: a legend that follows the pointer, marks,
// dots and cells, and the same numbers as a table for those who cannot see or hover.

import uPlot from "../vendor/uPlot.esm.js";
import { axis, rangeOf, scale } from "./axes.js";
import { colour, onThemeChange } from "./colours.js";
import { download, h } from "./dom.js";
import { figure, Legend, swatch } from "./figure.js";
import { number } from "./format.js";
import { drawOverlay, drawUnderlay, nearestDot } from "./layers.js";
import { picture } from "./picture.js";

/** @import { Axis, ChartData, Child, Range, Series } from "../types/page" */

const PICTURE = { width: 760, height: 400 }; // of a saved chart, whatever the page's width
const AIR = { x: 0.04, y: 0.08 }; // share of the range that stays free beyond the values

/**
 * `table` puts the numbers below the chart as a table, `tools` are controls above it. The labels of
 * axes say the unit; `missing` are the words for a null in the table, `subject` those below the
 * title of a saved picture.
 *
 * @typedef {{
 *   title: string, note?: string | null, x: Axis, y: Axis, height?: number, table?: boolean,
 *   tools?: Child, missing?: string, subject?: () => string,
 * }} ChartOptions
 */

export class Chart {
  plot;
  #options;
  #legend = new Legend();
  #tip = h("div", { class: "tip", hidden: true });
  #table;
  #picture;
  /** @type {ChartData | null} */
  #data = null;
  /** @type {string | null} the series as they were when the plot was made */
  #shape = null;
  /** @type {uPlot | null} */
  #uplot = null;

  /** @param {HTMLElement} parent @param {ChartOptions} options */
  constructor(parent, options) {
    const { title, note = null, height = 280, table = true, tools = null } = options;
    this.#options = { ...options, height };
    this.plot = h("div", {
      class: "plot", role: "img", "aria-label": title, style: { minHeight: `${height}px` },
    });
    this.#table = table ? h("details", { class: "numbers" }, h("summary", {}, "Numbers")) : null;
    this.#table?.addEventListener("toggle", () => this.#fillTable());
    this.#picture = h("button", {
      type: "button", class: "quiet", disabled: true, "aria-label": `Save PNG of “${title}”`,
      on: { click: () => this.#save() },
    }, "Save PNG");
    const foot = h("div", { class: "chart-foot" }, this.#table, this.#picture);
    parent.append(figure(title, note, tools, this.#legend.element, this.plot, foot));
    new ResizeObserver(() => this.#resize()).observe(this.plot);
    onThemeChange(() => { if (this.#data) this.#rebuild(this.#data); });
  }

  /** @param {ChartData} data */
  draw(data) {
    this.#data = data;
    this.#picture.disabled = false;
    const shape = JSON.stringify(data.series.map((series) => ({ ...series, x: [], y: [] })));
    if (this.#uplot === null || shape !== this.#shape) {
      this.#shape = shape;
      this.#rebuild(data);
    } else {
      this.#uplot.setData(aligned(data));
      this.#showValues(this.#uplot, null);
    }
    this.#fillTable();
  }

  clear() {
    this.#uplot?.destroy();
    this.#uplot = this.#data = this.#shape = null;
    this.#picture.disabled = true;
    this.#legend.show([]);
    this.#fillTable();
  }

  /**
   * Return the whole numbers [x, y] nearest to a pointer; null outside of the axes.
   *
   * @param {PointerEvent} event
   * @returns {[number, number] | null}
   */
  unitAt(event) {
    if (this.#uplot === null) return null;
    const box = this.#uplot.over.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    if (left < 0 || top < 0 || left >= box.width || top >= box.height) return null;
    return [
      Math.round(this.#uplot.posToVal(left, "x")), Math.round(this.#uplot.posToVal(top, "y")),
    ];
  }

  // -- inside -------------------------------------------------------------------------------------

  /** @param {ChartData} data */
  #rebuild(data) {
    this.#uplot?.destroy();
    this.plot.replaceChildren(this.#tip);
    this.#legend.show(data.series.map(({ label, colour: name, dash, circles }) => (
      { swatch: swatch(name, circles ? "ring" : dash ? "dashed" : "line"), text: label })));
    this.#uplot = new uPlot(this.#uplotOptions(data), aligned(data), this.plot);
    this.#showValues(this.#uplot, null);
  }

  /** @param {ChartData} data @returns {uPlot.Options} */
  #uplotOptions(data) {
    const { x, y, height } = this.#options;
    return {
      width: Math.max(this.plot.clientWidth, 120),
      height,
      legend: { show: false },
      padding: [14, 18, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { size: 7 }, x: !data.cells, y: false },
      scales: {
        x: scale(x, () => this.#range("x")),
        y: scale(y, () => this.#range("y")),
      },
      axes: [axis(x, 32), axis(y, 48)],
      series: [{}, ...data.series.map(uplotSeries)],
      hooks: {
        drawAxes: [(plot) => drawUnderlay(plot, this.#data ?? data)],
        draw: [(plot) => drawOverlay(plot, this.#data ?? data)],
        setCursor: [(plot) => this.#follow(plot)],
      },
    };
  }

  /** Return the range that covers all that is drawn. @param {"x" | "y"} name @returns {Range} */
  #range(name) {
    const { series = [], dots = [], marks = [], rulers = [] } = this.#data ?? {};
    const levels = rulers.map((ruler) => ("y" in ruler ? ruler.y : null));
    const values = [
      ...series.flatMap((line) => line[name]),
      ...[...dots, ...marks].map((point) => point[name]),
      ...(name === "y" ? levels : []),
    ];
    const air = name === "y" || dots.length ? AIR[name] : 0;
    return rangeOf(this.#options[name], values.filter(isNumber), air);
  }

  #resize() {
    const width = this.plot.clientWidth;
    if (this.#uplot && width > 0 && width !== this.#uplot.width) {
      this.#uplot.setSize({ width, height: this.#options.height });
    }
  }

  /** @param {uPlot} plot */
  #follow(plot) {
    this.#showValues(plot, plot.cursor.idx ?? null);
    const dot = nearestDot(plot, this.#data?.dots ?? []);
    this.#tip.hidden = !dot?.note;
    if (!dot?.note) return;
    this.#tip.textContent = dot.note;
    const left = plot.valToPos(dot.x, "x") + plot.bbox.left / devicePixelRatio;
    const top = plot.valToPos(dot.y, "y") + plot.bbox.top / devicePixelRatio;
    this.#tip.style.left = `${Math.min(left, this.plot.clientWidth - 150)}px`;
    this.#tip.style.top = `${top + 10}px`;
  }

  /**
   * Show the numbers at an index of x beside the legend.
   *
   * @param {uPlot} plot
   * @param {number | null} index
   */
  #showValues(plot, index) {
    const format = this.#options.y.format ?? number;
    const [, ...columns] = plot.data;
    this.#legend.setValues(columns.map((column) => {
      const value = index === null ? null : column[index];
      return isNumber(value) ? format(value) : "";
    }));
  }

  async #save() {
    const data = this.#data;
    if (data === null) return;
    const { title, subject = () => "" } = this.#options;
    const words = { title, subject: subject(), series: data.series, ramp: data.ramp };
    const plot = await this.#drawn(data);
    const name = title.toLowerCase().replaceAll(" ", "-");
    download(`${name}.png`, await picture(plot.ctx.canvas, words), "image/png");
    plot.destroy();
  }

  /** Draw the chart off the page, in the size of pictures. @param {ChartData} data */
  #drawn(data) {
    const { hooks, ...options } = this.#uplotOptions(data);
    return new Promise((/** @type {(plot: uPlot) => void} */ resolve) => {
      const draw = [(/** @type {uPlot} */ plot) => drawOverlay(plot, data), resolve];
      new uPlot({
        ...options, ...PICTURE, hooks: { drawAxes: hooks?.drawAxes, draw },
      }, aligned(data), h("div"));
    });
  }

  #fillTable() {
    const table = this.#table;
    if (table === null || (!table.open && table.children.length === 1)) return;
    const [summary] = table.children;
    const content = this.#data ? [tableOf(this.#data, this.#options)] : [];
    table.replaceChildren(summary, ...content);
  }
}

/** @param {unknown} value @returns {value is number} */
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/**
 * Return the series over one list of x, with null where a series has no value.
 *
 * @param {ChartData} data
 * @returns {uPlot.AlignedData}
 */
function aligned({ series }) {
  if (!series.length) return [[]];
  return uPlot.join(series.map(({ x, y }) => [x, y]));
}

/** @param {Series} series @returns {uPlot.Series} */
function uplotSeries({ label, colour: name, dash, stepped = false, circles = false }) {
  const stroke = colour(name);
  const paths = stepped ? uPlot.paths.stepped?.({ align: 1 }) : uPlot.paths.linear?.();
  return {
    label, stroke, width: 2, dash,
    points: { show: circles, size: 8, fill: colour("--card"), stroke, width: 1.5 },
    paths: circles ? () => null : paths,
  };
}

/** @param {ChartData} data @param {ChartOptions} options */
function tableOf(data, { x, y, missing = "" }) {
  const { series, dots = [] } = data;
  /** @param {Axis} axis_ @param {unknown} value */
  const cell = ({ format = number }, value) => h("td", {},
    isNumber(value) ? format(value) : value === null ? missing : "");
  const [places, ...columns] = aligned(data);
  const table = h("table", {},
    h("tr", {}, [x, ...series].map(({ label }) => h("th", { scope: "col" }, label))),
    [...places].map((place, row) => h("tr", {},
      cell(x, place), columns.map((column) => cell(y, column[row])))));
  const notes = dots.filter(({ note }) => note).map(({ note }) => h("li", {}, note));
  return h("div", { class: "scroll" },
    series.length ? table : null, notes.length ? h("ul", {}, notes) : null);
}

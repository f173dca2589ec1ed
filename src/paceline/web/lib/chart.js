// Line and scatter charts: uPlot in our colours, with a legend that follows the pointer, marks, dots,
// and the same numbers as a table for who cannot see or hover.

import uPlot from "../vendor/uPlot.esm.js";
import { colour, faded, onThemeChange } from "./colours.js";
import { h, loadStyle } from "./dom.js";
import { number } from "./format.js";

const FONT = "12px system-ui, sans-serif";

/**
 * A chart under `parent`. `x` and `y` are axes: { label, log: 2 or 10, ticks: [values],
 * format: value => text, min, max }. Labels say the unit. Gives { draw(data), clear(), element }:
 *
 * data.series  [{ label, x, y, colour: "--series-1", dash: [6, 4], width, stepped, fill }]
 * data.marks   [{ x, y, text, below, colour }]: a ring with words (below it or above), for an optimum
 * data.dots    [{ x, y, note, colour }]: measured points; the note is shown on hover
 * data.rulers  [{ y, text } or { slope }]: a dashed level, or the line y = slope · x
 */
export function chart(parent, { title, note = null, x, y, height = 280, table = true }) {
  return new Chart(parent, { title, note, x, y, height, table });
}

class Chart {
  constructor(parent, options) {
    this.options = options;
    this.legend = h("ul", { class: "legend" });
    this.plot = h("div", { class: "plot", role: "img", "aria-label": options.title });
    this.tip = h("div", { class: "tip", hidden: true });
    this.table = options.table ? h("details", { class: "numbers" }, h("summary", {}, "Numbers")) : null;
    this.element = h(
      "figure",
      { class: "chart" },
      h("figcaption", {}, h("h3", {}, options.title),
        options.note === null ? null : h("p", { class: "hint" }, options.note)),
      this.legend, this.plot, this.table,
    );
    parent.append(this.element);
    this.table?.addEventListener("toggle", () => this.#fillTable());
    this.plot.style.minHeight = `${options.height}px`;
    this.data = null;
    this.drawn = null;
    this.uplot = null;
    new ResizeObserver(() => this.#resize()).observe(this.plot);
    onThemeChange(() => { if (this.data) this.#rebuild(); });
    loadStyle("vendor/uPlot.min.css");
    loadStyle("lib/chart.css");
  }

  draw(data) {
    this.data = { marks: [], dots: [], rulers: [], ...data };
    const shape = JSON.stringify(data.series.map(({ label, colour: name, dash, width, stepped, fill }) =>
      [label, name, dash, width, stepped, fill]));
    if (this.uplot === null || shape !== this.drawn) {
      this.drawn = shape;
      this.#rebuild();
    } else {
      this.uplot.setData(aligned(this.data));
      this.#values(null);
    }
    this.#fillTable();
  }

  clear() {
    this.uplot?.destroy();
    this.uplot = this.data = this.drawn = null;
    this.legend.replaceChildren();
    this.#fillTable();
  }

  // -- inside --------------------------------------------------------------------------------------

  #rebuild() {
    this.uplot?.destroy();
    this.plot.replaceChildren(this.tip);
    this.legend.replaceChildren(...this.data.series.map((one) => h("li", {},
      h("span", { class: one.dash ? "swatch dashed" : "swatch", style: { borderColor: `var(${one.colour})` } }),
      h("span", {}, one.label), h("span", { class: "value" }))));
    this.uplot = new uPlot(this.#uplotOptions(), aligned(this.data), this.plot);
    this.#values(null);
  }

  #uplotOptions() {
    const { x, y, height } = this.options;
    return {
      width: Math.max(this.plot.clientWidth, 120), height,
      legend: { show: false },
      padding: [14, 18, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { size: 7 }, y: false },
      scales: {
        x: { time: false, range: () => this.#range("x"), ...scale(x) },
        y: { range: () => this.#range("y"), ...scale(y) },
      },
      axes: [axis(x, 32), axis(y, 48)],
      series: [{}, ...this.data.series.map(line)],
      hooks: { draw: [(u) => this.#overlay(u)], setCursor: [(u) => this.#follow(u)] },
    };
  }

  /** The axis covers series, dots and marks; it starts where the options say. */
  #range(which) {
    const options = this.options[which];
    const values = [...this.data.series, { [which]: this.data.dots.map((dot) => dot[which]) },
      { [which]: this.data.marks.map((mark) => mark[which]) }]
      .flatMap((one) => one[which]).filter(Number.isFinite);
    if (which === "y") values.push(...this.data.rulers.map((ruler) => ruler.y).filter(Number.isFinite));
    if (!values.length) return [0, 1];
    const low = options.min ?? Math.min(...values);
    const high = options.max ?? Math.max(...values);
    if (options.log) return [low, low === high ? low * options.log : high];
    const air = which === "y" ? 0.08 * (high - low || 1) : this.data.dots.length ? 0.04 * (high - low || 1) : 0;
    return [options.min ?? low - air, options.max ?? high + air];
  }

  #resize() {
    const width = this.plot.clientWidth;
    if (this.uplot && width > 0 && width !== this.uplot.width) {
      this.uplot.setSize({ width, height: this.options.height });
    }
  }

  #overlay(u) {
    const ratio = devicePixelRatio;
    const c = u.ctx;
    c.save();
    c.beginPath();
    c.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    c.clip();
    for (const ruler of this.data.rulers) drawRuler(u, c, ruler, ratio);
    for (const dot of this.data.dots) {
      const shade = colour(dot.colour ?? "--series-1");
      circle(c, ...at(u, dot), 3.6 * ratio);
      c.fillStyle = faded(shade, 0.65);
      c.fill();
    }
    c.restore();
    c.save();
    for (const mark of this.data.marks) drawMark(u, c, mark, ratio);
    c.restore();
  }

  #follow(u) {
    this.#values(u.cursor.idx);
    const near = u.cursor.left < 0 ? null : nearest(u, this.data.dots);
    this.tip.hidden = near === null || !near.note;
    if (this.tip.hidden) return;
    this.tip.textContent = near.note;
    const left = u.valToPos(near.x, "x") + u.bbox.left / devicePixelRatio;
    this.tip.style.left = `${Math.min(left, this.plot.clientWidth - 150)}px`;
    this.tip.style.top = `${u.valToPos(near.y, "y") + u.bbox.top / devicePixelRatio + 10}px`;
  }

  /** The legend's numbers: at the pointer, or none. */
  #values(index) {
    const format = this.options.y.format ?? number;
    const wanted = index === null || index === undefined ? null : this.uplot.data[0][index];
    this.legend.querySelectorAll("li").forEach((item, i) => {
      const value = wanted === null ? undefined : this.uplot.data[i + 1]?.[index];
      item.querySelector(".value").textContent = Number.isFinite(value) ? format(value) : "";
    });
  }

  #fillTable() {
    if (!this.table?.open && this.table?.children.length === 1) return;
    const [summary] = this.table.children;
    this.table.replaceChildren(summary, ...(this.data ? [tableOf(this.data, this.options)] : []));
  }
}

const aligned = ({ series }) => (series.length
  ? uPlot.join(series.map((one) => [one.x, one.y])) : [[]]);

const scale = ({ log }) => (log ? { distr: 3, log } : {});

function axis({ label, ticks, format, log }, size) {
  const soft = colour("--soft");
  const splits = ticks ? () => ticks : log ? (u, index, low, high) => logTicks(log, low, high) : null;
  const given = splits ? { splits, filter: (u, values) => values } : {};
  return {
    label, size, labelSize: 22, font: FONT, labelFont: FONT, stroke: soft, gap: 6,
    grid: { stroke: colour("--grid"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1, size: 5 },
    values: (u, values) => values.map((value) => (value === null ? "" : (format ?? number)(value))),
    ...given,
  };
}

/** 1, 2, 5, 10, 20 … for base 10; powers of two, not too many of them, for base 2. */
function logTicks(base, low, high) {
  const found = [];
  if (base === 10) {
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
      for (const digit of [1, 2, 5]) found.push(digit * 10 ** power);
    }
  } else {
    const step = Math.max(1, Math.ceil(Math.log2(high / low) / 6));
    for (let power = Math.floor(Math.log2(low)); 2 ** power <= high; power += step) found.push(2 ** power);
  }
  return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

function line({ label, colour: name, dash, width, stepped, fill }) {
  const shade = colour(name);
  return {
    label, stroke: shade, width: width ?? 2, dash,
    fill: fill ? faded(shade, fill) : undefined,
    points: { show: false },
    paths: stepped ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
  };
}

const at = (u, { x, y }) => [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];

function circle(c, left, top, radius) {
  c.beginPath();
  c.arc(left, top, radius, 0, 2 * Math.PI);
}

function drawMark(u, c, mark, ratio) {
  const [left, top] = at(u, mark);
  const shade = colour(mark.colour);
  circle(c, left, top, 5 * ratio);
  c.fillStyle = colour("--card");
  c.fill();
  c.setLineDash([]);
  c.lineWidth = 2.5 * ratio;
  c.strokeStyle = shade;
  c.stroke();
  c.font = `600 ${12 * ratio}px system-ui, sans-serif`;
  c.fillStyle = shade;
  const room = u.bbox.left + u.bbox.width - left;
  c.textAlign = room < c.measureText(mark.text).width + 12 * ratio ? "right" : "left";
  const aside = (c.textAlign === "right" ? -9 : 9) * ratio;
  c.fillText(mark.text, left + aside, mark.below ? top + 18 * ratio : Math.max(top - 8 * ratio, 12 * ratio));
}

function drawRuler(u, c, ruler, ratio) {
  const { min, max } = u.scales.x;
  const [from, to] = [min, max].map((x) => ({ x, y: ruler.slope === undefined ? ruler.y : ruler.slope * x }));
  c.beginPath();
  c.moveTo(...at(u, from));
  c.lineTo(...at(u, to));
  c.setLineDash([4 * ratio, 4 * ratio]);
  c.strokeStyle = colour("--line-strong");
  c.lineWidth = ratio;
  c.stroke();
  c.setLineDash([]);
  if (!ruler.text) return;
  c.font = `${12 * ratio}px system-ui, sans-serif`;
  c.fillStyle = colour("--soft");
  c.textAlign = "right";
  const top = u.scales.y.max;
  const end = ruler.slope !== undefined && to.y > top ? { x: top / ruler.slope, y: top } : to;
  const [right, height] = at(u, end);
  c.fillText(ruler.text, right - 6 * ratio, Math.max(height - 5 * ratio, u.bbox.top + 12 * ratio));
}

function nearest(u, dots) {
  let found = null;
  let best = 14;
  for (const dot of dots) {
    const away = Math.hypot(u.valToPos(dot.x, "x") - u.cursor.left, u.valToPos(dot.y, "y") - u.cursor.top);
    if (away < best) [found, best] = [dot, away];
  }
  return found;
}

function tableOf({ series, dots }, { x, y }) {
  const parts = [];
  if (series.length) {
    const [xs, ...columns] = uPlot.join(series.map((one) => [one.x, one.y]));
    const cell = (format, value) => h("td", {}, Number.isFinite(value) ? (format ?? number)(value) : "");
    parts.push(h("table", {},
      h("tr", {}, h("th", { scope: "col" }, x.label), series.map((one) => h("th", { scope: "col" }, one.label))),
      [...xs].map((value, row) => h("tr", {}, cell(x.format, value),
        columns.map((column) => cell(y.format, column[row]))))));
  }
  if (dots.some((dot) => dot.note)) parts.push(h("ul", {}, dots.map((dot) => h("li", {}, dot.note ?? ""))));
  return h("div", { class: "scroll" }, parts);
}

// A heat map on a canvas: speedup over batch and draft length. The pointer or the arrow keys read it.

import { colour, onThemeChange } from "../lib/colours.js";
import { h } from "../lib/dom.js";
import { times } from "../lib/format.js";

const LEFT = 40, BOTTOM = 42, TOP = 6, RIGHT = 8, HEIGHT = 300;

export class HeatMap {
  constructor(parent, { title, note, tools }) {
    this.canvas = h("canvas", { class: "heat", tabIndex: 0, role: "img", "aria-label": `${title}. Arrow keys move from cell to cell` });
    this.readout = h("output", { class: "readout", "aria-live": "polite" });
    this.scale = h("p", { class: "heat-scale" });
    parent.append(h("figure", { class: "chart" },
      h("figcaption", {}, h("h3", {}, title), h("p", { class: "hint" }, note)),
      h("div", { class: "heat-tools" }, tools), this.canvas, h("div", { class: "heat-foot" }, this.scale, this.readout)));
    this.data = null;
    this.cell = null; // [batch index, draft length index]
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#choose(null));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#paint()).observe(this.canvas);
    onThemeChange(() => this.#paint());
  }

  /** `values[b][g]` are speedups, or `values[b]` null where that batch does not fit. */
  draw({ batches, lengths, values, accent }) {
    this.data = { batches, lengths, values, accent };
    if (this.cell && (this.cell[0] >= batches.length || this.cell[1] >= lengths.length)) this.cell = null;
    this.#paint();
    this.#say();
  }

  clear() {
    this.data = this.cell = null;
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.scale.replaceChildren();
    this.readout.textContent = "";
  }

  // -- inside --------------------------------------------------------------------------------------

  #place() {
    const width = this.canvas.clientWidth;
    const { batches, lengths } = this.data;
    return { width, cellWidth: (width - LEFT - RIGHT) / batches.length, cellHeight: (HEIGHT - TOP - BOTTOM) / lengths.length };
  }

  #paint() {
    if (!this.data || !this.canvas.clientWidth) return;
    const { batches, lengths, values, accent } = this.data;
    const { width, cellWidth, cellHeight } = this.#place();
    const ratio = devicePixelRatio;
    this.canvas.width = width * ratio;
    this.canvas.height = HEIGHT * ratio;
    const c = this.canvas.getContext("2d");
    c.scale(ratio, ratio);
    const top = Math.max(1.05, ...values.filter(Boolean).flat());
    const shade = shader(colour("--card"), colour(accent), colour("--bad"), top);
    const y = (g) => HEIGHT - BOTTOM - (g + 1) * cellHeight;
    values.forEach((column, b) => {
      const x = LEFT + b * cellWidth;
      if (!column) return missing(c, x, cellWidth);
      column.forEach((value, g) => {
        c.fillStyle = shade(value);
        c.fillRect(x, y(g), Math.ceil(cellWidth * ratio) / ratio - 0.5, Math.ceil(cellHeight * ratio) / ratio - 0.5);
      });
      const best = column.indexOf(Math.max(...column));
      ring(c, x + cellWidth / 2, y(best) + cellHeight / 2, Math.min(cellHeight, cellWidth, 12) / 3.2);
    });
    this.#axes(c, { cellWidth, cellHeight, width });
    if (this.cell) {
      c.strokeStyle = colour("--ink");
      c.lineWidth = 2;
      c.strokeRect(LEFT + this.cell[0] * cellWidth, y(this.cell[1]), cellWidth, cellHeight);
    }
    this.scale.replaceChildren("slower than AR ", h("span", { class: "ramp", style: {
      background: `linear-gradient(to right, ${shade(0.5)}, ${shade(1)} 33%, ${shade(top)})` } }), ` ${times(top)}`);
  }

  #axes(c, { cellWidth, cellHeight, width }) {
    const { batches, lengths } = this.data;
    c.fillStyle = colour("--soft");
    c.font = "12px system-ui, sans-serif";
    c.textAlign = "center";
    const every = Math.ceil(38 / cellWidth);
    batches.forEach((batch, b) => {
      if (b % every === 0) c.fillText(String(batch), LEFT + (b + 0.5) * cellWidth, HEIGHT - BOTTOM + 16);
    });
    c.fillText("batch (requests)", LEFT + (width - LEFT - RIGHT) / 2, HEIGHT - 6);
    c.textAlign = "right";
    const step = Math.ceil(18 / cellHeight);
    lengths.forEach((length, g) => {
      if (g % step === 0) c.fillText(String(length), LEFT - 6, HEIGHT - BOTTOM - (g + 0.5) * cellHeight + 4);
    });
    c.save();
    c.translate(11, TOP + (HEIGHT - TOP - BOTTOM) / 2);
    c.rotate(-Math.PI / 2);
    c.textAlign = "center";
    c.fillText("draft length γ (tokens)", 0, 0);
    c.restore();
  }

  #point(event) {
    if (!this.data) return;
    const { cellWidth, cellHeight } = this.#place();
    const b = Math.floor((event.offsetX - LEFT) / cellWidth);
    const g = Math.floor((HEIGHT - BOTTOM - event.offsetY) / cellHeight);
    const inside = b >= 0 && g >= 0 && b < this.data.batches.length && g < this.data.lengths.length;
    this.#choose(inside ? [b, g] : null);
  }

  #key(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!move || !this.data) return;
    event.preventDefault();
    const [b, g] = this.cell ?? [0, 0];
    const within = (value, length) => Math.max(0, Math.min(value, length - 1));
    this.#choose([within(b + move[0], this.data.batches.length), within(g + move[1], this.data.lengths.length)]);
  }

  #choose(cell) {
    if (String(cell) === String(this.cell)) return;
    this.cell = cell;
    this.#paint();
    this.#say();
  }

  #say() {
    if (!this.cell) {
      this.readout.textContent = "";
      return;
    }
    const [b, g] = this.cell;
    const { batches, lengths, values } = this.data;
    const value = values[b] ? times(values[b][g]) : "does not fit the memory";
    this.readout.textContent = `batch ${batches[b]}, γ = ${lengths[g]}: ${value}`;
  }
}

/** Below 1 towards `bad`, above towards `good`; as far as `top`. */
function shader(card, good, bad, top) {
  const parts = [card, good, bad].map((rgb) => rgb.match(/[\d.]+/g).slice(0, 3).map(Number));
  return (value) => {
    if (Math.abs(value - 1) < 1e-6) return `rgb(${parts[0].join(" ")})`;
    const share = value >= 1 ? (value - 1) / (top - 1) : Math.min((1 - value) / 0.5, 1);
    const target = value >= 1 ? parts[1] : parts[2];
    const part = 0.06 + 0.94 * share;
    return `rgb(${parts[0].map((from, i) => Math.round(from + (target[i] - from) * part)).join(" ")})`;
  };
}

function ring(c, x, y, radius) {
  c.beginPath();
  c.arc(x, y, radius, 0, 2 * Math.PI);
  c.fillStyle = colour("--card");
  c.fill();
  c.strokeStyle = colour("--ink");
  c.lineWidth = 1.5;
  c.stroke();
}

function missing(c, x, width) {
  c.fillStyle = colour("--sunken");
  c.fillRect(x, TOP, width - 0.5, HEIGHT - TOP - BOTTOM);
}

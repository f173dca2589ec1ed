// A chart as a picture to save: its canvas, on the page's background, below its title and legend,
// which are elements on the page.

import { FONT } from "./axes.js";
import { colour } from "./colours.js";

/** @import { Ramp, Series } from "../types/page" */

/** @typedef {CanvasRenderingContext2D} Context */
/**
 * Words with an optional key before them: `width` pixels, drawn around the height `y`.
 *
 * @typedef {{
 *   text: string, gap: number, width?: number, draw?: (ctx: Context, x: number, y: number) => void,
 * }} Item
 */
/** @typedef {{ items: Item[], font: string, fill: string, line: number }} Block */

const PAD = 16; // pixels around all, and below each block
const KEY = 24; // pixels of a key with the space after it
const RAMP = 98;
const TEXT = `12px ${FONT}`;

/**
 * Return a PNG of a chart's canvas.
 *
 * @param {HTMLCanvasElement} chart
 * @param {{ title: string, subject: string, series: Series[], ramp?: Ramp }} words
 * @returns {Promise<Blob>}
 */
export async function picture(chart, { title, subject, series, ramp }) {
  const ratio = devicePixelRatio;
  const wide = chart.width / ratio;
  const blocks = [
    { items: words(title), font: `600 16px ${FONT}`, fill: "--ink", line: 22 },
    { items: words(subject), font: TEXT, fill: "--soft", line: 17 },
    { items: [...series.map(seriesKey), ...rampKeys(ramp)], font: TEXT, fill: "--soft", line: 19 },
  ].filter(({ items }) => items.length);
  const canvas = document.createElement("canvas");
  const ctx = /** @type {Context} */ (canvas.getContext("2d"));
  const placed = blocks.map((block) => ({ ...block, rows: rowsOf(ctx, block, wide) }));
  const above = placed.reduce((sum, { rows, line }) => sum + rows.length * line, PAD * 1.5);
  canvas.width = chart.width + 2 * PAD * ratio;
  canvas.height = chart.height + Math.ceil((above + PAD) * ratio);
  ctx.fillStyle = colour("--card");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.save();
  ctx.scale(ratio, ratio);
  let y = PAD;
  for (const { rows, line, font, fill } of placed) {
    for (const row of rows) {
      drawRow(ctx, row, y + line / 2, font, fill);
      y += line;
    }
  }
  ctx.restore();
  ctx.drawImage(chart, PAD * ratio, canvas.height - chart.height - Math.round(PAD * ratio));
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => {
      if (blob) resolve(blob);
      else reject(new Error("the browser could not make a picture of this size"));
    }, "image/png");
  });
}

// -- inside ---------------------------------------------------------------------------------------

/** @param {string} text @returns {Item[]} */
const words = (text) => text.split(" ").filter(Boolean).map((word) => ({ text: word, gap: 4 }));

/** @param {Series} series @returns {Item} */
function seriesKey({ label, colour: name, dash = [], circles }) {
  return {
    text: label, gap: 16, width: KEY,
    draw: (ctx, x, y) => {
      ctx.strokeStyle = colour(name);
      ctx.lineWidth = circles ? 1.5 : dash.length ? 2 : 3;
      ctx.setLineDash(dash);
      ctx.beginPath();
      if (circles) ctx.arc(x + 9, y, 4.5, 0, 2 * Math.PI);
      else ctx.moveTo(x, y);
      if (!circles) ctx.lineTo(x + 18, y);
      ctx.stroke();
    },
  };
}

/** @param {Ramp} [ramp] @returns {Item[]} */
function rampKeys(ramp) {
  if (!ramp) return [];
  /** @param {Context} ctx @param {number} x @param {number} y */
  const draw = (ctx, x, y) => {
    const fill = ctx.createLinearGradient(x, 0, x + RAMP - 8, 0);
    for (const [place, shade] of ramp.stops) fill.addColorStop(place, shade);
    ctx.fillStyle = fill;
    ctx.fillRect(x, y - 5, RAMP - 8, 10);
  };
  const missing = ramp.hatched ? [{ text: `hatched: ${ramp.hatched}`, gap: 16 }] : [];
  return [{ text: ramp.low, gap: 8 }, { text: ramp.high, gap: 16, width: RAMP, draw }, ...missing];
}

/**
 * Return the items by row, each with its place, as many in a row as `width` takes.
 *
 * @param {Context} ctx
 * @param {Block} block
 * @param {number} width
 */
function rowsOf(ctx, { items, font }, width) {
  ctx.font = font;
  /** @type {(Item & { left: number })[][]} */
  const rows = [[]];
  let left = 0;
  for (const item of items) {
    const size = (item.width ?? 0) + ctx.measureText(item.text).width;
    if (left > 0 && left + size > width) {
      rows.push([]);
      left = 0;
    }
    rows.at(-1)?.push({ ...item, left });
    left += size + item.gap;
  }
  return rows;
}

/**
 * @param {Context} ctx
 * @param {(Item & { left: number })[]} row
 * @param {number} y its middle
 * @param {string} font
 * @param {string} fill
 */
function drawRow(ctx, row, y, font, fill) {
  for (const { text, left, width = 0, draw } of row) {
    draw?.(ctx, PAD + left, y);
    ctx.font = font;
    ctx.fillStyle = colour(fill);
    ctx.textBaseline = "middle";
    ctx.fillText(text, PAD + left + width, y);
  }
}

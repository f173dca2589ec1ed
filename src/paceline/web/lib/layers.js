// What a chart draws over uPlot's lines: filled and hatched cells, bands, dashed rulers, measured
// dots, marks.

import { FONT, FONT_SIZE } from "./axes.js";
import { colour, faded } from "./colours.js";

/** @import uPlot from "../vendor/uPlot.esm.js" */
/** @import { Band, Cell, ChartData, Dot, Happening, Mark, Ruler } from "../types/page" */

const HEIGHTS = 3; // of the words of happenings
const NEAR = 14; // pixels from the pointer within which a dot shows its note

/** Draw what lies under the lines. @param {uPlot} plot @param {ChartData} data */
export function drawUnderlay(plot, { cells = [], bands = [] }) {
  clipped(plot, () => {
    for (const cell of cells) drawCell(plot, cell);
    for (const band of bands) drawBand(plot, band);
  });
}

/** Draw what lies over the lines. @param {uPlot} plot @param {ChartData} data */
export function drawOverlay(plot, data) {
  const { rulers = [], dots = [], marks = [], cells = [], happenings = [] } = data;
  clipped(plot, () => {
    happenings.forEach((happening, index) => drawHappening(plot, happening, index));
    for (const ruler of rulers) drawRuler(plot, ruler);
    for (const dot of dots) drawDot(plot, dot);
  });
  for (const cell of cells) if (cell.outlined) outlineCell(plot, cell);
  for (const mark of marks) drawMark(plot, mark);
}

/**
 * Return the dot that is nearest to the pointer, or null.
 *
 * @param {uPlot} plot
 * @param {Dot[]} dots
 */
export function nearestDot(plot, dots) {
  const { left = -1, top = -1 } = plot.cursor;
  if (left < 0) return null;
  let nearest = null;
  let least = NEAR;
  for (const dot of dots) {
    const x = plot.valToPos(dot.x, "x") - left;
    const distance = Math.hypot(x, plot.valToPos(dot.y, "y") - top);
    if (distance < least) [nearest, least] = [dot, distance];
  }
  return nearest;
}

/** Draw within the plot's area. @param {uPlot} plot @param {() => void} draw */
function clipped({ ctx, bbox }, draw) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw();
  ctx.restore();
}

/** @param {uPlot} plot @param {{ x: number, y: number }} point @returns {[number, number]} */
const at = (plot, { x, y }) => [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];

/** @param {uPlot} plot @param {Cell} cell @returns {[number, number, number, number]} */
function boxOf(plot, { x, y }) {
  const [left, bottom] = at(plot, { x: x - 0.5, y: y - 0.5 });
  const [right, top] = at(plot, { x: x + 0.5, y: y + 0.5 });
  return [left, top, right - left, bottom - top];
}

/** @param {uPlot} plot @param {Cell} cell */
function drawCell(plot, cell) {
  const [left, top, width, height] = boxOf(plot, cell);
  plot.ctx.fillStyle = cell.fill ?? hatch(plot.ctx);
  plot.ctx.fillRect(left, top, Math.ceil(width) - 1, Math.ceil(height) - 1);
}

/** @param {uPlot} plot @param {Band} band */
function drawBand(plot, { from, to, text }) {
  const { ctx, bbox } = plot;
  const left = Math.max(plot.valToPos(from, "x", true), bbox.left);
  const right = Math.min(plot.valToPos(to, "x", true), bbox.left + bbox.width);
  ctx.fillStyle = hatch(ctx);
  ctx.fillRect(left, bbox.top, right - left, bbox.height);
  ctx.save();
  ctx.translate((left + right) / 2, bbox.top + bbox.height / 2);
  ctx.rotate(-Math.PI / 2);
  ctx.font = `${FONT_SIZE * devicePixelRatio}px ${FONT}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  const wide = ctx.measureText(text).width / 2 + 5 * devicePixelRatio;
  const high = FONT_SIZE * 0.8 * devicePixelRatio;
  ctx.fillStyle = colour("--card");
  ctx.fillRect(-wide, -high, 2 * wide, 2 * high);
  ctx.fillStyle = colour("--soft");
  ctx.fillText(text, 0, 0);
  ctx.restore();
}

/** Return the neutral pattern of what has no value. @param {CanvasRenderingContext2D} ctx */
function hatch(ctx) {
  const size = 7 * devicePixelRatio;
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const lines = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  lines.fillStyle = colour("--sunken");
  lines.fillRect(0, 0, size, size);
  lines.strokeStyle = colour("--line-strong");
  lines.lineWidth = devicePixelRatio;
  for (const shift of [-size, 0, size]) {
    lines.moveTo(shift, size);
    lines.lineTo(shift + size, 0);
  }
  lines.stroke();
  return ctx.createPattern(tile, "repeat") ?? colour("--sunken");
}

/** @param {uPlot} plot @param {Cell} cell */
function outlineCell(plot, cell) {
  const { ctx } = plot;
  ctx.setLineDash([]);
  ctx.strokeStyle = colour("--ink");
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.strokeRect(...boxOf(plot, cell));
}

/** @param {CanvasRenderingContext2D} ctx @param {[number, number]} centre @param {number} radius */
function circle(ctx, [x, y], radius) {
  ctx.beginPath();
  ctx.arc(x, y, radius * devicePixelRatio, 0, 2 * Math.PI);
}

/** @param {uPlot} plot @param {Dot} dot */
function drawDot(plot, dot) {
  circle(plot.ctx, at(plot, dot), 3.6);
  plot.ctx.fillStyle = faded(colour(dot.colour), 0.65);
  plot.ctx.fill();
}

/** @param {uPlot} plot @param {Mark} mark */
function drawMark(plot, mark) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const [left, top] = at(plot, mark);
  ctx.save();
  circle(ctx, [left, top], 5);
  ctx.fillStyle = colour("--card");
  ctx.fill();
  ctx.setLineDash([]);
  ctx.lineWidth = 2.5 * ratio;
  ctx.strokeStyle = ctx.fillStyle = colour(mark.colour);
  ctx.stroke();
  ctx.font = `600 ${FONT_SIZE * ratio}px ${FONT}`;
  const free = bbox.left + bbox.width - left;
  ctx.textAlign = free < ctx.measureText(mark.text).width + 12 * ratio ? "right" : "left";
  const aside = ctx.textAlign === "right" ? -9 : 9;
  const y = mark.below ? top + 18 * ratio : Math.max(top - 8 * ratio, FONT_SIZE * ratio);
  ctx.fillText(mark.text, left + aside * ratio, y);
  ctx.restore();
}

/**
 * Draw an upright line, with its words at one of several heights so that they hide each other less.
 *
 * @param {uPlot} plot
 * @param {Happening} happening
 * @param {number} index
 */
function drawHappening(plot, { x, text, colour: name }, index) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const left = plot.valToPos(x, "x", true);
  ctx.setLineDash([2 * ratio, 3 * ratio]);
  ctx.lineWidth = 1.5 * ratio;
  ctx.strokeStyle = ctx.fillStyle = colour(name);
  ctx.beginPath();
  ctx.moveTo(left, bbox.top);
  ctx.lineTo(left, bbox.top + bbox.height);
  ctx.stroke();
  ctx.setLineDash([]);
  ctx.font = `${FONT_SIZE * ratio}px ${FONT}`;
  const wide = ctx.measureText(text).width + 4 * ratio;
  const fits = left + wide < bbox.left + bbox.width;
  ctx.textAlign = fits ? "left" : "right";
  const height = bbox.top + (1 + (index % HEIGHTS)) * (FONT_SIZE + 2) * ratio;
  ctx.fillText(text, left + (fits ? 4 : -4) * ratio, height);
}

/** @param {uPlot} plot @param {Ruler} ruler */
function drawRuler(plot, ruler) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const { min = 0, max = 1 } = plot.scales.x;
  const top = plot.scales.y.max ?? 1;
  const y = (/** @type {number} */ x) => ("slope" in ruler ? ruler.slope * x : ruler.y);
  ctx.beginPath();
  ctx.moveTo(...at(plot, { x: min, y: y(min) }));
  ctx.lineTo(...at(plot, { x: max, y: y(max) }));
  ctx.setLineDash([4 * ratio, 4 * ratio]);
  ctx.strokeStyle = colour("--line-strong");
  ctx.lineWidth = ratio;
  ctx.stroke();
  const leaves = "slope" in ruler && y(max) > top; // through the upper edge
  const end = leaves ? { x: top / ruler.slope, y: top } : { x: max, y: y(max) };
  const [right, height] = at(plot, end);
  ctx.font = `${FONT_SIZE * ratio}px ${FONT}`;
  ctx.fillStyle = colour("--soft");
  ctx.textAlign = "right";
  const baseline = Math.max(height - 5 * ratio, bbox.top + FONT_SIZE * ratio);
  ctx.fillText(ruler.text, right - 6 * ratio, baseline);
}

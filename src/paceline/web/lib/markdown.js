// Markdown as DOM nodes, for text that arrives in pieces. No text ever becomes HTML: what a model
// writes can only make the elements below.

import { copyText, h } from "./dom.js";
import { inlineNodes } from "./inline.js";

/** @typedef {"left" | "center" | "right" | ""} Alignment */
/**
 * @typedef {{ kind: "code", language: string, text: string }
 *   | { kind: "heading", level: number, text: string }
 *   | { kind: "paragraph", text: string }
 *   | { kind: "rule" }
 *   | { kind: "quote", blocks: Block[] }
 *   | { kind: "list", start: number | null, items: Block[][] }
 *   | { kind: "table", alignments: Alignment[], rows: string[][] }} Block
 */
/** @typedef {{ block: Block, end: number }} Found  a block, and the line after it */

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|(\d{1,9})[.)])(?:[ \t]+|$)/;
const DIVIDER = /^ *\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$|^ *\| *:?-+:? *$/;
const DEEPEST = 6; // lists and quotes inside each other: deeper ones stay as they were written

/** An element with text as Markdown. More text changes only the blocks that it touches. */
export class MarkdownView {
  element = h("div", { class: "prose" });
  #text = "";
  /** @type {string[]} the shown blocks as JSON */
  #shown = [];

  /** @param {string} text the whole text so far */
  show(text) {
    if (text === this.#text) return; // as a thought's, while the answer goes on
    this.#text = text;
    const blocks = parseBlocks(text.split("\n"));
    const written = blocks.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < written.length && written[same] === this.#shown[same]) same += 1;
    while (this.element.childElementCount > same) this.element.lastElementChild?.remove();
    this.element.append(...blocks.slice(same).map(blockElement));
    this.#shown = written;
  }
}

/** The reasoning before an answer: open while there is no answer yet, and then folded. */
export class ThoughtView {
  #view = new MarkdownView();
  element = h("details", { class: "thought", hidden: true, open: true },
    h("summary", {}, "Reasoning"), this.#view.element);
  #isOpen = true;

  /** @param {string} text the whole text so far @param {boolean} isOpen */
  show(text, isOpen) {
    this.#view.show(text);
    this.element.hidden = !text;
    if (isOpen === this.#isOpen) return; // from here on as the reader leaves it
    this.#isOpen = isOpen;
    this.element.open = isOpen;
  }
}

// -- reading --------------------------------------------------------------------------------------

/**
 * Return the blocks of lines.
 *
 * @param {string[]} lines
 * @param {number} depth of lists and quotes around them
 * @returns {Block[]}
 */
export function parseBlocks(lines, depth = 0) {
  /** @type {Block[]} */
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const { block, end } = codeAt(lines, at) ?? lineAt(lines, at) ?? tableAt(lines, at)
      ?? (depth < DEEPEST ? quoteAt(lines, at, depth) ?? listAt(lines, at, depth) : null)
      ?? paragraphAt(lines, at, depth);
    blocks.push(block);
    at = end;
  }
  return blocks;
}

/** A fence that nothing closes holds all that follows: its end may still come. */
function codeAt(/** @type {string[]} */ lines, /** @type {number} */ at) {
  const fence = lines[at].match(FENCE);
  if (fence === null) return null;
  const indent = lines[at].search(/\S/);
  const isEnd = (/** @type {string} */ line) => {
    const text = line.trim();
    return text.length >= fence[1].length && text === fence[1][0].repeat(text.length);
  };
  let end = at + 1;
  while (end < lines.length && !isEnd(lines[end])) end += 1;
  const unindented = lines.slice(at + 1, end).map((line) => withoutIndent(line, indent));
  const language = fence[2].trim().split(/\s/)[0];
  return found({ kind: "code", language, text: unindented.join("\n") }, end + 1);
}

function lineAt(/** @type {string[]} */ lines, /** @type {number} */ at) {
  const heading = lines[at].match(HEADING);
  if (heading) {
    return found({ kind: "heading", level: heading[1].length, text: heading[2] ?? "" }, at + 1);
  }
  return RULE.test(lines[at]) ? found({ kind: "rule" }, at + 1) : null;
}

function tableAt(/** @type {string[]} */ lines, /** @type {number} */ at) {
  if (!lines[at].includes("|") || !DIVIDER.test(lines[at + 1] ?? "")) return null;
  const head = cells(lines[at]);
  const alignments = cells(lines[at + 1]).map(alignment);
  if (head.length !== alignments.length) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const rows = [head, ...lines.slice(at + 2, end).map(cells)];
  return found({ kind: "table", alignments, rows }, end);
}

/** @param {string} line */
const cells = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "")
  .split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

/** @param {string} cell @returns {Alignment} */
function alignment(cell) {
  if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
  return cell.startsWith(":") ? "left" : "";
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {Found | null} */
function quoteAt(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  if (end === at) return null;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return found({ kind: "quote", blocks: parseBlocks(inner, depth + 1) }, end);
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {Found | null} */
function listAt(lines, at, depth) {
  const first = lines[at].match(ITEM);
  if (first === null) return null;
  const items = [];
  let end = at;
  for (;;) {
    const item = lines[end]?.match(ITEM);
    const continues = item && item[1].length < first[1].length + 2
      && (item[3] === undefined) === (first[3] === undefined);
    if (!continues) break;
    const after = itemEnd(lines, end, item[0].length);
    const [head, ...rest] = lines.slice(end, after);
    const inner = rest.map((line) => withoutIndent(line, item[0].length));
    items.push(parseBlocks([head.slice(item[0].length), ...inner], depth + 1));
    end = after;
  }
  const start = first[3] === undefined ? null : Number(first[3]);
  return found({ kind: "list", start, items }, end);
}

/** Return the line after an item: what belongs to it is indented, or goes on with its paragraph. */
function itemEnd(
  /** @type {string[]} */ lines, /** @type {number} */ at, /** @type {number} */ width,
) {
  let end = at + 1;
  for (let line = end; line < lines.length; line += 1) {
    const indent = lines[line].search(/\S/);
    if (indent < 0) continue;
    const goesOn = line === end && !ITEM.test(lines[line]) && !beginsBlock(lines, line);
    if (indent < Math.min(width, 2) && !goesOn) break;
    if (indent < width && ITEM.test(lines[line])) break;
    end = line + 1;
  }
  // empty lines between two items belong to the first
  let next = end;
  while (next < lines.length && !lines[next].trim()) next += 1;
  return next < lines.length && ITEM.test(lines[next]) ? next : end;
}

/** @param {string[]} lines @param {number} at @param {number} depth */
function paragraphAt(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim()
    && (depth >= DEEPEST || !beginsBlock(lines, end))) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
  return found({ kind: "paragraph", text }, end);
}

/** Return whether a line ends the paragraph before it. */
function beginsBlock(/** @type {string[]} */ lines, /** @type {number} */ at) {
  const line = lines[at];
  const item = line.match(ITEM);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)
    || (item !== null && item[0].length < line.length && (item[3] ?? "1") === "1")
    || tableAt(lines, at) !== null;
}

/** @param {string} line @param {number} width */
const withoutIndent = (line, width) => line.slice(Math.min(width, line.search(/\S|$/)));

/** @param {Block} block @param {number} end @returns {Found} */
const found = (block, end) => ({ block, end });

// -- elements -------------------------------------------------------------------------------------

/** @param {Block} block @returns {HTMLElement} */
function blockElement(block) {
  switch (block.kind) {
    case "code":
      return codeElement(block.language, block.text);
    case "heading":
      return h(HEADINGS[Math.min(block.level, HEADINGS.length) - 1], {}, inlineNodes(block.text));
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", {}, block.blocks.map(blockElement));
    case "list":
      return listElement(block.start, block.items);
    case "table":
      return tableElement(block.alignments, block.rows);
    default:
      return h("p", {}, inlineNodes(block.text));
  }
}

/** @type {("h4" | "h5" | "h6")[]} the page's own headings go down to h3 */
const HEADINGS = ["h4", "h5", "h6"];

/** @param {string} language @param {string} text */
function codeElement(language, text) {
  /** @type {HTMLButtonElement} */
  const copy = h("button", {
    type: "button", class: "quiet", on: { click: () => copyText(text, copy) },
  }, "Copy");
  return h("figure", { class: "code" },
    h("figcaption", {}, h("span", {}, language || "code"), copy),
    h("pre", { tabIndex: 0 }, h("code", {}, text)));
}

/** @param {number | null} start @param {Block[][]} items */
function listElement(start, items) {
  const children = items.map((blocks) => h("li", {}, blocks.map((block) => (
    block.kind === "paragraph" && blocks.length === 1 ? inlineNodes(block.text)
      : blockElement(block)))));
  return start === null ? h("ul", {}, children) : h("ol", { start }, children);
}

/** @param {Alignment[]} alignments @param {string[][]} rows the first one is the head */
function tableElement(alignments, [head, ...rows]) {
  /** @param {"th" | "td"} tag @param {string[]} row */
  const line = (tag, row) => h("tr", {}, alignments.map((textAlign, index) => (
    h(tag, { style: { textAlign } }, inlineNodes(row[index] ?? "")))));
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, line("th", head)), h("tbody", {}, rows.map((row) => line("td", row)))));
}

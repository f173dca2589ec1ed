// Emphasis, code, links and line breaks of Markdown as DOM nodes. HTML in the text stays text.

import { h } from "./dom.js";

const SPECIAL = /[\\`*_~[<\n]|!(?=\[)|h(?=ttps?:\/\/)/gi;
const BACKTICKS = /`+/y;
const ESCAPED = /\\([!-/:-@[-`{-~])/y;
const BREAK_TAG = /<br ?\/?>/iy;
const AUTOLINK = /<(https?:\/\/[^\s<>]+)>/iy;
const ADDRESS = /https?:\/\/[^\s<>"'`]+/iy;
const AFTER_ADDRESS = /[.,:;!?*_~)\]]+$/; // ends the sentence, and not the address
const LABEL = String.raw`(?:[^[\]\\]|\\.)*`;
const TARGET = String.raw`(?:[^\s()<>\\]|\\.|\([^\s()]*\))*`;
const TITLE = String.raw`(?:\s+"[^"]*")?`;
const LINK = new RegExp(String.raw`!?\[(${LABEL})\]\(\s*<?(${TARGET})>?${TITLE}\s*\)`, "y");
const SAFE = /^(?:https?|mailto):/i;
const DELIMITERS = /\*+|_+|~+/y;
const WORD = /[\p{L}\p{N}]/u;
const DEEPEST = 16; // open emphasis: more of it stays as it was written

/**
 * Return the nodes of a text without blocks.
 *
 * @param {string} text
 * @param {{ links?: boolean }} options without `links`, addresses stay text
 * @returns {Node[]}
 */
export function inlineNodes(text, { links = true } = {}) {
  return new InlineReader(text, links).read();
}

/** @typedef {{ mark: string, index: number }} Opened  an opening mark, by its place in the nodes */

class InlineReader {
  #text;
  #links;
  #at = 0;
  /** @type {Node[]} */
  #nodes = [];
  /** @type {Opened[]} */
  #opened = [];
  /** @type {Set<number>} lengths of runs of backticks that no later run closes */
  #unclosed = new Set();

  /** @param {string} text @param {boolean} links */
  constructor(text, links) {
    this.#text = text;
    this.#links = links;
  }

  read() {
    while (this.#at < this.#text.length) {
      SPECIAL.lastIndex = this.#at;
      const next = SPECIAL.exec(this.#text)?.index ?? this.#text.length;
      this.#plain(this.#text.slice(this.#at, next));
      this.#at = next;
      if (next < this.#text.length && !this.#special()) {
        this.#plain(this.#text[this.#at]);
        this.#at += 1;
      }
    }
    return this.#nodes;
  }

  // -- inside -------------------------------------------------------------------------------------

  /** Take what begins with a special character; false: it is plain text. */
  #special() {
    switch (this.#text[this.#at]) {
      case "\n":
        return this.#take(1, h("br"));
      case "\\":
        return this.#escape();
      case "`":
        return this.#code();
      case "[":
      case "!":
        return this.#link();
      case "<":
        return this.#angle();
      case "h":
      case "H":
        return this.#address();
      default:
        return this.#delimiters();
    }
  }

  /** @param {RegExp} pattern a sticky one */
  #match(pattern) {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#text);
  }

  /** @param {number} length @param {Node} node */
  #take(length, node) {
    this.#nodes.push(node);
    this.#at += length;
    return true;
  }

  /** @param {string} text */
  #plain(text) {
    if (text) this.#nodes.push(document.createTextNode(text));
  }

  #escape() {
    if (this.#text[this.#at + 1] === "\n") return this.#take(2, h("br"));
    const escaped = this.#match(ESCAPED);
    return escaped !== null && this.#take(2, document.createTextNode(escaped[1]));
  }

  #code() {
    const run = this.#match(BACKTICKS)?.[0] ?? "";
    const from = this.#at + run.length;
    const end = this.#unclosed.has(run.length) ? -1 : this.#closing(run, from);
    if (end < 0) {
      this.#unclosed.add(run.length);
      return this.#take(run.length, document.createTextNode(run));
    }
    const code = this.#text.slice(from, end).replaceAll("\n", " ");
    const trimmed = /^ .*\S.* $/.test(code) ? code.slice(1, -1) : code;
    return this.#take(end + run.length - this.#at, h("code", {}, trimmed));
  }

  /** Return where a run of backticks of the same length begins, or -1. */
  #closing(/** @type {string} */ run, /** @type {number} */ from) {
    let end = this.#text.indexOf(run, from);
    while (end >= 0) {
      let after = end + run.length;
      if (this.#text[after] !== "`") return end;
      while (this.#text[after] === "`") after += 1; // a longer run
      end = this.#text.indexOf(run, after);
    }
    return -1;
  }

  #link() {
    const link = this.#match(LINK);
    if (link === null) return false;
    const [whole, label, target] = link;
    const address = target.replace(/\\(.)/g, "$1");
    if (!this.#links || !SAFE.test(address)) { // such as javascript: or a path of this server
      return this.#take(whole.length, document.createTextNode(whole));
    }
    const content = inlineNodes(label || address, { links: false });
    return this.#take(whole.length, anchor(address, content));
  }

  #angle() {
    const tag = this.#match(BREAK_TAG);
    if (tag !== null) return this.#take(tag[0].length, h("br"));
    const link = this.#links ? this.#match(AUTOLINK) : null;
    return link !== null && this.#take(link[0].length, anchor(link[1], link[1]));
  }

  #address() {
    if (!this.#links || WORD.test(this.#text[this.#at - 1] ?? "")) return false;
    const address = this.#match(ADDRESS)?.[0].replace(AFTER_ADDRESS, "");
    return address !== undefined && this.#take(address.length, anchor(address, address));
  }

  /** Take a run of emphasis marks: close what is open, or else open it. */
  #delimiters() {
    const run = this.#match(DELIMITERS)?.[0] ?? "";
    const before = this.#text[this.#at - 1] ?? " ";
    const after = this.#text[this.#at + run.length] ?? " ";
    const inWord = run[0] === "_" && WORD.test(before) && WORD.test(after);
    this.#at += run.length;
    let left = run;
    const closes = !inWord && /\S/.test(before);
    while (closes && left) {
      const newest = this.#opened.findLast(({ mark }) => mark[0] === left[0])?.mark ?? "";
      // of three marks, the newest goes first; two are one mark where they can be
      const marks = left.length > 2 ? [newest] : [left, left[0]];
      const closed = marks.find((mark) => this.#close(mark));
      if (closed === undefined) break;
      left = left.slice(closed.length);
    }
    if (left && !inWord && /\S/.test(after)) this.#open(left);
    else this.#plain(left);
    return true;
  }

  /** @param {string} run */
  #open(run) {
    for (let left = run; left; left = left.slice(2)) {
      const mark = left.slice(0, 2);
      if (TAGS[mark] && this.#opened.length < DEEPEST) {
        this.#opened.push({ mark, index: this.#nodes.length });
      }
      this.#plain(mark); // stays as it is, unless something closes it
    }
  }

  /** Put what came since the opening `mark` into its element; false: none is open. */
  #close(/** @type {string} */ mark) {
    const place = this.#opened.findLastIndex((entry) => entry.mark === mark);
    if (place < 0) return false;
    const { index } = this.#opened[place];
    if (index + 1 === this.#nodes.length) return false; // nothing is between the two
    const content = this.#nodes.splice(index + 1);
    this.#nodes[index] = h(TAGS[mark], {}, content);
    this.#opened.length = place;
    return true;
  }
}

/** @type {{ [mark: string]: "em" | "strong" | "del" }} */
const TAGS = { "*": "em", _: "em", "**": "strong", __: "strong", "~~": "del" };

/** @param {string} address @param {string | Node[]} content */
const anchor = (address, content) => h("a", {
  href: address, target: "_blank", rel: "noopener noreferrer nofollow",
}, content);

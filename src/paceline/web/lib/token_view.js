// The tokens of an answer with their marks, and the columns of its rounds.

import { closest, find, findAll, h } from "./dom.js";
import { fixed } from "./format.js";
import { isCommitted, KINDS, TokenText, tokensOf } from "./rounds.js";

/** @import { Round } from "../types/answers" */
/** @import { ShownToken } from "./rounds.js" */

/** @type {{ [part: string]: string }} */
const DRAFTED_BY = {
  suffix: "a look-up in what was said before",
  ngram: "a look-up in this text",
  dflash: "the DFlash drafter",
};
/** @type {{ [key: string]: 1 | -1 }} */
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };
const COMMITTED = ".token:not(.rejected, .unused, .withheld)";
const HIGHEST = 12; // tokens that a column of the strip shows

export class TokenView {
  element;
  #tokens;
  #about = h("p", { class: "told hint", role: "status", hidden: true });
  #columns = h("div", { class: "columns-of-rounds" });
  #reader = new TokenText();
  #rounds = 0;

  /** @param {string} title says which answer this is @param {{ drafts: boolean }} options */
  constructor(title, { drafts }) {
    this.#tokens = h("div", {
      class: "tokens",
      tabIndex: 0,
      role: "region",
      "aria-label": `${title}. Arrow keys go from token to token`,
      on: {
        click: (event) => this.#look(closest(event, ".token")),
        keydown: (event) => this.#onKey(event),
      },
    });
    const strip = h("figure", { class: "strip" }, this.#columns,
      h("figcaption", { class: "hint" }, "Each round: the model's own token, accepted ones on top, "
        + "and above them the drafted ones that were not accepted."));
    this.element = h("div", { class: "token-view" }, this.#tokens, this.#about,
      drafts ? strip : null);
  }

  /** @param {Round} round the next one */
  add(round) {
    this.#rounds += 1;
    const tokens = tokensOf(round);
    const follow = isAtEnd(this.#tokens);
    this.#tokens.append(...tokens.map((token) => this.#span(token, round)));
    if (follow) this.#tokens.scrollTop = this.#tokens.scrollHeight;
    this.#columns.append(column(round, tokens));
  }

  /** Point at the token where another answer differs. @param {number} index */
  mark(index) {
    findAll(this.#tokens, COMMITTED)[index]?.classList.add("parted");
  }

  /** Mark the token that ended the answer: it is no part of the text. */
  markEnd() {
    const last = findAll(this.#tokens, COMMITTED).at(-1);
    if (!last) return;
    last.classList.add("end");
    last.title = `The model ended its answer here. ${last.title}`;
  }

  // -- inside -------------------------------------------------------------------------------------

  /** @param {ShownToken} token @param {Round} round */
  #span(token, round) {
    const committed = isCommitted(token.kind);
    const text = committed ? this.#reader.read(token.text) : token.text.replaceAll("\n", "⏎");
    const marks = ["token", token.kind];
    if (text.includes("\n")) marks.push("newline");
    const properties = { class: marks.join(" "), title: this.#describe(token, round) };
    return h(committed ? "span" : "del", properties, text);
  }

  /** @param {ShownToken} token @param {Round} round */
  #describe({ kind, id, text }, round) {
    const drafted = round.proposed && kind !== "bonus" && kind !== "forced";
    const drafter = DRAFTED_BY[round.part ?? ""] ?? round.part ?? round.drafter;
    const cut = round.cut_by ? ` The draft is no longer because of: ${round.cut_by}.` : "";
    const took = fixed(round.step_ms + round.draft_ms, 1);
    return `${KINDS[kind].name}: ${KINDS[kind].text}.${drafted ? ` Drafted by ${drafter}.` : ""}\n`
      + `Round ${this.#rounds}: drafted ${round.proposed}, verified ${round.verified}, `
      + `accepted ${round.accepted}; ${took} ms.${cut}`
      + (id === null ? "" : `\nToken ${id} ${JSON.stringify(text)}`);
  }

  /** Describe a token below the text, for fingers and keys. @param {HTMLElement | null} span */
  #look(span) {
    if (!span) return;
    find(this.#tokens, ".seen")?.classList.remove("seen");
    span.classList.add("seen");
    span.scrollIntoView({ block: "nearest" });
    this.#about.textContent = span.title;
    this.#about.hidden = false;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const spans = findAll(this.#tokens, ".token");
    const seen = spans.findIndex((span) => span.classList.contains("seen"));
    this.#look(spans[seen < 0 ? 0 : seen + step] ?? null);
  }
}

/** Return whether a box is scrolled to its end, so that it should follow. @param {Element} box */
const isAtEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 40;

/**
 * Return the column of one round in the strip: its committed tokens, and above them the others.
 *
 * @param {Round} round
 * @param {ShownToken[]} tokens
 */
function column(round, tokens) {
  const committed = round.committed_tokens.length;
  const others = tokens.length - committed;
  /** @param {string} name @param {number} count */
  const part = (name, count) => (
    h("i", { class: name, style: { height: `${3 * Math.min(count, HIGHEST)}px` } }));
  return h("span", { title: `${committed} committed, ${others} more drafted` },
    part("lost", others),
    part("kept", round.accepted),
    part("sure", round.forced),
    part("own", committed - round.accepted - round.forced));
}

/** Return the legend: each mark with its name and meaning. */
export function tokenLegend() {
  return h("ul", { class: "token-legend", "aria-label": "What the marks mean" },
    Object.entries(KINDS).map(([kind, { name, text }]) => h("li", { title: text },
      h("span", { class: `token ${kind}`, "aria-hidden": "true" }, "token"), ` ${name}`)));
}

/**
 * Return switches of what the tokens under `element` show. They set classes, so that they change
 * shown tokens too.
 *
 * @param {HTMLElement} element
 */
export function tokenSwitches(element) {
  /** @param {string} name @param {string} text @param {boolean} checked */
  const box = (name, text, checked) => {
    const apply = () => element.classList.toggle(`no-${name}`, !input.checked);
    /** @type {HTMLInputElement} */
    const input = h("input", { type: "checkbox", checked, on: { change: apply } });
    apply();
    return h("label", {}, input, ` ${text}`);
  };
  return h("div", { class: "views", role: "group", "aria-label": "Show" },
    box("marks", "marks", true), box("rejected", "rejected", true),
    box("unused", "drafted only", false));
}

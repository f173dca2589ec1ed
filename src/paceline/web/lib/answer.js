// One answer on the page: its tokens with their marks as they come, and its numbers.

import { closest, find, findAll, h } from "./dom.js";
import { errorBox } from "./errors.js";
import { fixed, NONE, number, percent, seconds } from "./format.js";
import { isAbort } from "./http.js";
import { Counts, isCommitted, KINDS, TokenText, tokensOf } from "./rounds.js";
import { streamed } from "./stream.js";

/** @import { ChatRequest } from "../types/api" */
/** @import { AnswerMetrics, ChatChunk, CommittedToken, Round } from "../types/answers" */
/** @import { ShownToken } from "./rounds.js" */

/** @type {{ [part: string]: string }} */
const DRAFTED_BY = {
  suffix: "a look-up in what was said before",
  ngram: "a look-up in this text",
  dflash: "the DFlash drafter",
};
/** @type {{ [reason: string]: string }} */
const ENDED_BY = { stop: "the model ended it", length: "max tokens reached" };
/** @type {{ [key: string]: 1 | -1 }} */
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };
const COMMITTED = ".token:not(.rejected, .unused, .withheld)";
const HIGHEST = 12; // tokens that a column of the strip shows

export class Answer {
  counts = new Counts();
  /** @type {CommittedToken[]} tokens of the answer */
  committed = [];
  text = ""; // as the server gives it: the conversation goes on with it
  /** @type {AnswerMetrics | null} */
  metrics = null;
  /** @type {"waiting" | "running" | "done" | "stopped" | "failed"} */
  state = "waiting";
  element;
  #drafts;
  #tokens;
  #about = h("p", { class: "told hint", role: "status", hidden: true });
  #numbers = h("dl", { class: "numbers" });
  #columns = h("div", { class: "columns-of-rounds" });
  #note = h("p", { class: "hint" });
  #reader = new TokenText();
  #due = false;
  /** @type {string | null} the server's reason for the end */
  #ended = null;

  /** @param {string} title says which answer this is @param {{ drafts: boolean }} options */
  constructor(title, { drafts }) {
    this.#drafts = drafts;
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
    this.element = h("article", { class: "answer" },
      h("h3", {}, title), this.#tokens, this.#about, drafts ? strip : null, this.#numbers,
      this.#note);
    this.#show();
  }

  /**
   * Run a request to its end, and show it. Throws every error, which fail() may show.
   *
   * @param {ChatRequest} body
   * @param {AbortSignal} signal
   * @param {(text: string) => void} heard gets the text as it comes
   */
  async run(body, signal, heard) {
    this.state = "running";
    try {
      for await (const event of streamed("v1/chat/completions", body, signal)) {
        this.#take(event, heard);
      }
      this.state = "done";
    } catch (error) {
      this.state = isAbort(error) ? "stopped" : "failed";
      throw error;
    } finally {
      this.#show();
    }
  }

  /** Show an error in the answer's place. @param {Error} error */
  fail(error) {
    this.element.append(errorBox(error));
  }

  /** Point at the token where another answer differs. @param {number} index */
  mark(index) {
    findAll(this.#tokens, COMMITTED)[index]?.classList.add("parted");
  }

  // -- inside -------------------------------------------------------------------------------------

  /** @param {ChatChunk} event @param {(text: string) => void} heard */
  #take(event, heard) {
    if (event.metrics) this.metrics = event.metrics;
    const [choice] = event.choices;
    if (!choice) return;
    const text = choice.delta?.content ?? "";
    this.text += text;
    if (text) heard(text);
    if (choice.round) this.#addRound(choice.round);
    if (choice.finish_reason) {
      this.#ended = choice.finish_reason;
      if (choice.finish_reason === "stop" && choice.stop_reason === null) this.#markEnd();
    }
    if (!this.#due) { // many rounds may come between two frames
      this.#due = true;
      requestAnimationFrame(() => { this.#due = false; this.#show(); });
    }
  }

  /** @param {Round} round */
  #addRound(round) {
    const tokens = tokensOf(round);
    this.counts.add(round);
    this.committed.push(...round.committed_tokens);
    const follow = isAtEnd(this.#tokens);
    this.#tokens.append(...tokens.map((token) => this.#span(token, round)));
    if (follow) this.#tokens.scrollTop = this.#tokens.scrollHeight;
    if (this.#drafts) this.#columns.append(column(round, tokens));
  }

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
      + `Round ${this.counts.rounds}: drafted ${round.proposed}, verified ${round.verified}, `
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

  /** Mark the token that ended the answer: it is no part of the text. */
  #markEnd() {
    const last = findAll(this.#tokens, COMMITTED).at(-1);
    if (!last) return;
    last.classList.add("end");
    last.title = `The model ended its answer here. ${last.title}`;
  }

  #show() {
    const { counts, metrics } = this;
    const shown = [
      ["TPOT", seconds(metrics?.tpot ?? counts.tpot), "time per output token after the first"],
      ["TTFT", seconds(metrics?.ttft), "time to first token, once the answer has ended"],
      ["tokens", `${counts.tokens}`, "committed, the one that ends the answer included"],
      ["rounds", `${counts.rounds}`, "forwards of the model"],
    ];
    if (this.#drafts) {
      shown.unshift(["AL incl. bonus", fixed(counts.acceptanceLength, 2),
        "tokens per round with a draft, the bonus token included"]);
      shown.push(["accepted", this.#acceptedShare(), "of the drafted tokens that were verified"]);
    }
    this.#numbers.replaceChildren(...shown.map(([name, value, title]) => h("div", { title },
      h("dt", {}, name), h("dd", {}, value))));
    this.#note.textContent = this.#status();
    this.element.dataset.state = this.state;
  }

  #acceptedShare() {
    const { draftTokens, acceptedTokens } = this.counts;
    if (!draftTokens) return this.state === "done" ? "nothing drafted" : NONE;
    return `${acceptedTokens} of ${draftTokens} (${percent(acceptedTokens / draftTokens)})`;
  }

  #status() {
    if (this.state === "waiting") return "waits for its turn";
    if (this.state === "running") return this.counts.rounds ? "answering…" : "reading the prompt…";
    if (this.state === "stopped") return "stopped; the server no longer works on it";
    if (this.state === "failed") return "";
    const why = ENDED_BY[this.#ended ?? ""] ?? this.#ended;
    const speedup = this.metrics?.speedup_vs_ar;
    const cost = speedup ? `; ${number(speedup)}× of plain decoding by the cost table` : "";
    return `${why}; seed ${this.metrics?.seed ?? NONE}${cost}`;
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
  return h("ul", { class: "legend", "aria-label": "What the marks mean" },
    Object.entries(KINDS).map(([kind, { name, text }]) => h("li", { title: text },
      h("span", { class: `token ${kind}`, "aria-hidden": "true" }, "token"), ` ${name}`)));
}

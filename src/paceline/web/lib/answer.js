// One answer on the page: its text, its tokens as they come, and its numbers.

import { h } from "./dom.js";
import { errorBox } from "./errors.js";
import { fixed, NONE, number, percent, seconds } from "./format.js";
import { isAbort } from "./http.js";
import { MarkdownView, ThoughtView } from "./markdown.js";
import { Counts, TokenText } from "./rounds.js";
import { streamed } from "./stream.js";
import { TokenView } from "./token_view.js";

/** @import { ChatRequest } from "../types/api" */
/** @import { AnswerMetrics, ChatChunk, CommittedToken, Round } from "../types/answers" */
/** @import { TimedEvent } from "../types/answers" */
/** @import { KeptAnswer } from "./conversations.js" */
/** @import { Run } from "./race.js" */

/** @type {{ [reason: string]: string }} */
const ENDED_BY = { stop: "the model ended it", length: "max tokens reached" };

export class Answer {
  counts = new Counts();
  /** @type {CommittedToken[]} tokens of the answer */
  committed = [];
  text = ""; // as the server gives it: the conversation goes on with it
  reasoning = ""; // what a model wrote before, where its template marks it
  /** @type {AnswerMetrics | null} */
  metrics = null;
  /** @type {"waiting" | "running" | "done" | "stopped" | "failed"} */
  state = "waiting";
  element;
  #title;
  #drafts;
  #model;
  /** @type {Round[]} */
  #rounds = [];
  #thought = new ThoughtView();
  #prose = new MarkdownView();
  #tokens;
  #numbers = h("dl", { class: "numbers" });
  #note = h("p", { class: "hint" });
  #due = false;
  /** @type {string | null} the server's reason for the end */
  #ended = null;
  #endToken = false; // the last token ended the answer, and is no part of the text

  /**
   * @param {string} title says which answer this is
   * @param {{ drafts: boolean, model: string }} options `model` is the name that is asked
   */
  constructor(title, { drafts, model }) {
    this.#title = title;
    this.#model = model;
    this.#drafts = drafts;
    this.#tokens = new TokenView(title, { drafts });
    this.element = h("article", { class: "answer" },
      h("h3", {}, title), this.#thought.element, this.#prose.element, this.#tokens.element,
      this.#numbers, this.#note);
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
    this.#tokens.mark(index);
  }

  /** Return what a kept conversation has of this answer. @returns {KeptAnswer} */
  kept() {
    const { text, reasoning, metrics, counts: { tokens, acceptanceLength } } = this;
    return {
      title: this.#title, model: this.#model, text, reasoning, tokens,
      acceptance_length: acceptanceLength,
      tpot: metrics?.tpot ?? null, ttft: metrics?.ttft ?? null, seed: metrics?.seed ?? null,
    };
  }

  /** Return the measured run, to be played: null where no time to its first token is known. */
  recorded() {
    const first = this.#rounds[0]?.time;
    if (!this.metrics?.ttft || first === undefined) return null;
    const start = first - this.metrics.ttft;
    const reader = new TokenText();
    /** @type {Run} */
    const run = {
      events: this.#rounds.map((round) => eventOf(round, 1e3 * (round.time - start))),
      pieces: this.committed.map(({ text }) => reader.read(text)),
    };
    if (this.#endToken) run.pieces[run.pieces.length - 1] = "";
    return run;
  }

  // -- inside -------------------------------------------------------------------------------------

  /** @param {ChatChunk} event @param {(text: string) => void} heard */
  #take(event, heard) {
    if (event.metrics) this.metrics = event.metrics;
    const [choice] = event.choices;
    if (!choice) return;
    const text = choice.delta?.content ?? "";
    this.text += text;
    this.reasoning += choice.delta?.reasoning_content ?? "";
    if (text) heard(text);
    if (choice.round) this.#addRound(choice.round);
    if (choice.finish_reason) {
      this.#ended = choice.finish_reason;
      this.#endToken = choice.finish_reason === "stop" && choice.stop_reason === null;
      if (this.#endToken) this.#tokens.markEnd();
    }
    if (!this.#due) { // many rounds may come between two frames
      this.#due = true;
      requestAnimationFrame(() => { this.#due = false; this.#show(); });
    }
  }

  /** @param {Round} round */
  #addRound(round) {
    this.#rounds.push(round);
    this.counts.add(round);
    this.committed.push(...round.committed_tokens);
    this.#tokens.add(round);
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
    this.#thought.show(this.reasoning, this.text === "");
    this.#prose.show(this.text);
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

/** @param {Round} round @param {number} ms @returns {TimedEvent} */
function eventOf(round, ms) {
  const tokens = round.committed_tokens.length;
  const drafted = round.verified - round.forced_places.length;
  const accepted = Math.min(round.accepted, tokens);
  return { t_ms: ms, tokens, accepted, own: tokens - accepted, drafted };
}

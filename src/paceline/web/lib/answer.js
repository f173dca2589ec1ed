// One answer on the page: its tokens with their marks as they come, and what they amount to.

import { h } from "./dom.js";
import { errorBox } from "./errors.js";
import { fixed, NONE, number, percent, seconds } from "./format.js";
import { Counts, KINDS, TokenText, tokensOf } from "./rounds.js";
import { streamed } from "./stream.js";

const BY = { suffix: "a look-up in what was said before", ngram: "a look-up in this text", dflash: "the DFlash drafter" };

export class Answer {
  /** `title` says which answer it is, where there are two. */
  constructor(title, { drafts }) {
    this.counts = new Counts();
    this.committed = []; // tokens of the answer
    this.text = ""; // as the server gives it: what the conversation goes on with
    this.metrics = null;
    this.state = "waiting"; // then running, done, stopped or failed
    this.#drafts = drafts;
    this.#tokens = h("div", { class: "tokens", tabIndex: 0, role: "region",
      "aria-label": `${title}. Arrow keys go from token to token`, on: {
        click: (event) => this.#look(event.target.closest(".token")),
        keydown: (event) => this.#byKey(event),
      } });
    this.#about = h("p", { class: "told hint", role: "status", hidden: true });
    this.#numbers = h("dl", { class: "numbers" });
    this.#columns = h("div", { class: "columns-of-rounds" });
    this.#strip = h("figure", { class: "strip" }, this.#columns,
      h("figcaption", { class: "hint" }, "Each round: the model's own token, accepted ones on top, and what was drafted beyond them."));
    this.#note = h("p", { class: "hint" });
    this.element = h("article", { class: "answer" },
      h("h3", {}, title), this.#tokens, this.#about, drafts ? this.#strip : null, this.#numbers, this.#note);
    this.#show();
  }

  /** Runs a request to its end, and shows it. Raises what goes wrong, shown here or not. */
  async run(body, signal, heard) {
    this.state = "running";
    try {
      for await (const event of streamed("v1/chat/completions", body, signal)) {
        this.#take(event, heard);
      }
      this.state = "done";
    } catch (error) {
      this.state = error.name === "AbortError" ? "stopped" : "failed";
      throw error;
    } finally {
      this.#show();
    }
  }

  /** Says in place what went wrong. */
  fail(error) {
    this.element.append(errorBox(error));
  }

  /** Points at the token where another answer says something else. */
  mark(index) {
    const spans = this.#tokens.querySelectorAll(".token:not(.rejected, .unused, .withheld)");
    spans[index]?.classList.add("parted");
  }

  // -- inside --------------------------------------------------------------------------------------

  #drafts; #tokens; #about; #numbers; #strip; #columns; #note;
  #reader = new TokenText();
  #due = false;

  #take(event, heard) {
    if (event.metrics) this.metrics = event.metrics;
    const [choice] = event.choices;
    if (!choice) return;
    const said = choice.delta.content ?? "";
    this.text += said;
    if (said) heard(said);
    if (choice.round) this.#round(choice.round);
    if (choice.finish_reason) {
      this.ended = choice.finish_reason;
      if (choice.finish_reason === "stop" && choice.stop_reason === null) this.#markEnd();
    }
    if (!this.#due) { // many rounds may come between two frames
      this.#due = true;
      requestAnimationFrame(() => { this.#due = false; this.#show(); });
    }
  }

  #round(round) {
    const tokens = tokensOf(round);
    this.counts.add(round, tokens);
    this.committed.push(...round.committed_tokens);
    const follow = atEnd(this.#tokens);
    this.#tokens.append(...tokens.map((token) => this.#span(token, round)));
    if (follow) this.#tokens.scrollTop = this.#tokens.scrollHeight;
    if (this.#drafts) this.#columns.append(column(round, tokens));
  }

  #span(token, round) {
    const out = ["rejected", "unused", "withheld"].includes(token.kind);
    const text = out ? token.text.replaceAll("\n", "⏎") : this.#reader.read(token);
    const marks = ["token", token.kind];
    if (text.includes("\n")) marks.push("newline");
    return h(out ? "del" : "span", { class: marks.join(" "), title: this.#told(token, round) }, text);
  }

  #told({ kind, id, text }, round) {
    const by = round.proposed && kind !== "bonus" && kind !== "forced"
      ? ` Drafted by ${BY[round.part] ?? round.part ?? round.drafter}.` : "";
    const short = round.cut_by ? ` No longer draft because of: ${round.cut_by}.` : "";
    const took = fixed(round.step_ms + round.draft_ms, 1);
    return `${KINDS[kind].name}: ${KINDS[kind].text}.${by}\nRound ${this.counts.rounds}: drafted `
      + `${round.proposed}, verified ${round.verified}, accepted ${round.accepted}; ${took} ms.${short}`
      + (id === null ? "" : `\nToken ${id} ${JSON.stringify(text)}`);
  }

  /** Says below what is known of a token: for fingers and keys, which cannot hover. */
  #look(span) {
    if (!span) return;
    this.#tokens.querySelector(".seen")?.classList.remove("seen");
    span.classList.add("seen");
    span.scrollIntoView({ block: "nearest" });
    this.#about.textContent = span.title;
    this.#about.hidden = false;
  }

  #byKey(event) {
    const next = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    if (!next) return;
    event.preventDefault();
    const seen = this.#tokens.querySelector(".seen");
    this.#look(seen ? seen[next] : this.#tokens.firstElementChild);
  }

  /** The token that ends an answer is no part of its text. */
  #markEnd() {
    const spans = this.#tokens.querySelectorAll(".token:not(.rejected, .unused, .withheld)");
    const last = spans[spans.length - 1];
    if (!last) return;
    last.classList.add("end");
    last.title = `The model ended its answer here. ${last.title}`;
  }

  #show() {
    const { counts, metrics } = this;
    const tpot = metrics?.tpot ?? counts.tpot;
    const shown = [
      ["TPOT", seconds(tpot), "time per output token after the first"],
      ["TTFT", seconds(metrics?.ttft), "time to first token, once the answer has ended"],
      ["tokens", `${counts.tokens}`, "committed, the one that ends the answer included"],
      ["rounds", `${counts.rounds}`, "forwards of the model"],
    ];
    if (this.#drafts) {
      shown.unshift(["AL incl. bonus", fixed(counts.acceptanceLength, 2),
        "tokens per round with a draft, the bonus token included"]);
      shown.push(["accepted", this.#share(), "of the drafted tokens that were verified"]);
    }
    this.#numbers.replaceChildren(...shown.map(([name, value, title]) => h("div", { title },
      h("dt", {}, name), h("dd", {}, value))));
    this.#note.textContent = this.#said();
    this.element.dataset.state = this.state;
  }

  #share() {
    const { draftTokens, kinds: { accepted } } = this.counts;
    return draftTokens ? `${accepted} of ${draftTokens} (${percent(accepted / draftTokens)})` : this.state === "done" ? "nothing drafted" : NONE;
  }

  #said() {
    if (this.state === "waiting") return "waits for its turn";
    if (this.state === "running") return this.counts.rounds ? "answering…" : "reading the prompt…";
    if (this.state === "stopped") return "stopped; the server has let go of it";
    if (this.state === "failed") return "";
    const why = { stop: "the model ended it", length: "max tokens reached" }[this.ended] ?? this.ended;
    const speedup = this.metrics?.speedup_vs_ar;
    const cost = speedup ? `; ${number(speedup)}× of plain decoding by the cost table` : "";
    return `${why}; seed ${this.metrics?.seed}${cost}`;
  }
}

/** Whether a box is scrolled to its end, so that more text should be followed. */
const atEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 40;

/** One round in the strip: what it committed, and above it what else was drafted. */
function column(round, tokens) {
  const lost = tokens.length - round.committed_tokens.length;
  const height = (count) => ({ height: `${3 * Math.min(count, 12)}px` });
  return h("span", { title: `${round.committed_tokens.length} committed, ${lost} more drafted` },
    h("i", { class: "lost", style: height(lost) }),
    h("i", { class: "kept", style: height(round.accepted) }),
    h("i", { class: "sure", style: height(round.forced) }),
    h("i", { class: "own", style: height(round.committed_tokens.length - round.accepted - round.forced) }));
}

/** The legend: each mark with its name and meaning. */
export function legend() {
  return h("ul", { class: "legend", "aria-label": "What the marks mean" },
    Object.entries(KINDS).map(([kind, { name, text }]) => h("li", { title: text },
      h("span", { class: `token ${kind}`, "aria-hidden": "true" }, "token"), ` ${name}`)));
}

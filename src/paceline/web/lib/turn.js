// One question of a conversation, and its answer or its two answers.

import { Answer } from "./answer.js";
import { choice } from "./controls.js";
import { h } from "./dom.js";
import { asError } from "./errors.js";
import { fixed, number, seconds, times } from "./format.js";
import { MarkdownView, ThoughtView } from "./markdown.js";
import { Race } from "./race.js";
import { firstDifference } from "./rounds.js";

/** @import { Message } from "../types/api" */
/** @import { KeptAnswer, KeptTurn } from "./conversations.js" */
/** @import { Plan, Side } from "./settings.js" */
/** @import { Speaker } from "./speaker.js" */

/** @typedef {"text" | "rounds" | "race"} View */

let races = 0;

export class Turn {
  element;
  said;
  #plan;
  #before;
  #answers;
  /** @type {Race | null} */
  #race = null;
  /** @type {ReturnType<typeof choice<View>>} */
  #views;
  #verdict = h("p", { class: "verdict", role: "status", hidden: true });

  /** @param {string} said @param {Plan} plan @param {Message[]} before */
  constructor(said, plan, before) {
    this.said = said;
    this.#plan = plan;
    this.#before = before;
    this.#answers = plan.sides.map((side) => emptyAnswer(side, plan));
    this.#views = this.#viewChoice(["text", "rounds"]);
    this.element = h("div", { class: "turn" },
      h("p", { class: "said" }, said),
      this.#views.element,
      this.#verdict,
      h("div", { class: this.#isPair ? "panes answers" : "answers" },
        this.#answers.map(({ element }) => element)));
    this.#show(this.#isPair ? "rounds" : "text");
  }

  get hasStarted() {
    return this.#answers.some(({ committed }) => committed.length > 0);
  }

  /** The question and its answer; nothing where nothing was answered. */
  get messages() {
    return messagesOf(this.said, this.#answers[0].text);
  }

  /** Return what a kept conversation has of this turn. @returns {KeptTurn} */
  kept() {
    const answers = this.#answers.filter(({ text, reasoning }) => text || reasoning)
      .map((answer) => answer.kept());
    return { said: this.said, answers, verdict: this.#verdict.textContent ?? "" };
  }

  /**
   * Run one answer after the other, so that neither slows the other down.
   *
   * @param {{ salt: string, signal: AbortSignal, speaker: Speaker }} options `salt` is the cache
   *   scope of a lone answer
   */
  async run({ salt, signal, speaker }) {
    /** @type {Message[]} */
    const messages = [...this.#before, { role: "user", content: this.said }];
    for (const [index, answer] of this.#answers.entries()) {
      // Each answer of a pair has its own scope: it neither finds the other's prompt in the cache,
      // nor drafts from the other's text.
      const scope = this.#isPair ? newId() : salt;
      const body = this.#plan.body(messages, this.#plan.sides[index], scope);
      await answer.run(body, signal, index === 0 ? (text) => speaker.hear(text) : () => {});
    }
    if (!this.#isPair) return;
    speaker.end();
    this.#compare(speaker);
    this.#offerRace();
  }

  /** @param {unknown} error */
  fail(error) {
    const failed = this.#answers.find(({ state }) => state === "failed") ?? this.#answers[0];
    failed.fail(asError(error));
  }

  /** Stop what plays: the turn goes out of sight. */
  pause() {
    this.#race?.pause();
  }

  // -- inside -------------------------------------------------------------------------------------

  get #isPair() {
    return this.#plan.sides.length > 1;
  }

  /** @param {View[]} views */
  #viewChoice(views) {
    const options = /** @type {Record<View, string>} */ (
      Object.fromEntries(views.map((view) => [view, VIEWS[view]])));
    return choice("Show the answer as", options, views[0], (view) => this.#show(view));
  }

  /** @param {View} view */
  #show(view) {
    this.element.dataset.view = view;
    this.#views.choose(view);
    if (view === "race") this.#race?.present();
    else this.#race?.pause();
  }

  /** Offer both measured answers as a race, and play it where the reader takes motion. */
  #offerRace() {
    const runs = this.#answers.map((answer) => answer.recorded());
    const known = runs.filter((run) => run !== null);
    if (known.length < runs.length) return;
    races += 1;
    this.#race = new Race(`race-${races}`);
    this.#race.load(known);
    this.element.append(this.#race.element);
    const { element } = this.#views;
    this.#views = this.#viewChoice(["text", "rounds", "race"]);
    element.replaceWith(this.#views.element);
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.#show(isStill ? "rounds" : "race");
  }

  /** @param {Speaker} speaker */
  #compare(speaker) {
    const [off, on] = this.#answers;
    const index = firstDifference(off.committed, on.committed);
    const isEqual = index === null && off.text === on.text;
    const words = isEqual ? `Identical, ${off.committed.length} tokens.`
      : this.#different(off, on, index ?? off.committed.length);
    this.#verdict.replaceChildren(
      h("strong", {}, `${isEqual ? "✓" : "✗"} ${words}`), ` ${pace(off, on)}`);
    this.#verdict.classList.toggle("bad", !isEqual);
    this.#verdict.hidden = false;
    speaker.say(words);
  }

  /** @param {Answer} off @param {Answer} on @param {number} index */
  #different(off, on, index) {
    off.mark(index);
    on.mark(index);
    const token = (/** @type {Answer} */ { committed }) => (
      committed[index] ? JSON.stringify(committed[index].text) : "nothing");
    const { mayDiffer } = this.#plan;
    return `Different from token ${index + 1} on: off says ${token(off)}, on says ${token(on)}. `
      + (mayDiffer
        ? `That is allowed here: under the rule ${mayDiffer} a sampled text depends on its drafts.`
        : "That should not be: please report it.");
  }
}

/** @type {Record<View, string>} */
const VIEWS = { text: "Text", rounds: "Rounds", race: "Race" };

/** A turn of a kept conversation: texts and numbers; its rounds were not kept. */
export class KeptTurnView {
  element;
  #turn;

  /** @param {KeptTurn} turn */
  constructor(turn) {
    this.#turn = turn;
    const { said, answers, verdict } = turn;
    this.element = h("div", { class: "turn", dataset: { view: "text" } },
      h("p", { class: "said" }, said),
      verdict ? h("p", { class: "verdict" }, verdict) : null,
      h("div", { class: answers.length > 1 ? "panes answers" : "answers" },
        answers.map(keptAnswer)));
  }

  get said() {
    return this.#turn.said;
  }

  get messages() {
    return messagesOf(this.#turn.said, this.#turn.answers[0]?.text ?? "");
  }

  kept() {
    return this.#turn;
  }

  pause() {} // nothing of it plays
}

/** @param {KeptAnswer} answer */
function keptAnswer(answer) {
  const {
    title, model, text, reasoning, tokens, acceptance_length: length, tpot, ttft, seed,
  } = answer;
  const [thought, prose] = [new ThoughtView(), new MarkdownView()];
  thought.show(reasoning, false);
  prose.show(text);
  const shown = [
    ...(length === null ? [] : [["AL incl. bonus", fixed(length, 2)]]),
    ["TPOT", seconds(tpot)], ["TTFT", seconds(ttft)], ["tokens", number(tokens, 6)],
  ];
  return h("article", { class: "answer", dataset: { state: "kept" } },
    h("h3", {}, title), thought.element, prose.element,
    h("dl", { class: "numbers" }, shown.map(([name, value]) => h("div", {},
      h("dt", {}, name), h("dd", {}, value)))),
    h("p", { class: "hint" },
      `from ${model}, on an earlier visit; seed ${seed}; its rounds were not kept`));
}

/** @param {string} said @param {string} text @returns {Message[]} */
const messagesOf = (said, text) => (text
  ? [{ role: "user", content: said }, { role: "assistant", content: text }] : []);

/** @param {Side} side @param {Plan} plan */
function emptyAnswer(side, { drafter, model }) {
  const drafts = side === "on" && drafter !== null;
  return new Answer(drafts ? `Speculation on: ${drafter}` : "Speculation off", { drafts, model });
}

/**
 * Return the measured difference in speed of two answers.
 *
 * @param {Answer} off
 * @param {Answer} on
 */
function pace(off, on) {
  const [slow, fast] = [off.metrics?.tpot, on.metrics?.tpot];
  if (!slow || !fast) return "";
  return `TPOT ${seconds(slow)} off, ${seconds(fast)} on: ${times(slow / fast)} as fast, measured `
    + "on this one answer, one after the other.";
}

/** Return a name that nobody else has: of a cache scope, or of a conversation. */
export const newId = () => `playground-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

// Talk to the served model and see what speculation does: in a chat, or off beside on.

import { Answer, tokenLegend } from "../lib/answer.js";
import { find, h, loadStyle } from "../lib/dom.js";
import { asError, clearErrors, errorBox, labelled, showAtField } from "../lib/errors.js";
import { seconds, times } from "../lib/format.js";
import { getJson, isAbort } from "../lib/http.js";
import { firstDifference } from "../lib/rounds.js";
import { Settings } from "../lib/settings.js";
import { Speaker } from "../lib/speaker.js";

/** @import { Message } from "../types/api" */
/** @import { ServingFacts } from "../types/answers" */
/** @import { Plan, Side } from "../lib/settings.js" */

const EXAMPLES = [
  "Give me three tips for sleeping better.",
  "Say this twice: the tide went out slowly, and nobody noticed.",
  "Write a Python function that reverses a list, then write it again with type hints.",
];

/** @param {HTMLElement} element */
export async function mount(element) {
  /** @type {[ServingFacts, void]} */
  const [facts] = await Promise.all([getJson("ui/serving"), loadStyle("tabs/playground.css")]);
  new Playground(element, facts);
}

class Playground {
  #facts;
  #settings;
  #speaker = new Speaker();
  /** @type {Message[]} the conversation so far, without the system prompt */
  #messages = [];
  #salt = newScope();
  /** @type {AbortController | null} of the answer that is being made */
  #running = null;
  #log = h("div", { class: "log" });
  #prompt = h("textarea", {
    rows: 3, placeholder: "Say something to the model…", spellcheck: false,
    on: { keydown: (event) => this.#onKey(event) },
  });
  #send = h("button", { type: "submit", class: "primary" }, "Send");
  #stop = h("button", {
    type: "button", hidden: true, on: { click: () => this.#running?.abort() },
  }, "Stop");
  #clear = h("button", {
    type: "button", class: "quiet", on: { click: () => this.#reset() },
  }, "New conversation");
  #form = h("form", {
    class: "ask", noValidate: true,
    on: { submit: (event) => { event.preventDefault(); this.#ask(); } },
  });

  /** @param {HTMLElement} element @param {ServingFacts} facts */
  constructor(element, facts) {
    this.#facts = facts;
    this.#settings = new Settings(facts, () => this.#reset());
    this.#form.append(
      h("div", { class: "key" }, tokenLegend(), views(element)),
      labelled("messages", "Message", this.#prompt),
      h("div", { class: "actions" },
        h("span", { class: "hint keys" }, "Enter sends, Shift+Enter makes a new line, Esc stops"),
        this.#clear, this.#stop, this.#send));
    element.append(
      h("h1", { class: "unseen" }, "Playground"),
      h("div", { class: "columns" },
        h("div", { class: "talk" }, this.#log, this.#form, this.#speaker.element),
        this.#settings.element));
    element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#running?.abort();
    });
    this.#reset();
  }

  // -- inside -------------------------------------------------------------------------------------

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#ask();
  }

  #reset() {
    this.#running?.abort();
    this.#messages = [];
    this.#salt = newScope();
    const examples = EXAMPLES.map((text) => h("button", {
      type: "button", on: { click: () => { this.#prompt.value = text; this.#ask(); } },
    }, text));
    this.#log.replaceChildren(h("div", { class: "start" },
      h("p", { class: "soft" }, `You talk to ${this.#facts.models[0]}. Every token shows how it `
        + "came about. Point at a token, or tap it, for more."),
      h("div", { class: "examples" }, examples)));
  }

  async #ask() {
    const text = this.#prompt.value.trim();
    if (this.#running || !text) return;
    clearErrors(this.#form);
    const plan = this.#settings.read();
    if (plan === null) return;
    find(this.#log, ".start")?.remove();
    const turn = new Turn(text, plan, this.#messages);
    this.#log.append(turn.element);
    turn.element.scrollIntoView({ block: "start" });
    const running = new AbortController();
    const salt = this.#salt; // another one when the answer has ended: a new conversation has begun
    this.#setRunning(running);
    this.#prompt.value = "";
    try {
      await turn.run({ salt, signal: running.signal, speaker: this.#speaker });
      if (salt === this.#salt) this.#messages = turn.messages;
    } catch (error) {
      if (salt === this.#salt) this.#fail(asError(error), turn, text);
    } finally {
      this.#speaker.end();
      this.#setRunning(null);
    }
  }

  /**
   * Show an error. After a refusal the text is back in the box, and the reason is at its field.
   *
   * @param {Error} error
   * @param {Turn} turn
   * @param {string} text
   */
  #fail(error, turn, text) {
    if (isAbort(error)) {
      this.#messages = turn.messages;
      this.#speaker.end();
      this.#speaker.say("Stopped.");
      return;
    }
    this.#prompt.value ||= text;
    const placed = showAtField(this.#settings.element, error) || showAtField(this.#form, error);
    if (turn.hasStarted) {
      turn.fail(error);
      return;
    }
    const box = h("div", { class: "turn" }, errorBox(error, () => this.#ask()));
    turn.element.replaceWith(placed ? "" : box);
  }

  /** @param {AbortController | null} controller */
  #setRunning(controller) {
    const isRunning = controller !== null;
    this.#running = controller;
    this.#stop.hidden = !isRunning;
    this.#send.disabled = this.#clear.disabled = isRunning;
    this.#log.setAttribute("aria-busy", String(isRunning));
    // not while somebody writes in the settings
    const inSettings = this.#settings.element.contains(document.activeElement);
    if (!inSettings) this.#prompt.focus({ preventScroll: true });
  }
}

/**
 * Return switches of what the tokens show. They set classes, so that they change shown tokens too.
 *
 * @param {HTMLElement} element
 */
function views(element) {
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

/** One question and its answer, or its two answers. */
class Turn {
  element;
  #plan;
  /** @type {Message[]} */
  #conversation;
  #answers;
  #verdict = h("p", { class: "verdict", role: "status", hidden: true });

  /** @param {string} text @param {Plan} plan @param {Message[]} before */
  constructor(text, plan, before) {
    this.#plan = plan;
    this.#conversation = [...before, { role: "user", content: text }];
    this.#answers = plan.sides.map((side) => ({ side, answer: emptyAnswer(side, plan) }));
    this.element = h("div", { class: "turn" },
      h("p", { class: "said" }, text),
      this.#verdict,
      h("div", { class: this.#answers.length > 1 ? "panes" : "" },
        this.#answers.map(({ answer }) => answer.element)));
  }

  get hasStarted() {
    return this.#answers.some(({ answer }) => answer.committed.length > 0);
  }

  /** The conversation with the answer; without the question where nothing was answered. */
  get messages() {
    const { text } = this.#answers[0].answer;
    if (!text) return this.#conversation.slice(0, -1);
    /** @type {Message} */
    const message = { role: "assistant", content: text };
    return [...this.#conversation, message];
  }

  /**
   * Run one answer after the other, so that neither slows the other down.
   *
   * @param {{ salt: string, signal: AbortSignal, speaker: Speaker }} options
   */
  async run({ salt, signal, speaker }) {
    const isPair = this.#answers.length > 1;
    for (const [index, { side, answer }] of this.#answers.entries()) {
      // Each answer of a pair has its own scope: it neither finds the other's prompt in the cache,
      // nor drafts from the other's text.
      const body = this.#plan.body(this.#conversation, side, isPair ? newScope() : salt);
      await answer.run(body, signal, index === 0 ? (text) => speaker.hear(text) : () => {});
    }
    if (!isPair) return;
    speaker.end();
    this.#compare(speaker);
  }

  /** @param {Error} error */
  fail(error) {
    const { answer } = this.#answers.find((entry) => entry.answer.state === "failed")
      ?? this.#answers[0];
    answer.fail(error);
  }

  /** @param {Speaker} speaker */
  #compare(speaker) {
    const [off, on] = this.#answers.map(({ answer }) => answer);
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

/** @param {Side} side @param {Plan} plan */
function emptyAnswer(side, { drafter }) {
  const drafts = side === "on" && drafter !== null;
  return new Answer(drafts ? `Speculation on: ${drafter}` : "Speculation off", { drafts });
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

/** Return a cache scope that nobody else is in. */
const newScope = () => `playground-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

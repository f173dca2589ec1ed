// Talk to the served model and see what speculation does: in a chat, or off beside on.

import { Answer, legend } from "../lib/answer.js";
import { h, loadStyle } from "../lib/dom.js";
import { clearErrors, errorBox, labelled, showAtField } from "../lib/errors.js";
import { seconds, times } from "../lib/format.js";
import { getJson } from "../lib/http.js";
import { firstDifference } from "../lib/rounds.js";
import { Settings } from "../lib/settings.js";
import { Speaker } from "../lib/speaker.js";

const EXAMPLES = [
  "Give me three tips for sleeping better.",
  "Say this twice: the tide went out slowly, and nobody noticed.",
  "Write a Python function that reverses a list, then write it again with type hints.",
];

export async function mount(element) {
  const [facts] = await Promise.all([getJson("ui/serving"), loadStyle("tabs/playground.css")]);
  new Playground(element, facts);
}

class Playground {
  constructor(element, facts) {
    this.facts = facts;
    this.settings = new Settings(facts, () => this.#reset());
    this.speaker = new Speaker();
    this.messages = []; // the conversation so far, without the system prompt
    this.running = null; // AbortController of the answer that is being made
    this.#build(element);
    this.#reset();
  }

  // -- inside --------------------------------------------------------------------------------------

  #build(element) {
    this.log = h("div", { class: "log" });
    this.prompt = h("textarea", { rows: 3, placeholder: "Say something to the model…", spellcheck: false });
    this.send = h("button", { type: "submit", class: "primary" }, "Send");
    this.stop = h("button", { type: "button", hidden: true, on: { click: () => this.running?.abort() } }, "Stop");
    this.clear = h("button", { type: "button", class: "quiet", on: { click: () => this.#reset() } }, "New conversation");
    this.form = h("form", { class: "ask", noValidate: true },
      h("div", { class: "key" }, legend(), this.#views(element)),
      labelled("messages", "Message", this.prompt),
      h("div", { class: "actions" },
        h("span", { class: "hint keys" }, "Enter sends, Shift+Enter makes a new line, Esc stops"),
        this.clear, this.stop, this.send));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.#ask(); });
    this.prompt.addEventListener("keydown", (event) => this.#byKey(event));
    element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.running?.abort();
    });
    element.append(
      h("h1", { class: "unseen" }, "Playground"),
      h("div", { class: "columns" },
        h("div", { class: "talk" }, this.log, this.form, this.speaker.element),
        this.settings.element));
  }

  /** What the tokens show: switches of classes, so that they work on what is there already. */
  #views(element) {
    const box = (name, text, checked) => {
      const apply = () => element.classList.toggle(`no-${name}`, !input.checked);
      const input = h("input", { type: "checkbox", checked, on: { change: apply } });
      apply();
      return h("label", {}, input, ` ${text}`);
    };
    return h("div", { class: "views", role: "group", "aria-label": "Show" },
      box("marks", "marks", true), box("rejected", "rejected", true), box("unused", "drafted only", false));
  }

  #byKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#ask();
  }

  #reset() {
    this.running?.abort();
    this.messages = [];
    this.salt = fresh();
    this.log.replaceChildren(h("div", { class: "start" },
      h("p", { class: "soft" }, `You talk to ${this.facts.models[0]}. Every token shows how it came about; point at one, or tap it, for more.`),
      h("div", { class: "examples" }, EXAMPLES.map((text) => h("button", {
        type: "button", on: { click: () => { this.prompt.value = text; this.#ask(); } },
      }, text)))));
  }

  async #ask() {
    const said = this.prompt.value.trim();
    if (this.running || !said) return;
    clearErrors(this.form);
    const wish = this.settings.read();
    if (wish === null) return;
    this.log.querySelector(".start")?.remove();
    const turn = new Turn(said, wish, [...this.messages, { role: "user", content: said }]);
    this.log.append(turn.element);
    turn.element.scrollIntoView({ block: "start" });
    this.#busy(new AbortController());
    this.prompt.value = "";
    const { salt } = this;
    try {
      await turn.run({ salt, signal: this.running.signal, speaker: this.speaker });
      if (salt === this.salt) this.messages = turn.messages;
    } catch (error) {
      if (salt === this.salt) this.#failed(error, turn, said); // else a new conversation has begun
    } finally {
      this.speaker.end();
      this.#busy(null);
    }
  }

  /** What was asked stays in the box where the server refused it, with the reason at its field. */
  #failed(error, turn, said) {
    if (error.name === "AbortError") {
      this.messages = turn.messages;
      this.speaker.end();
      this.speaker.say("Stopped.");
      return;
    }
    this.prompt.value ||= said;
    const placed = showAtField(this.settings.element, error) || showAtField(this.form, error);
    if (turn.started) {
      turn.fail(error);
      return;
    }
    turn.element.replaceWith(placed ? "" : h("div", { class: "turn" }, errorBox(error, () => this.#ask())));
  }

  #busy(controller) {
    this.running = controller;
    this.stop.hidden = controller === null;
    this.send.disabled = this.clear.disabled = controller !== null;
    this.log.setAttribute("aria-busy", String(controller !== null));
    // not while somebody writes in the settings
    if (!this.settings.element.contains(document.activeElement)) this.prompt.focus({ preventScroll: true });
  }
}

/** One question and its answer, or its two answers. */
class Turn {
  constructor(said, wish, asked) {
    this.wish = wish;
    this.asked = asked;
    this.answers = (wish.mode === "both" ? ["off", "on"] : [wish.mode]).map((which) => [which, answer(which, wish)]);
    this.verdict = h("p", { class: "verdict", role: "status", hidden: true });
    this.element = h("div", { class: "turn" },
      h("p", { class: "said" }, said),
      this.verdict,
      h("div", { class: this.answers.length > 1 ? "panes" : "" }, this.answers.map(([, one]) => one.element)));
  }

  get started() {
    return this.answers.some(([, one]) => one.committed.length);
  }

  /** The conversation with what was answered. */
  get messages() {
    const { text } = this.answers[0][1];
    return text ? [...this.asked, { role: "assistant", content: text }] : this.asked.slice(0, -1);
  }

  /** One answer after the other, so that neither slows the other down. */
  async run({ salt, signal, speaker }) {
    const both = this.answers.length > 1;
    for (const [index, [which, one]] of this.answers.entries()) {
      // A scope of its own for each of two: neither finds the other's prompt in the cache, nor
      // drafts from what the other has said.
      const body = this.wish.body(this.asked, which, both ? fresh() : salt);
      await one.run(body, signal, index === 0 ? (text) => speaker.hear(text) : () => {});
    }
    if (!both) return;
    speaker.end();
    this.#judge(speaker);
  }

  fail(error) {
    const [, failed] = this.answers.find(([, one]) => one.state === "failed") ?? this.answers[0];
    failed.fail(error);
  }

  #judge(speaker) {
    const [off, on] = this.answers.map(([, one]) => one);
    const parted = firstDifference(off.committed, on.committed);
    const equal = parted === null && off.text === on.text;
    const words = equal ? `Identical, ${off.committed.length} tokens.` : this.#different(off, on, parted);
    this.verdict.replaceChildren(h("strong", {}, `${equal ? "✓" : "✗"} ${words}`), ` ${pace(off, on)}`);
    this.verdict.classList.toggle("bad", !equal);
    this.verdict.hidden = false;
    speaker.say(words);
  }

  #different(off, on, parted) {
    off.mark(parted);
    on.mark(parted);
    const word = ({ committed }) => (committed[parted] ? JSON.stringify(committed[parted].text) : "nothing");
    return `Different from token ${parted + 1} on: off says ${word(off)}, on says ${word(on)}. `
      + (this.wish.mayDiffer
        ? `That is allowed here: under the rule ${this.wish.mayDiffer} a sampled text depends on its drafts.`
        : "That should not be: please report it.");
  }
}

function answer(which, { drafter }) {
  const drafts = which === "on" && drafter !== null;
  return new Answer(drafts ? `Speculation on: ${drafter}` : "Speculation off", { drafts });
}

/** The measured difference in speed of two answers, in words. */
function pace(off, on) {
  const [slow, fast] = [off.metrics?.tpot, on.metrics?.tpot];
  if (!slow || !fast) return "";
  return `TPOT ${seconds(slow)} off, ${seconds(fast)} on: ${times(slow / fast)} as fast, measured on this `
    + "one answer, one after the other.";
}

/** A cache scope that nobody else is in. */
const fresh = () => `playground-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

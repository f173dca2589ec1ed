// Talk to the served model and see what speculation does: in a chat, or off beside on.

import { FORMAT } from "../lib/conversations.js";
import { find, h } from "../lib/dom.js";
import { asError, clearErrors, errorBox, labelled, showAtField } from "../lib/errors.js";
import { History } from "../lib/history.js";
import { getJson, isAbort } from "../lib/http.js";
import { Settings } from "../lib/settings.js";
import { Speaker } from "../lib/speaker.js";
import { tokenLegend, tokenSwitches } from "../lib/token_view.js";
import { KeptTurnView, newId, Turn } from "../lib/turn.js";

/** @import { ServingFacts } from "../types/answers" */
/** @import { Conversation } from "../lib/conversations.js" */

const EXAMPLES = [
  "Give me three tips for sleeping better.",
  "Say this twice: the tide went out slowly, and nobody noticed.",
  "Write a Python function that reverses a list, then write it again with type hints.",
];

/** @type {Playground | null} */
let page = null;

/** @param {HTMLElement} element */
export async function mount(element) {
  /** @type {ServingFacts} */
  const facts = await getJson("ui/serving");
  page = new Playground(element, facts);
}

export const hide = () => page?.pause();

class Playground {
  #facts;
  #settings;
  #speaker = new Speaker();
  #history = new History((kept) => this.#restore(kept), () => this.#reset());
  /** @type {(Turn | KeptTurnView)[]} those that were answered */
  #turns = [];
  #id = newId();
  #salt = newId();
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
  #again = h("button", {
    type: "button", class: "quiet", hidden: true, on: { click: () => this.#regenerate() },
  }, "↻ Regenerate");
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
      h("div", { class: "key" }, tokenLegend(), tokenSwitches(element)),
      labelled("messages", "Message", this.#prompt),
      h("div", { class: "actions" },
        h("span", { class: "hint keys" }, "Enter sends, Shift+Enter makes a new line, Esc stops"),
        this.#again, this.#clear, this.#stop, this.#send));
    element.append(
      h("h1", { class: "unseen" }, "Playground"),
      h("div", { class: "columns" },
        h("div", { class: "talk" }, this.#log, this.#form, this.#speaker.element),
        h("aside", { class: "beside" }, this.#history.element, this.#settings.element)));
    element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#running?.abort();
    });
    this.#reset();
  }

  pause() {
    for (const turn of this.#turns) turn.pause();
  }

  // -- inside -------------------------------------------------------------------------------------

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#ask();
  }

  #reset() {
    this.#leave();
    this.#id = newId();
    this.#history.show(null);
    const examples = EXAMPLES.map((text) => h("button", {
      type: "button", on: { click: () => { this.#prompt.value = text; this.#ask(); } },
    }, text));
    this.#log.replaceChildren(h("div", { class: "start" },
      h("p", { class: "soft" }, `You talk to ${this.#facts.models[0]}. Under “Rounds”, every token `
        + "shows how it came about. Point at a token, or tap it, for more."),
      h("div", { class: "examples" }, examples)));
  }

  /** Leave the conversation that is shown. */
  #leave() {
    this.#running?.abort();
    this.pause();
    this.#turns = [];
    this.#salt = newId();
    this.#again.hidden = true;
  }

  /** Show a kept conversation, and go on with it. @param {Conversation} conversation */
  #restore(conversation) {
    this.#leave();
    this.#id = conversation.id;
    this.#turns = conversation.turns.map((turn) => new KeptTurnView(turn));
    this.#log.replaceChildren(...this.#turns.map(({ element }) => element));
    this.#again.hidden = this.#turns.length === 0;
    this.#settings.system = conversation.system;
    this.#history.show(conversation);
    this.#turns.at(-1)?.element.scrollIntoView({ block: "nearest" });
  }

  /** Keep the conversation as it is now. */
  #keep() {
    const turns = this.#turns.map((turn) => turn.kept()).filter(({ answers }) => answers.length);
    const updated = new Date().toISOString();
    const { system } = this.#settings;
    this.#again.hidden = turns.length === 0;
    if (!turns.length) return;
    this.#history.keep({ format: FORMAT, id: this.#id, system, updated, turns });
  }

  /** Answer the last message anew. */
  #regenerate() {
    const last = this.#turns.at(-1);
    if (last) this.#answer(last.said, last);
  }

  #ask() {
    const text = this.#prompt.value.trim();
    if (text) this.#answer(text, null);
  }

  /**
   * Answer a message, and keep the conversation with it.
   *
   * @param {string} text
   * @param {Turn | KeptTurnView | null} replaced the last turn, where its message is answered anew
   */
  async #answer(text, replaced) {
    const plan = this.#running ? null : this.#settings.read();
    if (plan === null) return;
    clearErrors(this.#form);
    find(this.#log, ".start")?.remove();
    const before = this.#turns.filter((turn) => turn !== replaced);
    const turn = new Turn(text, plan, before.flatMap(({ messages }) => messages));
    if (replaced) replaced.element.hidden = true;
    replaced?.pause();
    this.#log.append(turn.element);
    turn.element.scrollIntoView({ block: "start" });
    const running = new AbortController();
    const salt = this.#salt; // another one when the answer has ended: a new conversation has begun
    this.#setRunning(running);
    if (!replaced) this.#prompt.value = "";
    try {
      await turn.run({ salt, signal: running.signal, speaker: this.#speaker });
      if (salt === this.#salt) this.#take(turn, before);
    } catch (thrown) {
      const error = asError(thrown);
      if (salt === this.#salt) this.#end(error, turn, replaced, before);
      if (isAbort(error)) this.#speaker.say("Stopped.");
    } finally {
      this.#speaker.end();
      this.#setRunning(null);
    }
  }

  /**
   * End a turn that was stopped, or that failed. One that was stopped before its first token leaves
   * the turn that it should replace as it was.
   *
   * @param {Error} error
   * @param {Turn} turn
   * @param {Turn | KeptTurnView | null} replaced
   * @param {(Turn | KeptTurnView)[]} before
   */
  #end(error, turn, replaced, before) {
    if (!isAbort(error)) {
      this.#fail(error, turn, replaced);
    } else if (replaced && !turn.hasStarted) {
      turn.element.remove();
      replaced.element.hidden = false;
    } else {
      this.#take(turn, before);
    }
  }

  /**
   * Take a turn into the conversation, after those before it.
   *
   * @param {Turn} turn
   * @param {(Turn | KeptTurnView)[]} before
   */
  #take(turn, before) {
    for (const other of this.#turns) if (!before.includes(other)) other.element.remove();
    this.#turns = [...before, turn];
    this.#keep();
  }

  /**
   * Show an error. After a refusal the text is back in the box, and the reason is at its field.
   *
   * @param {Error} error
   * @param {Turn} turn
   * @param {Turn | KeptTurnView | null} replaced
   */
  #fail(error, turn, replaced) {
    if (replaced) replaced.element.hidden = false;
    else this.#prompt.value ||= turn.said;
    const placed = showAtField(this.#settings.element, error) || showAtField(this.#form, error);
    if (turn.hasStarted) {
      turn.fail(error);
      return;
    }
    const again = () => (replaced ? this.#regenerate() : this.#ask());
    const box = h("div", { class: "turn" }, errorBox(error, again));
    turn.element.replaceWith(placed ? "" : box);
  }

  /** @param {AbortController | null} controller */
  #setRunning(controller) {
    const isRunning = controller !== null;
    this.#running = controller;
    this.#stop.hidden = !isRunning;
    this.#send.disabled = this.#clear.disabled = this.#again.disabled = isRunning;
    this.#log.setAttribute("aria-busy", String(isRunning));
    // not while somebody writes in the settings
    const inSettings = this.#settings.element.contains(document.activeElement);
    if (!inSettings) this.#prompt.focus({ preventScroll: true });
  }
}

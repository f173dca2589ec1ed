// Reads an answer to a screen reader in whole sentences, politely: not token by token.

import { h } from "./dom.js";

const SENTENCES = /^[\s\S]*[.!?:;]\s|^[\s\S]*\n/;

export class Speaker {
  #pending = "";

  constructor() {
    this.element = h("div", { class: "unseen", "aria-live": "polite", role: "log", "aria-label": "Answers as text" });
  }

  /** More text of an answer. */
  hear(text) {
    this.#pending += text;
    const whole = this.#pending.match(SENTENCES)?.[0];
    if (!whole) return;
    this.#pending = this.#pending.slice(whole.length);
    this.say(whole);
  }

  /** The answer has ended: what is left of it is said. */
  end() {
    if (this.#pending.trim()) this.say(this.#pending);
    this.#pending = "";
  }

  say(text) {
    this.element.append(h("p", {}, text.trim()));
    while (this.element.childElementCount > 20) this.element.firstChild.remove();
  }
}

// Reads an answer to a screen reader in complete sentences, politely: not token by token.

import { h } from "./dom.js";

const SENTENCES = /^[\s\S]*[.!?:;]\s|^[\s\S]*\n/;
const MOST_PARAGRAPHS = 20;

export class Speaker {
  element = h("div", {
    class: "unseen", "aria-live": "polite", role: "log", "aria-label": "Answers as text",
  });

  #pending = "";

  /** Take more text of an answer, and say its complete sentences. @param {string} text */
  hear(text) {
    this.#pending += text;
    const sentences = this.#pending.match(SENTENCES)?.[0];
    if (!sentences) return;
    this.#pending = this.#pending.slice(sentences.length);
    this.say(sentences);
  }

  /** Say the rest of an answer that has ended. */
  end() {
    if (this.#pending.trim()) this.say(this.#pending);
    this.#pending = "";
  }

  /** @param {string} text */
  say(text) {
    this.element.append(h("p", {}, text.trim()));
    while (this.element.childElementCount > MOST_PARAGRAPHS) this.element.firstChild?.remove();
  }
}

// Two runs of one answer beside each other, played by one clock: plain decoding and speculation.

import { h } from "./dom.js";
import { fixed, times } from "./format.js";
import { Clock, Pane } from "./player.js";
import { Transport } from "./transport.js";

/** @import { TimedEvent } from "../types/answers" */

/** @typedef {{ events: TimedEvent[], pieces: string[] }} Run  `pieces`: the texts of its tokens */

const NAMES = ["Plain decoding", "Speculation"];

export class Race {
  element;
  #panes = [
    new Pane("Plain decoding (AR)", { drafts: false }),
    new Pane("Speculative", { drafts: true }),
  ];
  #clock = new Clock((ms) => this.#tick(ms));
  #transport;
  #result = h("p", { class: "result", role: "status" });

  /** @param {string} name what the ids of its controls begin with */
  constructor(name) {
    this.#transport = new Transport(name, this.#clock, {
      raceChanged: () => this.#limit(),
      marksChanged: (shown) => this.element.classList.toggle("plain", !shown),
    });
    this.element = h("div", { class: "race" },
      this.#transport.element,
      h("div", { class: "panes" }, this.#panes.map((pane) => pane.element)),
      this.#result);
  }

  /** Take two runs, and stand at their start: the plain one first. @param {Run[]} runs */
  load(runs) {
    const ends = runs.map(({ events }) => events.at(-1)?.t_ms ?? 0);
    const length = Math.max(...ends);
    runs.forEach(({ events, pieces }, index) => this.#panes[index].load(events, pieces, length));
    this.#transport.setLength(length);
    this.#limit();
    this.#clock.seek(0);
  }

  /** Show that there is nothing to play. */
  clear() {
    this.pause();
    this.#transport.setLength(null);
    for (const pane of this.#panes) pane.load([], [], 1);
    this.#clock.end = 0;
    this.#clock.seek(0);
  }

  /** Play from the start. Readers who asked their system for little motion see the end. */
  present() {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) this.#clock.seek(this.#clock.end);
    else this.#transport.restart();
  }

  pause() {
    this.#clock.pause();
  }

  toggle() {
    this.#transport.toggle();
  }

  // -- inside -------------------------------------------------------------------------------------

  #limit() {
    const ends = this.#panes.map((pane) => pane.end);
    this.#clock.end = this.#transport.isRace ? Math.min(...ends) : Math.max(...ends);
    this.#clock.seek(this.#clock.position);
  }

  /** @param {number} ms */
  #tick(ms) {
    for (const pane of this.#panes) pane.show(ms);
    this.#transport.show(ms);
    this.#showWinner(ms);
  }

  /** @param {number} ms */
  #showWinner(ms) {
    const ends = this.#panes.map((pane) => pane.end);
    const first = ends[1] <= ends[0] ? 1 : 0;
    const isDone = ends[first] > 0 && ms >= Math.min(...ends) - 1e-6;
    this.#panes.forEach((pane, index) => {
      pane.badge.hidden = !(isDone && index === first && ends[0] !== ends[1]);
      pane.badge.textContent = `done first, ${fixed(ends[index] / 1e3, 2)} s`;
    });
    const text = isDone ? this.#winnerText(first) : "";
    if (this.#result.textContent !== text) this.#result.textContent = text;
  }

  /** @param {number} first index of the pane that was done first */
  #winnerText(first) {
    const [winner, other] = [this.#panes[first], this.#panes[1 - first]];
    const share = Math.round((100 * other.tokensAt(winner.end)) / other.total);
    return `${NAMES[first]} was done after ${fixed(winner.end / 1e3, 2)} s. `
      + `${NAMES[1 - first]} had shown ${share} % by then. ${NAMES[first]} was `
      + `${times(other.end / winner.end)} as fast to the last token.`;
  }
}

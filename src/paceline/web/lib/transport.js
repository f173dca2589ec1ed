// The controls of a played run: play, restart, position, speed, race, marks.

import { h } from "./dom.js";
import { fixed } from "./format.js";

/** @import { Clock } from "./player.js" */

const SPEEDS = [0.25, 0.5, 1, 2, 4];

export class Transport {
  element;
  #clock;
  #play;
  /** @type {HTMLInputElement} */
  #seek;
  #time;
  #race;

  /**
   * @param {string} name what the ids of the controls begin with
   * @param {Clock} clock
   * @param {{ raceChanged: () => void, marksChanged: (shown: boolean) => void }} options
   */
  constructor(name, clock, { raceChanged, marksChanged }) {
    this.#clock = clock;
    this.#play = h("button", {
      type: "button", class: "primary play", id: `${name}-play`, disabled: true,
      on: { click: () => this.toggle() },
    }, "▶ Play");
    this.#seek = h("input", {
      type: "range", id: `${name}-seek`, min: 0, max: 1, step: 1, value: 0,
      "aria-label": "Position", on: { input: () => clock.seek(this.#seek.valueAsNumber) },
    });
    this.#time = h("output", { class: "clock", for: `${name}-seek` }, "0.00 s");
    this.#race = h("input", { type: "checkbox", id: `${name}-race`, on: { change: raceChanged } });
    this.element = h("div", { class: "transport card", role: "group", "aria-label": "Playback" },
      this.#play,
      h("button", {
        type: "button", id: `${name}-restart`, "aria-label": "Restart",
        on: { click: () => this.restart() },
      }, "↺", h("span", { class: "word" }, " Restart")),
      this.#seek, this.#time,
      h("label", { class: "inline" }, "Speed ", speeds(name, clock)),
      h("label", { class: "inline" }, this.#race, " Stop when one is done"),
      h("label", { class: "inline" }, marksBox(name, marksChanged), h("span", {}, " Mark ",
        h("span", { class: "drafted" }, "drafted"), " and ",
        h("span", { class: "own" }, "bonus"), " tokens")));
  }

  /** Whether the clock stops when the first pane is done. */
  get isRace() {
    return this.#race.checked;
  }

  toggle() {
    if (this.#clock.running) this.#clock.pause();
    else this.#clock.play();
  }

  restart() {
    this.#clock.seek(0);
    this.#clock.play();
  }

  /** Take the length of a run in milliseconds; null where there is no run to play. */
  setLength(/** @type {number | null} */ ms) {
    this.#play.disabled = ms === null;
    this.#seek.max = String(Math.ceil(ms ?? 1));
  }

  /** Show a position. @param {number} ms */
  show(ms) {
    this.#seek.value = String(ms);
    this.#time.textContent = `${fixed(ms / 1e3, 2)} s`;
    const label = this.#clock.running ? "❚❚ Pause" : "▶ Play";
    if (this.#play.textContent !== label) this.#play.textContent = label;
  }
}

/** @param {string} name @param {Clock} clock */
function speeds(name, clock) {
  /** @type {HTMLSelectElement} */
  const list = h("select", {
    id: `${name}-speed`, on: { change: () => clock.setSpeed(Number(list.value)) },
  }, SPEEDS.map((value) => h("option", { value, selected: value === 1 }, `${value}×`)));
  return list;
}

/** @param {string} name @param {(shown: boolean) => void} changed */
function marksBox(name, changed) {
  /** @type {HTMLInputElement} */
  const box = h("input", {
    type: "checkbox", id: `${name}-marks`, checked: true,
    on: { change: () => changed(box.checked) },
  });
  return box;
}

// The controls of a played run: play, restart, position, speed, race, marks.

import { h } from "./dom.js";
import { fixed } from "./format.js";

/** @import { Clock } from "./player.js" */

const SPEEDS = [0.25, 0.5, 1, 2, 4];

export class Transport {
  element;
  #clock;
  #play = h("button", {
    type: "button", class: "primary", id: "timing-play", on: { click: () => this.toggle() },
  }, "▶ Play");
  /** @type {HTMLInputElement} */
  #seek = h("input", {
    type: "range", id: "timing-seek", min: 0, max: 1, step: 1, value: 0, "aria-label": "Position",
    on: { input: () => this.#clock.seek(this.#seek.valueAsNumber) },
  });
  #time = h("output", { class: "clock", for: "timing-seek" }, "0.00 s");
  #race;

  /**
   * @param {Clock} clock
   * @param {() => void} raceChanged
   * @param {(shown: boolean) => void} marksChanged
   */
  constructor(clock, raceChanged, marksChanged) {
    this.#clock = clock;
    this.#race = h("input", { type: "checkbox", id: "timing-race", on: { change: raceChanged } });
    this.element = h("div", { class: "transport card", role: "group", "aria-label": "Playback" },
      this.#play,
      h("button", {
        type: "button", id: "timing-restart", on: { click: () => this.#restart() },
      }, "↺ Restart"),
      this.#seek, this.#time,
      h("label", { class: "inline" }, "Speed ", this.#speeds()),
      h("label", { class: "inline" }, this.#race, " Race: stop when one is done"),
      h("label", { class: "inline" }, marksBox(marksChanged), h("span", {}, " Mark ",
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

  // -- inside -------------------------------------------------------------------------------------

  #restart() {
    this.#clock.seek(0);
    this.#clock.play();
  }

  #speeds() {
    /** @type {HTMLSelectElement} */
    const list = h("select", {
      id: "timing-speed", on: { change: () => this.#clock.setSpeed(Number(list.value)) },
    }, SPEEDS.map((value) => h("option", { value, selected: value === 1 }, `${value}×`)));
    return list;
  }
}

/** @param {(shown: boolean) => void} changed */
function marksBox(changed) {
  /** @type {HTMLInputElement} */
  const box = h("input", {
    type: "checkbox", id: "timing-marks", checked: true,
    on: { change: () => changed(box.checked) },
  });
  return box;
}

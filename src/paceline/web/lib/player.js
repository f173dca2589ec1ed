// Plays token events at their own pace: one clock, and panes that show the state at its time.

import { colour, onThemeChange } from "./colours.js";
import { h } from "./dom.js";
import { fixed, number } from "./format.js";
import { acceptanceLength } from "./rounds.js";

/** @import { TimedEvent } from "../types/answers" */

/**
 * A clock in milliseconds of the played run. Its position follows from performance.now() and its
 * last change, so that a late frame catches up and no drift adds up.
 */
export class Clock {
  end = 0;
  running = false;
  #speed = 1;
  #base = { position: 0, now: 0 };
  #onTick;

  /** @param {(ms: number) => void} onTick called for every frame and after every change */
  constructor(onTick) {
    this.#onTick = onTick;
  }

  get position() {
    if (!this.running) return this.#base.position;
    const passed = (performance.now() - this.#base.now) * this.#speed;
    return Math.min(this.#base.position + passed, this.end);
  }

  play() {
    if (this.running) return;
    const { position } = this.#base;
    this.#moveTo(position >= this.end ? 0 : position);
    this.running = true;
    this.#onTick(this.position);
    requestAnimationFrame(() => this.#frame());
  }

  pause() {
    this.#moveTo(this.position);
    this.running = false;
    this.#onTick(this.#base.position);
  }

  /** @param {number} position */
  seek(position) {
    this.#moveTo(Math.max(0, Math.min(position, this.end)));
    this.#onTick(this.#base.position);
  }

  /** @param {number} speed */
  setSpeed(speed) {
    this.#moveTo(this.position);
    this.#speed = speed;
  }

  /** @param {number} position */
  #moveTo(position) {
    this.#base = { position, now: performance.now() };
  }

  #frame() {
    if (!this.running) return;
    const position = this.position;
    if (position >= this.end) this.pause();
    else {
      this.#onTick(position);
      requestAnimationFrame(() => this.#frame());
    }
  }
}

/** One run: its text so far, its numbers, and its bursts over time. */
export class Pane {
  badge = h("span", { class: "badge", hidden: true });
  element;
  /** @type {TimedEvent[]} */
  #events = [];
  /** @type {string[]} */
  #pieces = [];
  /** @type {number[]} tokens after each event */
  #ends = [];
  #length = 1; // milliseconds that the strip shows
  #shown = 0; // events whose tokens are in the text
  #cells = { rate: h("dd"), elapsed: h("dd"), tokens: h("dd"), perRound: h("dd") };
  #perRoundLabel = h("dt", {}, "AL incl. bonus");
  #text;
  #strip;

  /** @param {string} title @param {{ drafts: boolean }} options */
  constructor(title, { drafts }) {
    const cells = this.#cells;
    this.#text = h("div", {
      class: "played", tabIndex: 0, role: "region", "aria-label": `Text: ${title}`,
    });
    this.#strip = h("canvas", {
      class: "bursts", role: "img", "aria-label": `Bursts over time: ${title}`,
    });
    this.element = h(
      "article",
      { class: drafts ? "pane card speculative" : "pane card" },
      h("header", {}, h("h2", {}, title), this.badge),
      h("dl", {},
        h("div", {}, h("dt", {}, "tok/s"), cells.rate),
        h("div", {}, h("dt", {}, "elapsed"), cells.elapsed),
        h("div", {}, h("dt", {}, "tokens"), cells.tokens),
        drafts ? h("div", {}, this.#perRoundLabel, cells.perRound) : null),
      this.#text,
      this.#strip,
    );
    new ResizeObserver(() => this.#drawStrip()).observe(this.#strip);
    onThemeChange(() => this.#drawStrip());
  }

  /** Milliseconds at the last token. */
  get end() {
    return this.#events.at(-1)?.t_ms ?? 0;
  }

  get total() {
    return this.#ends.at(-1) ?? 0;
  }

  /**
   * Take a run to play.
   *
   * @param {TimedEvent[]} events
   * @param {string[]} pieces the texts of its tokens
   * @param {number} length the time that both panes' strips show, in milliseconds
   */
  load(events, pieces, length) {
    this.#events = events;
    this.#pieces = pieces;
    this.#length = length || 1;
    let end = 0;
    this.#ends = events.map((event) => (end += event.tokens));
    this.#perRoundLabel.textContent = this.#knowsDrafts ? "AL incl. bonus" : "tokens per burst";
    this.#clear();
    this.#drawStrip();
  }

  /** Return the tokens that have arrived after `ms`. @param {number} ms */
  tokensAt(ms) {
    return this.#ends[this.#eventsAt(ms) - 1] ?? 0;
  }

  /** Show the run as it stands after `ms`. @param {number} ms */
  show(ms) {
    const events = this.#eventsAt(ms);
    if (events < this.#shown) this.#clear();
    if (events > this.#shown) {
      const bursts = document.createDocumentFragment();
      for (let index = this.#shown; index < events; index += 1) bursts.append(this.#burst(index));
      this.#text.append(bursts);
      this.#shown = events;
      this.#text.scrollTop = this.#text.scrollHeight;
    }
    this.#showNumbers(ms);
    this.element.style.setProperty("--played", String(Math.min(ms / this.#length, 1)));
  }

  // -- inside -------------------------------------------------------------------------------------

  /** The arrivals of a recorded stream do not say which of its tokens were drafted. */
  get #knowsDrafts() {
    return this.#events.some((event) => event.drafted > 0);
  }

  #clear() {
    this.#text.replaceChildren();
    this.#shown = 0;
  }

  /** Return how many events have happened after `ms`. @param {number} ms */
  #eventsAt(ms) {
    let [low, high] = [0, this.#events.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#events[middle].t_ms <= ms + 1e-6) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /**
   * Return the text of one event: accepted tokens first, the target's own last.
   *
   * @param {number} index
   */
  #burst(index) {
    const event = this.#events[index];
    const end = this.#ends[index];
    const middle = end - event.tokens + event.accepted;
    const text = (/** @type {number} */ from, /** @type {number} */ to) => (
      this.#pieces.slice(from, to).join(""));
    return h(
      "span",
      { class: "burst" },
      event.accepted ? h("span", { class: "drafted" }, text(end - event.tokens, middle)) : null,
      event.own ? h("span", { class: "own" }, text(middle, end)) : null,
    );
  }

  /** @param {number} ms */
  #showNumbers(ms) {
    const { rate, elapsed, tokens, perRound } = this.#cells;
    const arrived = this.#ends[this.#shown - 1] ?? 0;
    const first = this.#events[0]?.t_ms ?? 0;
    const now = Math.min(ms, this.end);
    const measurable = arrived > 1 && now > first;
    rate.textContent = number(measurable ? (1e3 * (arrived - 1)) / (now - first) : null);
    elapsed.textContent = `${fixed(now / 1e3, 2)} s`;
    tokens.textContent = `${arrived} of ${this.total}`;
    perRound.textContent = fixed(this.#tokensPerRound(), 2);
    this.element.dataset.tokens = String(arrived);
  }

  #tokensPerRound() {
    const rounds = this.#events.slice(1, this.#shown); // the first token comes with the prompt
    const drafted = rounds.filter((event) => event.drafted > 0);
    if (this.#knowsDrafts) return acceptanceLength(drafted.length, sumOf(drafted, "accepted"));
    return rounds.length > 0 ? sumOf(rounds, "tokens") / rounds.length : null;
  }

  /** Draw a bar for each burst: accepted tokens below, the target's own on top. */
  #drawStrip() {
    const { clientWidth: width, clientHeight: height } = this.#strip;
    const context = this.#strip.getContext("2d");
    if (!width || !this.#events.length || context === null) return;
    this.#strip.width = width * devicePixelRatio;
    this.#strip.height = height * devicePixelRatio;
    context.scale(devicePixelRatio, devicePixelRatio);
    const highest = Math.max(8, ...this.#events.map((event) => event.tokens));
    const bar = Math.min(Math.max((0.6 * width) / this.#events.length, 0.6), 5);
    const drafted = colour("--series-1");
    const own = colour(this.#knowsDrafts ? "--series-2" : "--line-strong");
    for (const event of this.#events) {
      const left = (event.t_ms / this.#length) * (width - bar);
      const accepted = (event.accepted / highest) * (height - 2);
      const all = (event.tokens / highest) * (height - 2);
      context.fillStyle = drafted;
      context.fillRect(left, height - accepted, bar, accepted);
      context.fillStyle = own;
      context.fillRect(left, height - all, bar, all - accepted);
    }
  }
}

/** @param {TimedEvent[]} events @param {"tokens" | "accepted"} name */
const sumOf = (events, name) => events.reduce((sum, event) => sum + event[name], 0);

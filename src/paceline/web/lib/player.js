// Playing token events at the pace they have: one clock, and panes that show where it stands.

import { colour, onThemeChange } from "./colours.js";
import { h } from "./dom.js";
import { NONE, fixed, number } from "./format.js";

/**
 * A clock in milliseconds of the played run. Where it stands follows from performance.now() and the
 * last time somebody touched it, so that late frames are caught up and nothing adds up to a drift.
 * `onTick(ms)` is called every frame while it runs, and after every change.
 */
export class Clock {
  constructor(onTick) {
    this.onTick = onTick;
    this.end = 0;
    this.speed = 1;
    this.running = false;
    this.base = { position: 0, now: 0 };
  }

  get position() {
    if (!this.running) return this.base.position;
    const passed = (performance.now() - this.base.now) * this.speed;
    return Math.min(this.base.position + passed, this.end);
  }

  play() {
    if (this.running) return;
    if (this.base.position >= this.end) this.base.position = 0;
    this.base.now = performance.now();
    this.running = true;
    requestAnimationFrame(() => this.#frame());
  }

  pause() {
    this.base = { position: this.position, now: performance.now() };
    this.running = false;
    this.onTick(this.base.position);
  }

  seek(position) {
    this.base = { position: Math.max(0, Math.min(position, this.end)), now: performance.now() };
    this.onTick(this.base.position);
  }

  setSpeed(speed) {
    this.base = { position: this.position, now: performance.now() };
    this.speed = speed;
  }

  #frame() {
    if (!this.running) return;
    const position = this.position;
    if (position >= this.end) this.pause();
    else {
      this.onTick(position);
      requestAnimationFrame(() => this.#frame());
    }
  }
}

/** One run: its text as far as it has come, its numbers, and its bursts over time. */
export class Pane {
  constructor(title, { drafts }) {
    this.events = [];
    this.length = 1; // ms that the strip is wide
    this.ends = []; // tokens after each event
    this.shown = 0; // events whose tokens are there
    this.cells = Object.fromEntries(["rate", "elapsed", "tokens", "al"].map((name) => [name, h("dd")]));
    this.text = h("div", { class: "played", tabIndex: 0, role: "region", "aria-label": `Text: ${title}` });
    this.strip = h("canvas", { class: "strip", role: "img", "aria-label": `Bursts over time: ${title}` });
    this.badge = h("span", { class: "badge", hidden: true });
    const entry = (label, cell) => h("div", {}, h("dt", {}, label), cell);
    this.element = h(
      "article",
      { class: drafts ? "pane card speculative" : "pane card" },
      h("header", {}, h("h2", {}, title), this.badge),
      h("dl", {},
        entry("tok/s", this.cells.rate), entry("elapsed", this.cells.elapsed),
        entry("tokens", this.cells.tokens),
        drafts ? entry("AL incl. bonus", this.cells.al) : null),
      this.text,
      this.strip,
    );
    new ResizeObserver(() => this.#drawStrip()).observe(this.strip);
    onThemeChange(() => this.#drawStrip());
  }

  get end() {
    return this.events.length ? this.events.at(-1).t_ms : 0;
  }

  get total() {
    return this.ends.at(-1) ?? 0;
  }

  /** `length` is the time that both panes' strips show, in ms. */
  load(events, pieces, length) {
    this.events = events;
    this.pieces = pieces;
    this.length = length || 1;
    let sum = 0;
    this.ends = events.map((event) => (sum += event.tokens));
    this.#clear();
    this.#drawStrip();
  }

  /** Tokens that have arrived after `ms`. */
  tokensAt(ms) {
    const known = this.#eventsAt(ms);
    return known ? this.ends[known - 1] : 0;
  }

  show(ms) {
    const wanted = this.#eventsAt(ms);
    if (wanted < this.shown) this.#clear();
    if (wanted > this.shown) {
      const fresh = document.createDocumentFragment();
      for (let index = this.shown; index < wanted; index += 1) fresh.append(this.#burst(index));
      this.text.append(fresh);
      this.shown = wanted;
      this.text.scrollTop = this.text.scrollHeight;
    }
    this.#numbers(ms);
    this.element.style.setProperty("--played", String(Math.min(ms / this.length, 1)));
  }

  #clear() {
    this.text.replaceChildren();
    this.shown = 0;
  }

  #eventsAt(ms) {
    let [low, high] = [0, this.events.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.events[middle].t_ms <= ms + 1e-6) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Drafted tokens come first in a burst, the target's own last. */
  #burst(index) {
    const event = this.events[index];
    const from = this.ends[index] - event.tokens;
    const text = (start, end) => this.pieces.slice(start, end).join("");
    const middle = from + event.accepted;
    return h(
      "span",
      { class: "burst" },
      event.accepted ? h("span", { class: "drafted" }, text(from, middle)) : null,
      event.own ? h("span", { class: "own" }, text(middle, this.ends[index])) : null,
    );
  }

  #numbers(ms) {
    const tokens = this.shown ? this.ends[this.shown - 1] : 0;
    const first = this.events[0]?.t_ms ?? 0;
    const at = Math.min(ms, this.end);
    const rate = tokens > 1 && at > first ? (1e3 * (tokens - 1)) / (at - first) : NaN;
    this.cells.rate.textContent = number(rate);
    this.cells.elapsed.textContent = `${fixed(at / 1e3, 2)} s`;
    this.cells.tokens.textContent = `${tokens} of ${this.total}`;
    const rounds = this.shown - 1;
    this.cells.al.textContent = rounds > 0 ? fixed((tokens - this.events[0].tokens) / rounds, 2) : NONE;
    this.element.dataset.tokens = String(tokens);
  }

  /** A bar for every burst, as high as it has tokens; drafted ones below, the target's on top. */
  #drawStrip() {
    const { clientWidth: width, clientHeight: height } = this.strip;
    if (!width || !this.events.length) return;
    this.strip.width = width * devicePixelRatio;
    this.strip.height = height * devicePixelRatio;
    const c = this.strip.getContext("2d");
    c.scale(devicePixelRatio, devicePixelRatio);
    const highest = Math.max(8, ...this.events.map((event) => event.tokens));
    const bar = Math.min(Math.max((0.6 * width) / this.events.length, 0.6), 5);
    const speculative = this.events.some((event) => event.drafted);
    const [drafted, own] = [colour("--series-1"), colour(speculative ? "--series-2" : "--line-strong")];
    for (const event of this.events) {
      const left = (event.t_ms / this.length) * (width - bar);
      const [low, high] = [event.accepted, event.tokens].map((n) => (n / highest) * (height - 2));
      c.fillStyle = drafted;
      c.fillRect(left, height - low, bar, low);
      c.fillStyle = own;
      c.fillRect(left, height - high, bar, high - low);
    }
  }
}

// What the running server does: asked once a second, and only while somebody looks.

import { Asking } from "../lib/asking.js";
import { Chart } from "../lib/chart.js";
import { h } from "../lib/dom.js";
import { errorBox } from "../lib/errors.js";
import { fixed, NONE, number, percent, rate, seconds, times } from "../lib/format.js";
import { getJson } from "../lib/http.js";
import { groupTable, lengthBars, positionBars } from "../lib/live_tables.js";
import { RecentRequests } from "../lib/recent.js";

/** @import { LivePoint, LiveSnapshot, Quantiles } from "../types/answers" */
/** @import { RecentRequests as RequestList } from "../types/answers" */
/** @import { Axis, Child, TabContext } from "../types/page" */

/** @typedef {Exclude<keyof LivePoint, "time">} PointName */
/** @typedef {{ name: PointName, label: string, colour: string, dash?: number[] }} Line */
/** @typedef {{ chart: Chart, lines: Line[] }} Curve */

const EVERY = 1000; // milliseconds between two questions
const KEPT = 600; // seconds of history that the server has
const SHORTEST = 60; // seconds that the curves show at least
/** @type {[seconds: number, text: string][]} */
const WINDOWS = [[10, "10 s"], [60, "1 min"], [300, "5 min"], [600, "10 min"]];
const WINDOW = 60; // seconds, where the link says nothing else
const ENOUGH = 20; // requests held back whose median TPOT is worth showing
const DASH = [5, 4];
const SPEEDUP = "Speedup by the cost table: the time that the same tokens would have taken in "
  + "steps without drafts ÷ the time they took. The server times the table when it starts, and "
  + "corrects it by its steps. The speedup is as good as that table. paceline serve --holdback "
  + "0.05 measures instead: one request in twenty runs without speculation, in steps that it "
  + "shares with the others.";
/** @type {Live | null} */
let live = null;

/** @param {HTMLElement} element @param {TabContext} context */
export function mount(element, context) {
  live = new Live(element, context);
}

export const show = () => live?.show();
export const hide = () => live?.hide();

class Live {
  /** @type {LivePoint[]} of the curves, oldest first */
  #points = [];
  #asking = new Asking(EVERY, () => this.#ask(), (error) => this.#complain(error));
  #window;
  #state = h("span", { class: "state" }, "asking…");
  #trouble = h("div");
  #tiles = h("div", { class: "tiles" });
  #positions = h("div");
  #lengths = h("div");
  #groups = h("div", {
    class: "scroll", tabIndex: 0, role: "region", "aria-label": "By drafter and cohort",
  });
  /** @type {Axis} */
  #x = { label: "seconds ago", max: 0, format: (value) => number(Math.abs(value)) };
  #curves;
  #recent = new RecentRequests();

  /** @param {HTMLElement} element @param {TabContext} context */
  constructor(element, { params, remember }) {
    const asked = Number(params().get("window"));
    const chosen = WINDOWS.some(([value]) => value === asked) ? asked : WINDOW;
    this.#window = h("select", {
      id: "live-window",
      on: {
        change: () => {
          remember(new URLSearchParams({ window: this.#window.value }));
          this.#asking.now();
        },
      },
    }, WINDOWS.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
    const curves = h("div", { class: "grid" });
    element.append(
      h("div", { class: "head" },
        h("h1", {}, "Live"), this.#state,
        h("label", { htmlFor: "live-window" }, "Numbers over the last "), this.#window),
      this.#trouble, this.#tiles, ...this.#tables(), curves, this.#recent.element);
    this.#curves = this.#makeCurves(curves);
  }

  show() {
    this.#asking.show();
  }

  hide() {
    this.#asking.hide();
  }

  // -- asking -------------------------------------------------------------------------------------

  async #ask() {
    const since = this.#points.at(-1)?.time ?? 0;
    /** @type {[LiveSnapshot, RequestList]} */
    const [snapshot, recent] = await Promise.all([
      getJson(`ui/live?window=${this.#window.value}&since=${since}`), getJson("ui/requests"),
    ]);
    this.#draw(snapshot);
    this.#recent.show(recent);
    this.#trouble.replaceChildren();
  }

  /** @param {unknown} error */
  #complain(error) {
    this.#state.textContent = "no news";
    this.#state.className = "state stale";
    if (!this.#trouble.hasChildNodes()) this.#trouble.append(errorBox(error));
  }

  // -- building -----------------------------------------------------------------------------------

  #tables() {
    return [
      h("div", { class: "grid" },
        card("Acceptance by position",
          "Of the rounds that drafted a token at this position, the share that accepted it.",
          this.#positions),
        card("Draft length chosen",
          "Rounds by the number of tokens that were drafted and verified. 0 is a round without a "
          + "draft.", this.#lengths)),
      card("By drafter and cohort",
        "A cohort is model, app, language and region, as far as they are known. AR is speculation "
        + "off, because the request asked for it or was held back.",
        [this.#groups, h("p", { class: "hint" }, SPEEDUP)]),
    ];
  }

  /** @param {HTMLElement} parent @returns {Curve[]} */
  #makeCurves(parent) {
    /** @param {string} title @param {Axis} y @param {Line[]} lines */
    const curve = (title, y, lines) => {
      const box = h("div", { class: "card" });
      parent.append(box);
      const options = { title, x: this.#x, y: { min: 0, ...y }, height: 190 };
      return { lines, chart: new Chart(box, options) };
    };
    return [
      curve("Speed", { label: "tokens/s", atLeast: 10 }, [
        { name: "tokens_per_second", label: "tokens per second", colour: "--series-1" },
      ]),
      curve("Speculation", { label: "tokens", atLeast: 4 }, [
        { name: "acceptance_length", label: "AL incl. bonus", colour: "--series-3" },
        {
          name: "draft_length", label: "draft length, mean of all rounds", colour: "--series-2",
          dash: DASH,
        },
      ]),
      curve("Requests", { label: "requests", atLeast: 4, whole: true }, [
        { name: "running", label: "running", colour: "--series-1" },
        { name: "waiting", label: "waiting", colour: "--series-2", dash: DASH },
      ]),
      curve("KV in use", { label: "share of blocks", atLeast: 0.1, format: percentOf }, [
        { name: "kv_usage", label: "KV in use", colour: "--series-4" },
      ]),
    ];
  }

  // -- drawing ------------------------------------------------------------------------------------

  /** @param {LiveSnapshot} snapshot */
  #draw(snapshot) {
    this.#points.push(...snapshot.history);
    this.#points = this.#points.filter(({ time }) => time >= snapshot.time - KEPT);
    this.#state.textContent = "live";
    this.#state.className = "state";
    this.#tiles.replaceChildren(...tiles(snapshot));
    this.#positions.replaceChildren(positionBars(snapshot.speculation));
    this.#lengths.replaceChildren(lengthBars(snapshot.speculation));
    this.#groups.replaceChildren(groupTable(snapshot.groups));
    this.#drawCurves(snapshot.time);
  }

  /** @param {number} now */
  #drawCurves(now) {
    const shown = Math.max(Number(this.#window.value), SHORTEST);
    this.#x.min = -shown;
    const points = this.#points.filter(({ time }) => time >= now - shown);
    const x = points.map(({ time }) => time - now);
    for (const { lines, chart } of this.#curves) {
      chart.draw({ series: lines.map(({ name, ...line }) => (
        { ...line, x, y: points.map((point) => point[name]) })) });
    }
  }
}

/** @param {number} share */
const percentOf = (share) => percent(share);

// -- tiles ----------------------------------------------------------------------------------------

/** @param {LiveSnapshot} snapshot */
function tiles(snapshot) {
  const { latency, speculation, now, preemptions } = snapshot;
  const drafted = `${number(speculation.accepted_tokens)} of ${number(speculation.draft_tokens)} `
    + "drafted tokens accepted";
  const prefixes = `prefix cache: ${percent(snapshot.prefix_hit_rate)} of prompt tokens found`;
  return [
    tile("Speed", rate(snapshot.tokens_per_second),
      `${number(snapshot.prompt_tokens_per_second)} prompt tokens/s`),
    tile("AL incl. bonus", fixed(speculation.acceptance_length, 2),
      speculation.draft_rounds ? drafted : "nothing was drafted"),
    speedupTile(snapshot),
    tile("TPOT, median", seconds(latency.tpot?.p50), quantiles(latency.tpot, latency.streams)),
    tile("TTFT, median", seconds(latency.ttft?.p50), quantiles(latency.ttft, latency.streams)),
    tile("Requests", `${now.running} running`,
      `${now.waiting} waiting; in the queue for ${seconds(latency.queue?.p50)} (median)`),
    tile("KV in use", percent(now.kv_usage, 1),
      prefixes + (preemptions ? `; ${preemptions} preempted` : "")),
  ];
}

/** Return the speedup: measured on held-back requests, else by the cost table, else none. */
function speedupTile(/** @type {LiveSnapshot} */ { holdback, speedup_vs_ar, speculation }) {
  const name = "Speedup against AR";
  const byCosts = speculation.draft_rounds ? speedup_vs_ar : null;
  const heldBack = holdback?.held_back ?? 0;
  if (holdback && heldBack >= ENOUGH) {
    return tile(name, times(holdback.speedup),
      `measured: median TPOT of the held back (${heldBack}) ÷ of the others (${holdback.others}); `
      + `${times(byCosts)} by the cost table`);
  }
  if (byCosts !== null) {
    const soFar = holdback ? `; held back so far: ${heldBack}, measured from ${ENOUGH} on` : "";
    return tile(name, times(byCosts), `by the cost table, not side by side: see below${soFar}`);
  }
  return tile(name, NONE, speculation.rounds ? "nothing was drafted" : "nothing was decoded");
}

/** @param {string} name @param {string} value @param {string} more */
const tile = (name, value, more) => h("div", { class: "tile card" },
  h("h2", {}, name), h("p", { class: "value" }, value), h("p", { class: "hint" }, more));

/** @param {Quantiles | null} quantile @param {number} streams */
function quantiles(quantile, streams) {
  if (!quantile) return "no request ended";
  const shares = [
    `90 %: ${seconds(quantile.p90)}`, `99 %: ${seconds(quantile.p99)}`, `${number(streams)} ended`,
  ];
  return shares.map((text) => text.replaceAll(" ", "\u00a0")).join(", ");
}

/** @param {string} title @param {string} hint @param {Child} content */
const card = (title, hint, content) => (
  h("section", { class: "card" }, h("h2", {}, title), h("p", { class: "hint" }, hint), content));

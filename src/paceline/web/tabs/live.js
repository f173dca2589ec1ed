// What the running server does: asked once a second, and only while somebody looks.

import { chart } from "../lib/chart.js";
import { h, loadStyle } from "../lib/dom.js";
import { errorBox } from "../lib/errors.js";
import { fixed, NONE, number, percent, rate, seconds, times } from "../lib/format.js";
import { getJson } from "../lib/http.js";
import { groupTable, lengthBars, positionBars } from "../lib/live_tables.js";

const EVERY = 1000; // milliseconds between two questions
const KEPT = 600; // seconds of history that the server has
const SHORTEST = 60; // seconds that the curves show at least
const WINDOWS = [[10, "10 s"], [60, "1 min"], [300, "5 min"], [600, "10 min"]];
const ENOUGH = 20; // requests held back whose median TPOT is worth showing
const SPEEDUP = "Speedup by the cost table: the time that the same tokens would have taken in steps without drafts ÷ the "
  + "time they took. The table is timed when the server starts, and follows its steps. It is as good as that table; "
  + "paceline serve --holdback 0.05 measures instead, on one request in twenty that runs without speculation, in steps that it "
  + "shares with the others.";
let live = null;

export async function mount(element, { params, remember }) {
  const [facts] = await Promise.all([getJson("ui/serving"), loadStyle("tabs/live.css")]);
  live = new Live(element, facts, params(), remember);
}

export const show = () => live.show();
export const hide = () => live.hide();

class Live {
  constructor(element, facts, params, remember) {
    this.facts = facts;
    this.points = []; // of the curves, oldest first
    this.shown = false;
    this.timer = null;
    const asked = Number(params.get("window"));
    const window_ = WINDOWS.some(([value]) => value === asked) ? asked : 60;
    this.span = h("select", { id: "live-window", on: { change: () => {
      remember(new URLSearchParams({ window: this.span.value }));
      this.#ask();
    } } }, WINDOWS.map(([value, text]) => h("option", { value, selected: value === window_ }, text)));
    this.#build(element);
    document.addEventListener("visibilitychange", () => this.#ask());
  }

  show() {
    this.shown = true;
    this.#ask();
  }

  hide() {
    this.shown = false;
    clearTimeout(this.timer);
  }

  // -- asking --------------------------------------------------------------------------------------

  async #ask() {
    clearTimeout(this.timer);
    if (!this.shown || document.visibilityState !== "visible" || this.asking) return;
    this.asking = true;
    try {
      const since = this.points.at(-1)?.time ?? 0;
      this.#draw(await getJson(`ui/live?window=${this.span.value}&since=${since}`));
      this.trouble.replaceChildren();
    } catch (error) {
      this.state.textContent = "no news";
      this.state.className = "state stale";
      if (!this.trouble.hasChildNodes()) this.trouble.append(errorBox(error));
      if (error.status === 401) return; // asking again would only ask for the key again
    } finally {
      this.asking = false;
    }
    this.timer = setTimeout(() => this.#ask(), EVERY);
  }

  // -- what is there -------------------------------------------------------------------------------

  #build(element) {
    this.state = h("span", { class: "state" }, "asking…");
    this.trouble = h("div", {});
    this.tiles = h("div", { class: "tiles" });
    this.positions = h("div", {});
    this.lengths = h("div", {});
    this.groups = h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "By drafter and cohort" });
    const curves = h("div", { class: "grid" });
    element.append(
      h("div", { class: "head" },
        h("h1", {}, "Live"), this.state,
        h("label", { htmlFor: "live-window" }, "Numbers over the last "), this.span),
      this.trouble, this.tiles,
      h("div", { class: "grid" },
        card("Acceptance by position",
          "Of the rounds that drafted a token at this position, the share that accepted it.", this.positions),
        card("Draft length chosen",
          "Rounds by the number of tokens that were drafted and verified; 0 is a round without a draft.", this.lengths)),
      card("By drafter and cohort",
        "A cohort is the model name that requests use. AR is speculation off, as asked for or held back.", this.groups,
        h("p", { class: "hint" }, SPEEDUP)),
      curves);
    this.curves = this.#makeCurves(curves);
  }

  #makeCurves(parent) {
    this.x = { label: "seconds ago", max: 0, format: (value) => number(Math.abs(value)) };
    const make = (title, label, lines, y = {}) => {
      const box = h("div", { class: "card" });
      parent.append(box);
      return { lines, chart: chart(box, { title, x: this.x, y: { label, min: 0, ...y }, height: 190 }) };
    };
    return [
      make("Speed", "tokens/s", [["tokens_per_second", "tokens per second", "--series-1"]]),
      make("Speculation", "tokens", [
        ["acceptance_length", "AL incl. bonus", "--series-3"],
        ["draft_length", "draft length, mean of all rounds", "--series-2", [5, 4]],
      ]),
      make("Requests", "requests", [
        ["running", "running", "--series-1"],
        ["waiting", "waiting", "--series-2", [5, 4]],
      ]),
      make("KV in use", "share of blocks", [["kv_usage", "KV in use", "--series-4"]],
        { format: (value) => percent(value, 1) }),
    ];
  }

  // -- drawing -------------------------------------------------------------------------------------

  #draw(told) {
    this.points.push(...told.history);
    const oldest = told.time - KEPT;
    while (this.points.length && this.points[0].time < oldest) this.points.shift();
    this.state.textContent = "live";
    this.state.className = "state";
    this.tiles.replaceChildren(...this.#tiles(told));
    this.positions.replaceChildren(positionBars(told.speculation));
    this.lengths.replaceChildren(lengthBars(told.speculation));
    this.groups.replaceChildren(groupTable(told.groups));
    this.#drawCurves(told.time);
  }

  #drawCurves(now) {
    this.x.min = -Math.max(Number(this.span.value), SHORTEST);
    const points = this.points.filter(({ time }) => time >= now + this.x.min);
    const x = points.map(({ time }) => time - now);
    for (const { lines, chart: drawn } of this.curves) {
      drawn.draw({ series: lines.map(([name, label, colour, dash]) => ({
        label, colour, dash, x, y: points.map((point) => point[name]),
      })) });
    }
  }

  #tiles(told) {
    const { latency, speculation: counts, now } = told;
    return [
      tile("Speed", rate(told.tokens_per_second), `${number(told.prompt_tokens_per_second)} prompt tokens/s`),
      tile("AL incl. bonus", fixed(counts.acceptance_length, 2),
        counts.draft_rounds ? `${number(counts.accepted_tokens)} of ${number(counts.draft_tokens)} drafted tokens accepted`
          : "nothing was drafted"),
      this.#speedup(told),
      tile("TPOT, median", seconds(latency.tpot?.p50), quantiles(latency.tpot, latency.streams)),
      tile("TTFT, median", seconds(latency.ttft?.p50), quantiles(latency.ttft, latency.streams)),
      tile("Requests", `${now.running} running`, `${now.waiting} waiting; in the queue for ${seconds(latency.queue?.p50)} (median)`),
      tile("KV in use", percent(now.kv_usage, 1), `prefix cache: ${percent(told.prefix_hit_rate)} of prompt tokens found`
        + (told.preemptions ? `; ${told.preemptions} preempted` : "")),
    ];
  }

  /** A held-back group is a measurement; the cost table is the next best; else there is no number. */
  #speedup({ holdback, speedup_vs_ar: byCosts, speculation }) {
    const name = "Speedup against AR";
    const table = speculation.draft_rounds ? byCosts : null;
    if (holdback?.held_back >= ENOUGH) {
      return tile(name, times(holdback.speedup), `measured: median TPOT of the held back (${holdback.held_back}) ÷ of the `
        + `others (${holdback.others}); ${times(table)} by the cost table`);
    }
    if (table !== null) {
      const soFar = holdback ? `; held back so far: ${holdback.held_back}, measured from ${ENOUGH} on` : "";
      return tile(name, times(table), `by the cost table, not side by side: see below${soFar}`);
    }
    return tile(name, NONE, speculation.rounds ? "nothing was drafted" : "nothing was decoded");
  }
}

function tile(name, value, more) {
  return h("div", { class: "tile card" }, h("h2", {}, name), h("p", { class: "value" }, value), h("p", { class: "hint" }, more));
}

function quantiles(found, streams) {
  if (!found) return "no request ended";
  const shares = [`90 %: ${seconds(found.p90)}`, `99 %: ${seconds(found.p99)}`, `${number(streams)} ended`];
  return shares.map((text) => text.replaceAll(" ", "\u00a0")).join(", ");
}

function card(title, hint, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), h("p", { class: "hint" }, hint), children);
}

// How well drafters do, cohort by cohort, what is tried in their place, and why: asked now and
// then, and only while somebody looks.

import { changeList, decisionList } from "../autospec/changes.js";
import { CohortCards } from "../autospec/cohorts.js";
import { matrixTable } from "../autospec/matrix.js";
import { PromotionForm } from "../autospec/promotion.js";
import { versionTable } from "../autospec/versions.js";
import { nothing, RUN, section } from "../autospec/words.js";
import { Asking } from "../lib/asking.js";
import { choice } from "../lib/controls.js";
import { find, h } from "../lib/dom.js";
import { errorBox } from "../lib/errors.js";
import { span } from "../lib/format.js";
import { getJson } from "../lib/http.js";

/** @import { AutospecOverview, ServingFacts } from "../types/answers" */
/** @import { TabContext } from "../types/page" */

const EVERY = 10_000; // milliseconds between two questions
const SOON = 2_000; // the same while traces are being read
const BY = { minute: "3 hours, by minute", hour: "a week, by hour", day: "60 days, by day" };
/** @type {AutospecTab | null} */
let tab = null;

/** @param {HTMLElement} element @param {TabContext} context */
export function mount(element, context) {
  tab = new AutospecTab(element, context);
}

export const show = () => tab?.show();
export const hide = () => tab?.hide();

class AutospecTab {
  #asking = new Asking(EVERY, () => this.#ask(), (error) => this.#complain(error));
  /** @type {keyof typeof BY} */
  #by = "hour";
  #state = h("span", { class: "state" }, "asking…");
  #trouble = h("div");
  #changes = h("div");
  #matrix = h("div");
  #versions = h("div");
  #decisions = h("div");
  #cohorts;
  #promotion = new PromotionForm(() => this.#asking.now());
  #body;

  /** @param {HTMLElement} element @param {TabContext} context */
  constructor(element, { params, remember }) {
    const asked = params().get("by");
    if (asked === "minute" || asked === "day") this.#by = asked;
    const spans = choice("Span of the curves", BY, this.#by, (by) => {
      this.#by = by;
      remember(new URLSearchParams({ by }));
      this.#asking.now();
    });
    this.#cohorts = new CohortCards(spans.element);
    this.#body = h("div", { class: "body", hidden: true }, this.#sections());
    element.append(
      h("div", { class: "head" }, h("h1", {}, "Autospec"), this.#state), this.#trouble, this.#body);
  }

  show() {
    this.#asking.show();
  }

  hide() {
    this.#asking.hide();
  }

  #sections() {
    return [
      section("Changes under way",
        "A new version is built, scored, loaded and tried on a growing share of a cohort's "
        + "requests before it is live. Speculation is lossless: a bad one costs speed, never text.",
        this.#changes),
      this.#cohorts.element,
      section("What each version accepts",
        "AL incl. bonus with its 95 % interval, by version and cohort.", this.#matrix),
      section("Drafters", "The versions in the store. One is live for each cohort.",
        this.#versions),
      section("Decisions", "What was found, what follows, and why nothing else does.",
        this.#decisions),
      section("Promote or roll back",
        "The same as paceline drafters promote and rollback. The text of answers never changes.",
        this.#promotion.element),
    ];
  }

  async #ask() {
    /** @type {[AutospecOverview, ServingFacts]} */
    const [view, serving] = await Promise.all([
      getJson(`v1/autospec?by=${this.#by}`), getJson("ui/serving"),
    ]);
    this.#draw(view, serving);
    this.#trouble.replaceChildren();
    return view.traces.state === "reading" ? SOON : EVERY;
  }

  /** @param {unknown} error */
  #complain(error) {
    this.#state.textContent = "no news";
    this.#state.className = "state stale";
    this.#trouble.replaceChildren(errorBox(error));
  }

  /** @param {AutospecOverview} view @param {ServingFacts} serving */
  #draw(view, serving) {
    const { loop, time } = view;
    this.#state.className = loop ? "state" : "state stale";
    this.#state.replaceChildren(loop
      ? `${loop.purpose} decides, on ${loop.host}, for ${span(time - loop.since)}`
      : "no loop runs");
    this.#body.hidden = false;
    const start = nothing("Nobody decides for this store now. Start the loop:", RUN);
    redraw(this.#changes, loop ? null : start, changeList(view));
    this.#cohorts.show(view);
    redraw(this.#matrix, matrixTable(view));
    redraw(this.#versions, versionTable(view, serving.drafters.map(({ name }) => name)));
    redraw(this.#decisions, decisionList(view));
    this.#promotion.show(view);
  }
}

/**
 * Put new content into a place: what a reader has opened or scrolled there stays so, and nothing
 * changes under somebody who is at it with the keyboard.
 *
 * @param {HTMLElement} place
 * @param {...(HTMLElement | null)} content
 */
function redraw(place, ...content) {
  if (place.contains(document.activeElement)) return;
  const isOpen = find(place, "details[open]") !== null;
  const left = find(place, ".scroll")?.scrollLeft ?? 0;
  place.replaceChildren(...content.filter((part) => part !== null));
  if (isOpen) find(place, "details")?.setAttribute("open", "");
  const scrolled = find(place, ".scroll");
  if (scrolled) scrolled.scrollLeft = left;
}

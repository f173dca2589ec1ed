// Promotes versions and rolls back, with the admin key, which stays in this form alone.

import { labelled, clearErrors, errorBox, fieldError, showAtField } from "../lib/errors.js";
import { h } from "../lib/dom.js";
import { HttpError, postJson } from "../lib/http.js";
import { cohortName } from "./words.js";

/** @import { AutospecOverview, DrafterChange, ShownCohort } from "../types/answers" */
/** @import { ShownVersion } from "../types/answers" */

const USUAL = "canary"; // a goal: the loop tries the version before anybody depends on it

export class PromotionForm {
  /** @type {ShownVersion[]} */
  #versions = [];
  /** @type {ShownCohort[]} */
  #cohorts = [];
  #changed;
  #key = h("input", { type: "password", autocomplete: "off", spellcheck: false, id: "admin-key" });
  #reason = h("input", { type: "text", maxLength: 500, id: "autospec-reason" });
  #name = list("autospec-name", () => this.#showGoals());
  #goal = list("autospec-goal", () => this.#explain());
  #cohort = list("autospec-cohort", () => this.#explain());
  #back = list("autospec-back", () => this.#explain());
  #plan = h("p", { class: "hint" });
  #backPlan = h("p", { class: "hint" });
  #result = h("div", { role: "status" });
  #promote = h("button", { type: "submit", class: "primary" }, "Promote");
  #rollback = h("button", { type: "submit" }, "Roll back");
  #promotion;
  #goingBack;
  element;

  /** @param {() => void} changed called when the store has changed */
  constructor(changed) {
    this.#changed = changed;
    this.#promotion = form("Promote", () => this.#sendPromotion(),
      labelled("name", "Version", this.#name), labelled("to", "To", this.#goal),
      labelled("cohort", "For", this.#cohort), this.#plan, this.#promote);
    this.#goingBack = form("Roll back", () => this.#sendRollback(),
      labelled("cohort", "For", this.#back), this.#backPlan, this.#rollback);
    this.element = h("div", { class: "promotion" },
      h("div", { class: "shared" },
        labelled("key", "Admin key", this.#key,
          "The server's --admin-key. It is kept in this field only, until the page is closed."),
        labelled("reason", "Reason", this.#reason, "It stands in the history.")),
      h("div", { class: "forms" }, this.#promotion, this.#goingBack), this.#result);
  }

  /** @param {AutospecOverview} view */
  show({ versions, cohorts }) {
    this.#versions = versions.filter(({ goals }) => goals.length > 0);
    this.#cohorts = cohorts;
    fill(this.#name, this.#versions.map(({ name, state }) => [name, `${name} (${state})`]));
    fill(this.#cohort, cohorts.map(({ cohort }) => [cohort, cohortName(cohort)]));
    fill(this.#back, cohorts.filter(({ has_rollback: possible }) => possible)
      .map(({ cohort }) => [cohort, cohortName(cohort)]));
    this.#promote.disabled = !this.#versions.length;
    this.#rollback.disabled = !this.#back.options.length;
    this.#showGoals();
  }

  // -- what would happen --------------------------------------------------------------------------

  #showGoals() {
    const version = this.#versions.find(({ name }) => name === this.#name.value);
    const goals = version?.goals ?? [];
    const before = goals.find((goal) => goal === this.#goal.value);
    fill(this.#goal, goals.map((goal) => [goal, goal]));
    this.#goal.value = before ?? goals.find((goal) => goal === USUAL) ?? goals[0] ?? "";
    this.#explain();
  }

  #explain() {
    const isLive = this.#goal.value === "live";
    const place = this.#cohort.closest(".field");
    place?.toggleAttribute("hidden", !isLive);
    const serving = this.#cohorts.find(({ cohort }) => cohort === this.#cohort.value);
    this.#plan.textContent = this.#versions.length
      ? planText(this.#name.value, this.#goal.value, serving ?? null)
      : "No version can be promoted.";
    const back = this.#cohorts.find(({ cohort }) => cohort === this.#back.value);
    this.#backPlan.textContent = back === undefined ? "There is nothing to go back to."
      : rollbackText(back);
  }

  // -- doing it -----------------------------------------------------------------------------------

  #sendPromotion() {
    const to = this.#goal.value;
    const cohort = to === "live" ? this.#cohort.value : "";
    const body = { name: this.#name.value, to, cohort, reason: this.#reason.value };
    return this.#send("promote", body, this.#promotion, (change) => (
      change.live === null ? `${body.name} is ${to}.` : liveText(change)));
  }

  #sendRollback() {
    const cohort = this.#back.value;
    const name = this.#cohorts.find((shown) => shown.cohort === cohort)?.back ?? null;
    const body = { cohort, name, reason: this.#reason.value };
    return this.#send("rollback", body, this.#goingBack, (change) => (
      change.live === null ? `${cohortName(cohort)} has no version of its own any more.`
        : liveText(change)));
  }

  /**
   * @param {string} path
   * @param {object} body
   * @param {HTMLElement} place where errors show
   * @param {(change: DrafterChange) => string} told
   */
  async #send(path, body, place, told) {
    clearErrors(this.element);
    this.#result.replaceChildren();
    for (const button of [this.#promote, this.#rollback]) button.disabled = true;
    try {
      /** @type {DrafterChange} */
      const change = await postJson(`v1/autospec/${path}`, body, this.#key.value.trim());
      const next = change.loop ? "The loop has servers follow."
        : "No loop runs, so servers do not follow: start `paceline autospec run`.";
      this.#result.replaceChildren(h("p", { class: "done" }, `${told(change)} ${next}`));
    } catch (error) {
      this.#showError(error, place);
    } finally {
      this.#promote.disabled = !this.#versions.length;
      this.#rollback.disabled = !this.#back.options.length;
    }
    this.#changed();
  }

  /** @param {unknown} error @param {HTMLElement} place */
  #showError(error, place) {
    const status = error instanceof HttpError ? error.status : 0;
    if (error instanceof HttpError && (status === 401 || status === 403)) {
      showAtField(this.element, fieldError("key", error.message));
    } else if (!(error instanceof HttpError && showAtField(place, error))) {
      this.#result.replaceChildren(errorBox(error));
    }
  }
}

/** @param {string} id @param {() => void} changed */
const list = (id, changed) => h("select", { id, on: { change: changed } });

/**
 * Put options into a list unless it has them; what was chosen stays chosen.
 *
 * @param {HTMLSelectElement} menu
 * @param {[value: string, text: string][]} options
 */
function fill(menu, options) {
  const shown = [...menu.options].map(({ value, text }) => [value, text]);
  if (JSON.stringify(shown) === JSON.stringify(options)) return;
  const before = menu.value;
  menu.replaceChildren(...options.map(([value, text]) => h("option", { value }, text)));
  if (options.some(([value]) => value === before)) menu.value = before;
}

/** @param {string} title @param {() => unknown} send @param {...Node} content */
const form = (title, send, ...content) => h("form", {
  on: {
    submit: (event) => {
      event.preventDefault();
      send();
    },
  },
}, h("h3", {}, title), content);

/** @param {string} name @param {string} goal @param {ShownCohort | null} serving */
function planText(name, goal, serving) {
  if (goal !== "live") {
    return goal === USUAL ? `The loop tries ${name} on a growing share of the requests, and makes `
      + "it live or stops it." : `${name} becomes ${goal}; it drafts for nobody yet.`;
  }
  const where = cohortName(serving?.cohort ?? "");
  const old = serving?.is_own && serving.live !== name ? ` in place of ${serving.live}` : "";
  return `${name} drafts for ${where}${old} at once, without a canary.`;
}

/** @param {ShownCohort} cohort */
function rollbackText({ cohort, live, back }) {
  const where = cohortName(cohort);
  return back === null ? `${where} gets the version of all requests again, in place of ${live}.`
    : `${back} drafts for ${where} again, in place of ${live ?? "none"}.`;
}

/** @param {DrafterChange} change */
function liveText({ live, cohort, retired }) {
  const gone = retired.length ? `; ${retired.join(", ")} is retired` : "";
  return `${live} is live for ${cohortName(cohort ?? "")}${gone}.`;
}

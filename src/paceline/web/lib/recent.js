// The latest requests whose rounds the server keeps, and the rounds of one of them.

import { h } from "./dom.js";
import { errorBox } from "./errors.js";
import { fixed, number } from "./format.js";
import { getJson } from "./http.js";
import { Counts, tokensOf } from "./rounds.js";
import { TokenView, tokenLegend } from "./token_view.js";

/** @import { RecentRequest, RecentRequests as RequestList, Round } from "../types/answers" */
/** @import { RequestRounds } from "../types/api" */

/** @typedef {RequestRounds["choices"][number]} Choice */

export class RecentRequests {
  element;
  #list = h("div", {
    class: "scroll", tabIndex: 0, role: "region", "aria-label": "Recent requests",
  });
  #rounds = h("div", { class: "rounds" });
  #shown = ""; // the list as JSON
  /** @type {string | null} the id of the request whose rounds are shown */
  #opened = null;

  constructor() {
    this.element = h("section", { class: "card recent" },
      h("h2", {}, "Recent requests"),
      h("p", { class: "hint" }, "Requests with ", h("code", {}, '"explain": true'), ", such as "
        + "those of the playground: the server keeps the rounds of the last 256. With API keys, "
        + "those of your key."),
      this.#list, this.#rounds);
  }

  /** Show the list as it is now. @param {RequestList} list */
  show({ requests }) {
    const text = JSON.stringify(requests);
    if (text === this.#shown) return; // keeps the focus, and what a reader points at
    this.#shown = text;
    this.#draw(requests);
  }

  // -- inside -------------------------------------------------------------------------------------

  /** @param {RecentRequest[]} requests */
  #draw(requests) {
    if (!requests.length) {
      this.#list.replaceChildren(h("p", { class: "soft empty" }, "No request with rounds yet."));
      return;
    }
    const heads = ["time", "request", "model", "tokens", "rounds", "AL incl. bonus",
      "ended by"];
    this.#list.replaceChildren(h("table", {},
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, requests.map((request) => this.#row(request)))));
  }

  /** @param {RecentRequest} request */
  #row({ id, created, model, tokens, rounds, acceptance_length: length, finish_reasons: ends }) {
    const button = h("button", {
      type: "button", class: "quiet", "aria-expanded": String(id === this.#opened),
      on: { click: () => this.#open(id) },
    }, id);
    return h("tr", {},
      h("th", { scope: "row" }, new Date(1e3 * created).toLocaleTimeString()),
      h("td", { class: "name" }, button),
      h("td", { class: "name" }, model),
      h("td", {}, number(tokens, 7)),
      h("td", {}, number(rounds, 7)),
      h("td", {}, fixed(length, 2)),
      h("td", {}, ends.map((reason) => reason ?? "running").join(", ")));
  }

  /** Show the rounds of a request below the list; a second time hides them. @param {string} id */
  async #open(id) {
    const isClosing = id === this.#opened;
    this.#opened = isClosing ? null : id;
    this.#rounds.replaceChildren();
    const list = JSON.parse(this.#shown);
    this.#draw(list);
    if (isClosing) return;
    try {
      /** @type {RequestRounds} */
      const { choices } = await getJson(`v1/requests/${encodeURIComponent(id)}/rounds`);
      if (id !== this.#opened) return;
      this.#rounds.append(h("h3", {}, id), tokenLegend(),
        ...choices.flatMap((choice) => choiceRounds(choice, choices.length)));
      this.#rounds.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (id === this.#opened) this.#rounds.replaceChildren(errorBox(error));
    }
  }
}

/** @param {Choice} choice @param {number} count of the choices */
function choiceRounds(choice, count) {
  const title = count > 1 ? `Choice ${choice.index + 1}` : "Answer";
  const view = new TokenView(title, { drafts: true });
  const counts = new Counts();
  for (const round of choice.rounds) {
    view.add(round);
    counts.add(round);
  }
  return [
    count > 1 ? h("h4", {}, title) : "",
    h("p", { class: "hint" }, summary(choice, counts)),
    view.element,
    h("details", {}, h("summary", {}, "Round by round"), roundTable(choice.rounds)),
  ];
}

/** @param {Choice} choice @param {Counts} counts */
function summary({ rounds, rounds_left_out: leftOut }, counts) {
  const cuts = counted(rounds.map((round) => round.cut_by));
  const parts = counted(rounds.filter((round) => round.proposed).map((round) => round.part));
  return `${counts.tokens} tokens in ${counts.rounds} rounds, ${counts.draftRounds} of them `
    + `drafted${parts ? ` (by ${parts})` : ""}; AL ${fixed(counts.acceptanceLength, 2)} incl. `
    + `bonus; drafts kept short by: ${cuts || "nothing"}`
    + (leftOut ? `; ${leftOut} later rounds were not kept` : "");
}

/** @param {(string | null)[]} names */
function counted(names) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const name of names) if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort().map(([name, count]) => `${name} ${count}×`).join(", ");
}

/** @type {[head: string, cell: (round: Round) => string][]} */
const COLUMNS = [
  ["at", (round) => `${round.position}`],
  ["drafted", ({ proposed }) => (proposed ? `${proposed}` : "")],
  ["verified", ({ proposed, verified }) => (proposed ? `${verified}` : "")],
  ["accepted", ({ proposed, accepted }) => (proposed ? `${accepted}` : "")],
  ["forced", ({ forced }) => (forced ? `${forced}` : "")],
  ["ms", ({ step_ms: step, draft_ms: draft }) => fixed(step + draft, 1)],
  ["by", ({ proposed, part, drafter }) => (proposed ? part ?? drafter ?? "" : "")],
  ["no longer because of", (round) => round.cut_by ?? ""],
];

/** @param {Round[]} rounds */
function roundTable(rounds) {
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, COLUMNS.map(([head]) => h("th", { scope: "col" }, head)),
      h("th", { scope: "col", class: "name" }, "tokens"))),
    h("tbody", {}, rounds.map((round) => h("tr", {},
      COLUMNS.map(([, cell]) => h("td", {}, cell(round))),
      h("td", { class: "name" }, tokensOf(round).map(({ kind, text }) => (
        h("span", { class: `token ${kind}` }, text.replaceAll("\n", "⏎"))))))))));
}

// What the rounds of an answer say of its tokens: which were drafted, what became of them, and the
// numbers that follow. A round is the server's (docs: GET /v1/requests/{id}/rounds).

/** @import { CommittedToken, Round, RoundToken } from "../types/answers" */

/** @typedef {CommittedToken["kind"] | "rejected" | "unused" | "withheld"} Kind */
/** @typedef {{ id: number | null, text: string, kind: Kind }} ShownToken  null: it is withheld */

/**
 * The names and texts of the kinds of tokens, in the order of the legend.
 *
 * @type {Record<Kind, { name: string, text: string }>}
 */
export const KINDS = {
  accepted: { name: "accepted", text: "drafted, and the model agreed" },
  bonus: {
    name: "bonus",
    text: "the model's own token: after its last accepted draft, or with no draft at all",
  },
  forced: {
    name: "forced",
    text: "the only token that the grammar allowed: neither drafted nor chosen",
  },
  rejected: {
    name: "rejected",
    text: "drafted, and the model said another token: not in the answer",
  },
  unused: {
    name: "drafted only",
    text: "drafted, and not judged: cut before verification, or past the end",
  },
  withheld: {
    name: "withheld",
    text: "drafted from another request's text, and not in this answer: the server does not show "
      + "it",
  },
};

/** Return whether a token of this kind is in the answer. @param {Kind} kind */
export const isCommitted = (kind) => !["rejected", "unused", "withheld"].includes(kind);

/**
 * Return the tokens of one round: the accepted draft, the rest of the draft, and what the model
 * says in place of that rest.
 *
 * @param {Round} round
 * @returns {ShownToken[]}
 */
export function tokensOf(round) {
  const committed = round.committed_tokens;
  const verified = round.verified_tokens;
  let matching = 0;
  while (matching < committed.length && matching < verified.length
    && committed[matching].id === verified[matching].id) matching += 1;
  // where the answer ended inside the draft, the model has judged nothing after its end
  const judged = matching === committed.length ? "unused" : "rejected";
  const forced = new Set(round.forced_places);
  const refused = verified.slice(matching).filter((_, index) => !forced.has(matching + index));
  const cut = round.proposed - (verified.length - forced.size);
  const unverified = cut > 0 ? round.drafted_tokens.slice(round.proposed - cut) : [];
  return [
    ...committed.slice(0, matching),
    ...marked(refused, judged),
    ...marked(unverified, "unused"),
    ...Array.from({ length: round.hidden_tokens }, () => WITHHELD),
    ...committed.slice(matching),
  ];
}

/** @type {ShownToken} */
const WITHHELD = { id: null, text: "▒", kind: "withheld" };

/** @param {RoundToken[]} tokens @param {Kind} kind @returns {ShownToken[]} */
const marked = (tokens, kind) => tokens.map((token) => ({ ...token, kind }));

/**
 * Return the mean tokens that a round with a draft commits, incl. bonus (AL); null where nothing
 * was drafted. It is that of paceline.core.rounds, and a test holds the two together.
 *
 * @param {number} draftRounds rounds with at least one drafted token
 * @param {number} acceptedTokens of all of them
 */
export function acceptanceLength(draftRounds, acceptedTokens) {
  return draftRounds > 0 ? 1 + acceptedTokens / draftRounds : null;
}

/** The counts of an answer's rounds as they come. */
export class Counts {
  rounds = 0;
  draftRounds = 0;
  draftTokens = 0; // verified ones, as the server counts them
  acceptedTokens = 0;
  tokens = 0;
  /** @type {number | null} seconds since the epoch at the end of the first round */
  #first = null;
  #last = 0; // and of the latest

  /** @param {Round} round */
  add(round) {
    const drafted = round.verified - round.forced_places.length;
    this.rounds += 1;
    if (drafted > 0) this.draftRounds += 1;
    this.draftTokens += drafted;
    this.acceptedTokens += round.accepted;
    this.tokens += round.committed_tokens.length;
    this.#first ??= round.time;
    this.#last = round.time;
  }

  get acceptanceLength() {
    return acceptanceLength(this.draftRounds, this.acceptedTokens);
  }

  /** Seconds per token after the first, by the server's clock; null before there are two. */
  get tpot() {
    const passed = this.#last - (this.#first ?? this.#last);
    return this.tokens > 1 && passed > 0 ? passed / (this.tokens - 1) : null;
  }
}

const ESCAPED = /^bytes:(?:\\x[0-9a-f]{2})+$/;

/** The text of tokens as they come. A character that spans several tokens shows with its last. */
export class TokenText {
  #decoder = new TextDecoder();

  /** @param {string} text of the next token */
  read(text) {
    const bytes = ESCAPED.test(text)
      ? Uint8Array.from(text.split("\\x").slice(1), (pair) => Number.parseInt(pair, 16))
      : new TextEncoder().encode(text);
    return this.#decoder.decode(bytes, { stream: true });
  }
}

/**
 * Return the first index at which two lists of tokens differ, or null.
 *
 * @param {RoundToken[]} left
 * @param {RoundToken[]} right
 */
export function firstDifference(left, right) {
  const length = Math.max(left.length, right.length);
  for (let index = 0; index < length; index += 1) {
    if (left[index]?.id !== right[index]?.id) return index;
  }
  return null;
}

// What the rounds of an answer say of its tokens: which were drafted, what became of them, and the
// numbers that follow. A round is one that the server tells (docs: GET /v1/requests/{id}/rounds).

/** How a token came about, and what is said of it. The order is that of the legend. */
export const KINDS = {
  accepted: { name: "accepted", text: "drafted, and the model agreed" },
  bonus: { name: "bonus", text: "the model's own token: after its last accepted draft, or with no draft at all" },
  forced: { name: "forced", text: "the only token that the grammar allowed: neither drafted nor chosen" },
  rejected: { name: "rejected", text: "drafted, and the model said another token: not in the answer" },
  unused: { name: "drafted only", text: "drafted, and not judged: cut before verification, or past the end" },
  withheld: { name: "withheld", text: "drafted from another request's text, and not in this answer: the server does not show it" },
};

/**
 * The tokens of one round: the draft as far as it stands, what of it does not, and what the model
 * says in its place. Each has `id`, `text` and `kind`, one of KINDS; what is withheld has no id.
 */
export function tokensOf(round) {
  const committed = round.committed_tokens;
  const verified = round.verified_tokens;
  let stand = 0;
  while (stand < committed.length && stand < verified.length
    && committed[stand].id === verified[stand].id) stand += 1;
  // the answer ended inside the draft: nobody has said anything against the rest of it
  const ended = stand === committed.length;
  const forced = new Set(round.forced_places);
  const left = verified.slice(stand)
    .filter((_, index) => !forced.has(stand + index))
    .map((token) => ({ ...token, kind: ended ? "unused" : "rejected" }));
  const cut = round.proposed - (verified.length - forced.size);
  const unused = cut > 0 ? round.drafted_tokens.slice(round.proposed - cut) : [];
  const withheld = Array.from({ length: round.hidden_tokens }, () => ({ id: null, text: "▒", kind: "withheld" }));
  const lost = [...left, ...unused.map((token) => ({ ...token, kind: "unused" })), ...withheld];
  return [...committed.slice(0, stand), ...lost, ...committed.slice(stand)];
}

/** Counts of an answer's rounds as they come. */
export class Counts {
  rounds = 0;
  draftRounds = 0;
  draftTokens = 0; // verified ones, as the server counts them
  tokens = 0;
  kinds = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, 0]));
  first = null; // seconds since the epoch at the end of the first round, and of the latest
  last = null;

  add(round, tokens) {
    this.rounds += 1;
    const drafted = round.verified - round.forced_places.length;
    if (drafted) this.draftRounds += 1;
    this.draftTokens += drafted;
    for (const { kind } of tokens) this.kinds[kind] += 1;
    this.tokens += round.committed_tokens.length;
    this.first ??= round.time;
    this.last = round.time;
  }

  /** Mean tokens per round with a draft, incl. bonus; null where nothing was drafted. */
  get acceptanceLength() {
    return this.draftRounds ? 1 + this.kinds.accepted / this.draftRounds : null;
  }

  /** Seconds per token after the first, by the server's own clock; null before there are two. */
  get tpot() {
    return this.tokens > 1 && this.last > this.first ? (this.last - this.first) / (this.tokens - 1) : null;
  }
}

const ESCAPED = /^bytes:(?:\\x[0-9a-f]{2})+$/;

/** Text of tokens as they come: a character may be spread over several, and shows with its last. */
export class TokenText {
  #decoder = new TextDecoder();

  read({ text }) {
    const bytes = ESCAPED.test(text)
      ? Uint8Array.from(text.split("\\x").slice(1), (pair) => Number.parseInt(pair, 16))
      : new TextEncoder().encode(text);
    return this.#decoder.decode(bytes, { stream: true });
  }
}

/** Where two lists of tokens part: the first index at which they differ, or null. */
export function firstDifference(one, other) {
  const length = Math.max(one.length, other.length);
  for (let index = 0; index < length; index += 1) {
    if (one[index]?.id !== other[index]?.id) return index;
  }
  return null;
}

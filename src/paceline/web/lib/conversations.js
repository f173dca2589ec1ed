// Conversations that this browser keeps, each under its own key: two windows do not overwrite each
// other's.

/**
 * An answer as it is kept: without its rounds, which take a hundred times its text. Times are
 * seconds; `tokens` has the one that ended the answer, and those of the reasoning.
 *
 * @typedef {{
 *   title: string, model: string, text: string, reasoning: string, tokens: number,
 *   acceptance_length: number | null,
 *   tpot: number | null, ttft: number | null, seed: number | number[] | null,
 * }} KeptAnswer
 * @typedef {{ said: string, answers: KeptAnswer[], verdict: string }} KeptTurn
 * @typedef {{
 *   format: string, id: string, system: string, updated: string, turns: KeptTurn[],
 * }} Conversation  `updated` is a time in ISO 8601
 */

export const FORMAT = "paceline-conversation/1";
const PREFIX = "paceline-conversation:";
export const MOST = 50; // conversations
export const MOST_CHARACTERS = 2_000_000; // of all: browsers give a site about five million

/** Return the kept conversations, the latest first. @returns {Conversation[]} */
export const keptConversations = () => everyEntry().map(({ kept }) => kept)
  .filter((kept) => kept !== null)
  .sort((left, right) => right.updated.localeCompare(left.updated));

/** Return the ids under which no conversation can be read: damaged, or of another version. */
export const unreadableIds = () => everyEntry().filter(({ kept }) => kept === null)
  .map(({ id }) => id);

/** Return every id under which something is kept, with its conversation where it can be read. */
function everyEntry() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)).map((key) => {
      const id = key.slice(PREFIX.length);
      return { id, kept: read(id, localStorage.getItem(key) ?? "") };
    });
  } catch {
    return []; // storage is off
  }
}

/**
 * Keep a conversation, and drop the oldest ones that there is no room for beside it. Returns
 * whether it is kept: a browser may have no storage, and one conversation may be too long.
 *
 * @param {Conversation} conversation
 */
export function keepConversation(conversation) {
  const text = JSON.stringify(conversation);
  if (text.length > MOST_CHARACTERS) return false;
  const others = keptConversations().filter(({ id }) => id !== conversation.id);
  let room = MOST_CHARACTERS - text.length;
  const full = others.findIndex((other, index) => {
    room -= JSON.stringify(other).length;
    return room < 0 || index + 1 >= MOST;
  });
  const dropped = full < 0 ? [] : others.splice(full);
  dropped.forEach(({ id }) => dropConversation(id));
  for (;;) {
    try {
      localStorage.setItem(PREFIX + conversation.id, text);
      return true;
    } catch { // storage is off, or something else of this site fills it
      const oldest = others.pop();
      if (oldest === undefined) return false;
      dropConversation(oldest.id);
    }
  }
}

/** @param {string} id */
export function dropConversation(id) {
  try {
    localStorage.removeItem(PREFIX + id);
  } catch {
    // storage is off: nothing is kept
  }
}

/** Return the name of a conversation in lists and files. @param {Conversation} conversation */
export function titleOf({ turns }) {
  const [line] = (turns[0]?.said ?? "").trim().split("\n");
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

/** Return a conversation as Markdown. @param {Conversation} conversation */
export function asMarkdown(conversation) {
  const { system, turns, updated } = conversation;
  const head = [`# ${titleOf(conversation)}`, updated];
  if (system) head.push(`System prompt:\n\n${quoted(system)}`);
  const parts = turns.flatMap(({ said, answers, verdict }) => [
    "## You", said, ...(verdict ? [`*${verdict}*`] : []),
    ...answers.flatMap(({ title, model, text, tokens, tpot }) => [
      `## ${model} (${title})`, text,
      `*${tokens} tokens${tpot ? `, TPOT ${(1e3 * tpot).toFixed(1)} ms` : ""}*`,
    ]),
  ]);
  return `${[...head, ...parts].join("\n\n")}\n`;
}

/** @param {string} text */
const quoted = (text) => text.split("\n").map((line) => `> ${line}`).join("\n");

/** Return what is stored as a conversation; null where it is none. */
function read(/** @type {string} */ id, /** @type {string} */ text) {
  try {
    const stored = JSON.parse(text);
    return isConversation(stored) && stored.id === id ? stored : null;
  } catch {
    return null;
  }
}

/** @typedef {{ [name: string]: any }} Fields  of an object that was stored, of any type */

/** @param {Fields} stored @returns {stored is Conversation} */
const isConversation = (stored) => stored.format === FORMAT
  && areTexts(stored, ["id", "system", "updated"]) && !Number.isNaN(Date.parse(stored.updated))
  && stored.turns.length > 0 && stored.turns.every(isTurn);

/** @param {Fields} turn */
const isTurn = (turn) => areTexts(turn, ["said", "verdict"])
  && turn.answers.length > 0 && turn.answers.every(isAnswer);

/** @param {Fields} answer */
const isAnswer = (answer) => areTexts(answer, ["title", "model", "text", "reasoning"])
  && isNumber(answer.tokens)
  && ["acceptance_length", "tpot", "ttft"].every((name) => isNumberOrNull(answer[name]))
  && (Array.isArray(answer.seed) ? answer.seed.every(isNumber) : isNumberOrNull(answer.seed));

/** @param {Fields} fields @param {string[]} names */
const areTexts = (fields, names) => names.every((name) => typeof fields[name] === "string");

/** @param {unknown} value */
const isNumber = (value) => typeof value === "number";

/** @param {unknown} value */
const isNumberOrNull = (value) => value === null || isNumber(value);

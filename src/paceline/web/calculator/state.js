// What somebody has set in the calculator: as an object, and as a link.

import { pack, unpack } from "../lib/pack.js";

/** @import { Preset, ServedScenario } from "../types/answers" */
/** @import { StatedDrafter } from "../types/api" */

/** @typedef {"model" | "hardware" | "precision" | "calibration" | "checkpoint"} PlainName */
/** @typedef {"config" | "calibration_json"} PackedName  long texts, which a link holds packed */
/** @typedef {"tensor_parallel" | "batch" | "context" | "max_draft"} NumberName */
/** @typedef {Record<PlainName | PackedName, string>} TextFields */
/** @typedef {Record<NumberName, number | null>} NumberFields  null: it is empty or no number */
/** @typedef {TextFields & NumberFields & { drafters: DrafterState[] }} State */

/** @typedef {"kind" | "name" | "form" | "rates" | "costed"} DrafterText */
/** @typedef {"alpha" | "al" | "measured" | "cost" | "block" | "seconds"} DrafterNumber */
/**
 * @typedef {Record<DrafterText | "config", string> & Record<DrafterNumber, number | null>}
 *   DrafterState
 */

/**
 * What a kind of drafter has: ways to know its cost, a block, the seconds of a look-up. An ideal
 * drafter has nothing.
 *
 * @typedef {{
 *   label: string, cost?: string[], block?: boolean, seconds?: boolean, ideal?: boolean,
 * }} Kind
 */

/** @type {{ [kind: string]: Kind }} */
export const KINDS = {
  dflash: { label: "DFlash", cost: ["share", "config"], block: true },
  mtp: { label: "MTP head", cost: ["share", "own"] },
  eagle3: { label: "EAGLE-3", cost: ["share", "config"] },
  draft_model: { label: "Small model", cost: ["share", "config"] },
  ngram: { label: "n-gram", seconds: true },
  suffix: { label: "Suffix", seconds: true },
  ideal: { label: "Ideal (free)", ideal: true },
};
/** @type {{ [form: string]: string }} */
export const FORMS = {
  alpha: "α: every token alike",
  al: "AL incl. bonus",
  conditional: "by position, of those reached",
  unconditional: "by position, of all drafts",
};
/** @type {{ [way: string]: string }} */
export const COSTS = {
  share: "stated: % of an AR step",
  config: "computed: from its config",
  own: "computed: the model's own layer",
};
export const MOST_DRAFTERS = 3;
// in place of the name of a model, hardware or a calibration
export const PASTE = "paste";
export const SERVED = "served"; // what this server runs and has measured

/** @type {DrafterState} */
const BLANK = {
  kind: "mtp", name: "", form: "alpha", alpha: 0.8, al: 3.5, measured: 7, rates: "",
  costed: "share", cost: 10, config: "", block: 15, seconds: 20,
};
// assumptions, for somebody who has measured nothing yet
const FIRST = [
  { kind: "dflash", name: "DFlash", alpha: 0.89 },
  { kind: "mtp", name: "MTP", alpha: 0.75 },
];
/** @type {Record<NumberName, number | null>}  null devices: the server chooses */
const NUMBERS = { tensor_parallel: null, batch: 1, context: 4096, max_draft: 16 };

/**
 * Return the state that the calculator opens with.
 *
 * @param {string} model
 * @param {string} hardware
 * @returns {State}
 */
export const initial = (model, hardware) => ({
  model, config: "", hardware, precision: "", calibration: "", calibration_json: "",
  checkpoint: "", ...NUMBERS, drafters: FIRST.map((values) => ({ ...BLANK, ...values })),
});

/**
 * Return the state of what this server runs.
 *
 * @param {ServedScenario} served
 * @returns {State}
 */
export const initialServed = (served) => ({
  ...initial(SERVED, SERVED), calibration: SERVED, context: served.context,
  drafters: served.drafters.length ? served.drafters.map(drafterState)
    : [{ ...BLANK, kind: "ideal", name: "Ideal" }],
});

/**
 * Return the state of a preset.
 *
 * @param {Preset["scenario"]} scenario
 * @returns {State}
 */
export function presetState({ model, hardware, calibration, drafters, ...numbers }) {
  const { tensor_parallel = null, batch, context, max_draft } = numbers;
  const fit = calibration ? JSON.stringify(calibration, null, 1) : "";
  return {
    ...initial(model, hardware), calibration: fit && PASTE, calibration_json: fit, tensor_parallel,
    batch: batch ?? NUMBERS.batch, context: context ?? NUMBERS.context,
    max_draft: max_draft ?? NUMBERS.max_draft, drafters: drafters.map(drafterState),
  };
}

/** @param {ServedScenario["drafters"][number] | StatedDrafter} drafter @returns {DrafterState} */
function drafterState(drafter) {
  const { name = "", kind, cost, block, seconds, acceptance } = drafter;
  const { alpha, al, draft_length: measured } = acceptance ?? {};
  const config = "config" in drafter ? drafter.config ?? null : null;
  const own = cost === undefined && KINDS[kind].cost?.includes("own");
  return {
    ...BLANK, name, kind, form: isKnown(al) ? "al" : "alpha",
    alpha: alpha ?? BLANK.alpha, al: al ?? BLANK.al, measured: measured ?? BLANK.measured,
    costed: config ? "config" : own ? "own" : "share",
    cost: isKnown(cost) ? rounded(100 * cost) : BLANK.cost,
    config: config ? JSON.stringify(config) : "", block: block ?? BLANK.block,
    seconds: isKnown(seconds) ? rounded(1e6 * seconds) : BLANK.seconds,
  };
}

/** @param {number | null | undefined} value @returns {value is number} */
const isKnown = (value) => value !== null && value !== undefined;

/** @param {number} value */
const rounded = (value) => Number(value.toPrecision(3));

/**
 * Return one more drafter, with a name that the others do not have.
 *
 * @param {DrafterState[]} drafters
 * @returns {DrafterState}
 */
export function another(drafters) {
  const kind = ["dflash", "mtp", "ideal", "ngram"]
    .find((name) => drafters.every((drafter) => drafter.kind !== name)) ?? "mtp";
  const base = KINDS[kind].label.split(/[ :(]/)[0];
  const names = drafters.map(({ name }) => name);
  let name = base;
  for (let count = 2; names.includes(name); count += 1) name = `${base} ${count}`;
  return { ...BLANK, kind, name };
}

// -- the link -------------------------------------------------------------------------------------

/** @type {PlainName[]} */
const PLAIN_NAMES = ["model", "hardware", "precision", "calibration", "checkpoint"];
const NUMBER_NAMES = /** @type {NumberName[]} */ (Object.keys(NUMBERS));
/** @type {(DrafterText | DrafterNumber)[]} */
const DRAFTER_NAMES = [
  "kind", "name", "form", "alpha", "al", "measured", "rates", "costed", "cost", "block", "seconds",
];

/** Return a state as parameters of a link. @param {State} state */
export async function toParams(state) {
  const params = new URLSearchParams();
  for (const name of [...PLAIN_NAMES, ...NUMBER_NAMES]) {
    const value = state[name];
    if (value !== "" && value !== null) params.set(name, String(value));
  }
  if (state.model === PASTE && state.config) params.set("config", await pack(state.config));
  if (state.calibration === PASTE && state.calibration_json) {
    params.set("calibration_json", await pack(state.calibration_json));
  }
  for (const drafter of state.drafters) params.append("drafter", await drafterParam(drafter));
  return params;
}

/** @param {DrafterState} drafter */
async function drafterParam(drafter) {
  const parts = [];
  for (const name of DRAFTER_NAMES) {
    const value = drafter[name];
    if (!isRelevant(drafter, name) || value === null || value === "") continue;
    parts.push(`${name}:${encodeURIComponent(value).replaceAll("~", "%7E")}`);
  }
  if (costOf(drafter) === "config" && drafter.config) {
    parts.push(`config:${await pack(drafter.config)}`);
  }
  return parts.join("~");
}

/**
 * Return the state that toParams() wrote. What is missing has its value from `start`.
 *
 * @param {URLSearchParams} params
 * @param {State} start
 */
export async function fromParams(params, start) {
  const state = { ...start };
  for (const name of PLAIN_NAMES) {
    const value = params.get(name);
    if (value !== null) state[name] = value;
    else if (params.size && name !== "model" && name !== "hardware") state[name] = "";
  }
  for (const name of NUMBER_NAMES) {
    const value = params.get(name);
    if (value !== null) state[name] = numberIn(value);
  }
  for (const name of /** @type {PackedName[]} */ (["config", "calibration_json"])) {
    const value = params.get(name);
    if (value !== null) state[name] = await unpack(value);
  }
  if (params.has("drafter")) {
    const texts = params.getAll("drafter").slice(0, MOST_DRAFTERS);
    state.drafters = await Promise.all(texts.map(readDrafter));
  }
  return state;
}

/** @param {string} text */
async function readDrafter(text) {
  /** @type {{ [name: string]: string }} */
  const values = {};
  for (const part of text.split("~")) {
    const [name, value = ""] = part.split(/:(.*)/s);
    values[name] = name === "config" ? await unpack(value) : decodeURIComponent(value);
  }
  const drafter = { ...BLANK, config: values.config ?? BLANK.config };
  for (const name of DRAFTER_NAMES) {
    const value = values[name];
    if (value === undefined) continue;
    if (isNumberName(name)) drafter[name] = numberIn(value);
    else drafter[name] = value;
  }
  if (!(drafter.kind in KINDS)) drafter.kind = "mtp";
  if (!(drafter.form in FORMS)) drafter.form = "alpha";
  if (!(drafter.costed in COSTS)) drafter.costed = "share";
  return { ...drafter, name: drafter.name || KINDS[drafter.kind].label };
}

/** @param {DrafterText | DrafterNumber} name @returns {name is DrafterNumber} */
const isNumberName = (name) => typeof BLANK[name] === "number";

/** @param {string} text */
const numberIn = (text) => (Number.isFinite(Number(text)) ? Number(text) : null);

/** Return how the cost is known: a name in COSTS, or null for a kind without a cost. */
export function costOf(/** @type {DrafterState} */ { kind, costed }) {
  const { cost } = KINDS[kind];
  if (!cost) return null;
  return cost.includes(costed) ? costed : cost[0];
}

/** Return whether the block is stated: a config knows its own. */
export const hasBlock = (/** @type {DrafterState} */ drafter) => (
  Boolean(KINDS[drafter.kind].block) && costOf(drafter) !== "config");

/** @param {DrafterState} drafter @param {DrafterText | DrafterNumber} name */
function isRelevant(drafter, name) {
  const { ideal, seconds } = KINDS[drafter.kind];
  switch (name) {
    case "kind": case "name": return true;
    case "costed": return costOf(drafter) !== null;
    case "cost": return costOf(drafter) === "share";
    case "block": return hasBlock(drafter);
    case "seconds": return Boolean(seconds);
    case "form": return !ideal;
    case "alpha": return !ideal && drafter.form === "alpha";
    case "al": case "measured": return !ideal && drafter.form === "al";
    case "rates": return !ideal && drafter.form.endsWith("conditional");
    default: return false;
  }
}

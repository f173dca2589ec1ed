// What somebody has set in the calculator: as an object, as a link, and as a scenario to ask about.

import { pack, unpack } from "../lib/pack.js";

export const KINDS = {
  dflash: { label: "DFlash block", cost: ["share", "config"], block: true },
  mtp: { label: "MTP head", cost: ["share", "own"] },
  eagle3: { label: "EAGLE-3", cost: ["share", "config"] },
  draft_model: { label: "Small model", cost: ["share", "config"] },
  ngram: { label: "n-gram", seconds: true },
  suffix: { label: "Suffix", seconds: true },
  ideal: { label: "Ideal (free)", ideal: true },
};
export const FORMS = {
  alpha: "α: every token alike",
  al: "AL incl. bonus",
  conditional: "by position, of those reached",
  unconditional: "by position, of all drafts",
};
export const COSTS = {
  share: "stated: % of an AR step",
  config: "computed: from its config",
  own: "computed: the model's own layer",
};
export const MOST_DRAFTERS = 3;
export const PASTE = "paste"; // in place of a model's or a calibration's name

// the two drafters that the almanac's calculator starts with, as a place to start from
const FIRST = [
  { kind: "dflash", name: "DFlash", form: "alpha", alpha: 0.89, cost: 10, block: 15 },
  { kind: "mtp", name: "MTP", form: "alpha", alpha: 0.75, cost: 10 },
];
const BLANK = { form: "alpha", alpha: 0.8, al: 3.5, measured: 7, rates: "", costed: "share", cost: 10, config: "", block: 15, seconds: 20 };
const NUMBERS = { tensor_parallel: 1, batch: 1, context: 4096, max_draft: 16 };

export const drafter = (values) => ({ ...BLANK, ...values });

export function initial(model, hardware) {
  return {
    model, config: "", hardware, precision: "", calibration: "", calibration_json: "", checkpoint: "", ...NUMBERS,
    drafters: FIRST.map(drafter),
  };
}

/** A drafter that is not there yet, with a name of its own. */
export function another(drafters) {
  const kind = ["dflash", "mtp", "ideal", "ngram"].find((one) => !drafters.some((each) => each.kind === one)) ?? "mtp";
  const base = KINDS[kind].label.split(/[ :(]/)[0];
  const names = drafters.map((each) => each.name);
  let name = kind === "dflash" ? "DFlash" : base;
  for (let count = 2; names.includes(name); count += 1) name = `${base} ${count}`;
  return drafter({ kind, name });
}

// -- the link --------------------------------------------------------------------------------------

const PLAIN = ["model", "hardware", "precision", "calibration", "checkpoint", ...Object.keys(NUMBERS)];
const OF_DRAFTER = ["kind", "name", "form", "alpha", "al", "measured", "rates", "costed", "cost", "block", "seconds"];

export async function toParams(state) {
  const params = new URLSearchParams();
  for (const name of PLAIN) if (state[name] !== "" && state[name] !== null) params.set(name, state[name]);
  if (state.model === PASTE && state.config) params.set("config", await pack(state.config));
  if (state.calibration === PASTE && state.calibration_json) {
    params.set("calibration_json", await pack(state.calibration_json));
  }
  for (const each of state.drafters) {
    const shown = OF_DRAFTER.filter((name) => relevant(each, name) && each[name] !== null && each[name] !== "");
    const parts = shown.map((name) => `${name}:${encodeURIComponent(each[name])}`);
    if (costed(each) === "config" && each.config) parts.push(`config:${await pack(each.config)}`);
    params.append("drafter", parts.join("~"));
  }
  return params;
}

/** The state that toParams() wrote; what is missing has its value from `start`. */
export async function fromParams(params, start) {
  const state = { ...start };
  for (const name of PLAIN) {
    const value = params.get(name);
    if (value !== null) state[name] = name in NUMBERS ? Number(value) : value;
    else if (params.size && !(name in NUMBERS) && !["model", "hardware"].includes(name)) state[name] = "";
  }
  for (const name of ["config", "calibration_json"]) {
    if (params.has(name)) state[name] = await unpack(params.get(name));
  }
  if (params.has("drafter")) state.drafters = await Promise.all(
    params.getAll("drafter").slice(0, MOST_DRAFTERS).map(readDrafter));
  return state;
}

async function readDrafter(text) {
  const values = {};
  for (const part of text.split("~")) {
    const [name, value = ""] = part.split(/:(.*)/s);
    if (name === "config") values.config = await unpack(value);
    if (!OF_DRAFTER.includes(name)) continue;
    const read = decodeURIComponent(value);
    values[name] = typeof BLANK[name] === "number" ? Number(read) : read;
  }
  if (!(values.kind in KINDS)) values.kind = "mtp";
  if (!(values.form in FORMS)) values.form = "alpha";
  if (!(values.costed in COSTS)) values.costed = "share";
  return drafter({ name: KINDS[values.kind].label, ...values });
}

/** How the cost is known: one of COSTS that the kind has, or null where it has none. */
export function costed(each) {
  const { cost } = KINDS[each.kind];
  if (!cost) return null;
  return cost.includes(each.costed) ? each.costed : cost[0];
}

/** Whether the block is stated: a config knows its own. */
export const hasBlock = (each) => Boolean(KINDS[each.kind].block) && costed(each) !== "config";

function relevant(each, name) {
  const kind = KINDS[each.kind];
  const by = { costed: costed(each) !== null, cost: costed(each) === "share", block: hasBlock(each), seconds: kind.seconds, form: !kind.ideal,
    alpha: !kind.ideal && each.form === "alpha", al: !kind.ideal && each.form === "al",
    measured: !kind.ideal && each.form === "al",
    rates: !kind.ideal && each.form.endsWith("conditional") };
  return by[name] ?? true;
}

// -- the scenario ----------------------------------------------------------------------------------

/** What POST ui/predict takes. Raises an Error with `field` where text is no JSON. */
export function scenario(state) {
  const stated = { hardware: state.hardware, drafters: state.drafters.map(statedDrafter) };
  for (const name of Object.keys(NUMBERS)) stated[name] = state[name];
  stated.model = state.model === PASTE ? { config: json("model.config", state.config), name: "pasted config" } : state.model;
  if (state.checkpoint) stated.checkpoint = state.checkpoint;
  if (state.precision) stated.precision = state.precision;
  if (state.calibration === PASTE) stated.calibration = json("calibration", state.calibration_json);
  else if (state.calibration) stated.calibration = state.calibration;
  return stated;
}

function statedDrafter(each, index) {
  const kind = KINDS[each.kind];
  const stated = { kind: each.kind, name: each.name };
  if (kind.ideal) return stated;
  stated.acceptance = {
    alpha: () => ({ alpha: each.alpha }),
    al: () => ({ al: each.al, draft_length: each.measured }),
    conditional: () => ({ conditional: rates(each, index) }),
    unconditional: () => ({ unconditional: rates(each, index) }),
  }[each.form]();
  if (costed(each) === "share") stated.cost = each.cost === null ? null : each.cost / 100;
  if (costed(each) === "config") stated.config = drafterConfig(each.config, index);
  if (hasBlock(each)) stated.block = each.block;
  if (kind.seconds) stated.seconds = each.seconds === null ? null : each.seconds * 1e-6;
  return stated;
}

/** A config.json, or a listed model's name. */
function drafterConfig(text, index) {
  const trimmed = text.trim();
  return trimmed && !trimmed.startsWith("{") ? trimmed : json(`drafters[${index}].config`, text);
}

function rates(each, index) {
  const found = each.rates.split(/[\s,;]+/).filter(Boolean).map(Number);
  if (found.length && found.every(Number.isFinite)) return found;
  throw at(`drafters[${index}].acceptance`, `got ${JSON.stringify(each.rates)}; expected rates from 0 to 1, one for each position: 0.77 0.73 0.74`);
}

function json(field, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw at(field, text.trim() ? `no JSON: ${error.message}` : "nothing here yet; paste the file's text");
  }
}

const at = (field, message) => Object.assign(new Error(`${field}: ${message}`), { field });

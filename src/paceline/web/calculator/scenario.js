// What somebody has set in the calculator, as the scenario that POST ui/predict takes.

import { fieldError, messageOf } from "../lib/errors.js";
import { KINDS, PASTE, SERVED, costOf, hasBlock } from "./state.js";

/** @import { ModelFacts, ServedScenario, StatedAcceptance } from "../types/answers" */
/** @import { StatedDrafter, StatedScenario } from "../types/answers" */
/** @import { DrafterState, State } from "./state.js" */

/** @typedef {{ models: ModelFacts[], served: ServedScenario | null }} Known */

// of the view by context
const CONTEXTS = [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];

/**
 * Return what POST ui/predict takes. Throws an error with `field` where text is no JSON, or where a
 * link names what another server runs.
 *
 * @param {State} state
 * @param {Known} known
 * @returns {StatedScenario}
 */
export function scenario(state, { models, served }) {
  const { model, hardware, batch, context, tensor_parallel, max_draft } = state;
  for (const field of /** @type {("model" | "hardware" | "calibration")[]} */ (
    ["model", "hardware", "calibration"])) {
    if (state[field] === SERVED && served === null) {
      throw fieldError(field, "This link is of a page that serves a model. Choose from the list.");
    }
  }
  return {
    hardware: hardware === SERVED && served ? served.hardware : hardware,
    drafters: state.drafters.map(statedDrafter),
    batch, context, max_draft,
    tensor_parallel: tensor_parallel ?? undefined,
    model: statedModel(state, served),
    contexts: contextsOf(state, models, served),
    checkpoint: state.checkpoint || undefined,
    precision: state.precision || (model === SERVED && served ? served.precision : undefined),
    calibration: statedCalibration(state, served),
  };
}

/**
 * Return the contexts of the view by context: as far as the model reaches.
 *
 * @param {State} state
 * @param {ModelFacts[]} models
 * @param {ServedScenario | null} served
 */
function contextsOf({ model, config, context }, models, served) {
  const listed = models.find(({ name }) => name === model);
  const own = model === SERVED ? served?.model.config : model === PASTE ? readable(config) : null;
  const reach = listed ? listed.max_context : Number(own?.max_position_embeddings ?? 0);
  const shown = CONTEXTS.filter((length) => !reach || length <= reach);
  return context === null ? shown : [...new Set([...shown, context])].sort((a, b) => a - b);
}

/** @param {string} text @returns {{ [name: string]: unknown } | null} */
function readable(text) {
  try {
    const config = JSON.parse(text);
    return config?.text_config ?? config;
  } catch {
    return null; // the error is shown where the text is asked for
  }
}

/**
 * @param {State} state
 * @param {ServedScenario | null} served
 * @returns {StatedScenario["model"]}
 */
function statedModel({ model, config }, served) {
  if (model === SERVED && served) return served.model;
  if (model !== PASTE) return model;
  return { config: parsed("model.config", config), name: "pasted config" };
}

/** @param {State} state @param {ServedScenario | null} served */
function statedCalibration({ calibration, calibration_json: text }, served) {
  if (calibration === SERVED && served) return served.calibration;
  return calibration === PASTE ? parsed("calibration", text) : calibration || undefined;
}

/** @param {DrafterState} drafter @param {number} index @returns {StatedDrafter} */
function statedDrafter(drafter, index) {
  const { kind, name, cost, block, seconds } = drafter;
  if (KINDS[kind].ideal) return { kind, name };
  const way = costOf(drafter);
  return {
    kind,
    name,
    acceptance: statedAcceptance(drafter, index),
    cost: way === "share" ? scaled(cost, 0.01) : undefined,
    config: way === "config" ? drafterConfig(drafter.config, index) : undefined,
    block: hasBlock(drafter) ? block : undefined,
    seconds: KINDS[kind].seconds ? scaled(seconds, 1e-6) : undefined,
  };
}

/** @param {DrafterState} drafter @param {number} index @returns {StatedAcceptance} */
function statedAcceptance(drafter, index) {
  switch (drafter.form) {
    case "al": return { al: drafter.al, draft_length: drafter.measured };
    case "conditional": return { conditional: rates(drafter, index) };
    case "unconditional": return { unconditional: rates(drafter, index) };
    default: return { alpha: drafter.alpha };
  }
}

/** @param {number | null} value @param {number} factor */
const scaled = (value, factor) => (value === null ? null : value * factor);

/** Return a parsed config.json, or the name of a listed model. */
function drafterConfig(/** @type {string} */ text, /** @type {number} */ index) {
  const trimmed = text.trim();
  const isName = trimmed !== "" && !trimmed.startsWith("{");
  return isName ? trimmed : parsed(`drafters[${index}].config`, text);
}

/** @param {DrafterState} drafter @param {number} index */
function rates(drafter, index) {
  const values = drafter.rates.split(/[\s,;]+/).filter(Boolean).map(Number);
  if (values.length && values.every(Number.isFinite)) return values;
  const field = `drafters[${index}].acceptance`;
  throw fieldError(field, `${field}: got ${JSON.stringify(drafter.rates)}; expected rates from 0 `
    + "to 1, one for each position: 0.77 0.73 0.74");
}

/** Return pasted JSON, which the server checks. @param {string} field @param {string} text */
function parsed(field, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    const reason = text.trim() ? `no JSON: ${messageOf(error)}`
      : "nothing here yet; paste the file's text";
    throw fieldError(field, `${field}: ${reason}`);
  }
}

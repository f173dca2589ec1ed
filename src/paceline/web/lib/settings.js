// The playground's settings: mode, drafter, sampling, system prompt, grammar.

import { h } from "./dom.js";
import { asError, clearErrors, fieldError, labelled, messageOf, showAtField } from "./errors.js";

/** @import { ChatRequest, JsonSchemaFormat, Message, Speculative } from "../types/api" */
/** @import { ServingFacts } from "../types/answers" */
/** @import { Options } from "../types/page" */

/** @typedef {"off" | "on"} Side  an answer without speculation, or with it */

/**
 * What the settings ask for. `mayDiffer` is the rule under which the text of the two sides may
 * differ, or null.
 *
 * @typedef {{
 *   sides: Side[],
 *   model: string,
 *   drafter: string | null,
 *   mayDiffer: string | null,
 *   body: (messages: Message[], side: Side, salt: string) => ChatRequest,
 * }} Plan
 */

const NARROW = 900; // pixels below which the settings start closed

export class Settings {
  element;
  #facts;
  #mode;
  #model;
  #drafter;
  #policy;
  #longest = h("input", {
    type: "number", min: 0, inputMode: "numeric", placeholder: "as long as it can",
  });
  #temperature = h("input", {
    type: "number", min: 0, max: 100, step: 0.1, value: "0.7", inputMode: "decimal",
  });
  #tokens = h("input", { type: "number", min: 1, step: 1, value: "192", inputMode: "numeric" });
  #seed = h("input", {
    type: "number", step: 1, placeholder: "drawn, and shown", inputMode: "numeric",
  });
  #system;
  #schema = h("textarea", {
    rows: 3, class: "code", spellcheck: false, placeholder: '{"type": "object", …}',
  });

  /**
   * @param {ServingFacts} facts
   * @param {() => void} changed called when the conversation must start over
   */
  constructor(facts, changed) {
    this.#facts = facts;
    const drafts = facts.drafters.length > 0;
    this.#mode = radioButtons("mode", [
      ["both", "Off beside on", drafts],
      ["on", drafts ? "Chat, speculation on" : "Chat", true],
      ["off", "Chat, speculation off", drafts],
    ], drafts ? "both" : "on");
    this.#model = select(facts.models.map((name) => [name, name]));
    this.#drafter = select(facts.drafters.map(({ name }) => [name, name]), facts.default_drafter);
    this.#policy = select([
      ["", `the server's: ${facts.draft_policy}`],
      ["fixed", "always the longest draft"],
    ]);
    this.#system = h("textarea", { rows: 2, on: { change: changed } });
    this.element = this.#layout(drafts);
  }

  get system() {
    return this.#system.value.trim();
  }

  set system(text) {
    this.#system.value = text;
  }

  /** Return the plan, or null where a field cannot be read, which then shows why. */
  read() {
    clearErrors(this.element);
    try {
      return this.#plan();
    } catch (error) {
      if (showAtField(this.element, asError(error))) return null;
      throw error;
    }
  }

  // -- inside -------------------------------------------------------------------------------------

  /** @param {boolean} drafts */
  #layout(drafts) {
    const plain = h("p", { class: "hint" }, "This server has no drafter: it decodes plainly.");
    return h("details", { class: "card settings", open: innerWidth >= NARROW },
      h("summary", {}, "Settings"),
      h("fieldset", {}, h("legend", {}, "What to see"), this.#mode.element, drafts ? null : plain),
      this.#facts.models.length > 1 ? labelled("model", "Model", this.#model) : null,
      drafts ? [
        labelled("speculative.drafter", "Drafter", this.#drafter),
        labelled("speculative.policy", "Draft lengths", this.#policy),
        labelled("speculative.max_draft_len", "Longest draft", this.#longest),
      ] : null,
      h("div", { class: "pair" },
        labelled("temperature", "Temperature", this.#temperature),
        labelled("max_completion_tokens", "Max tokens", this.#tokens)),
      labelled("seed", "Seed", this.#seed,
        "The same seed gives the same text, with speculation off and on."),
      labelled("system", "System prompt", this.#system, "A change starts a new conversation."),
      labelled("response_format", "JSON schema", this.#schema,
        "Binds the answer to a grammar. Tokens that it leaves no choice about are forced."));
  }

  /** @returns {Plan} */
  #plan() {
    const drafter = this.#drafter.value || null;
    const temperature = numberOf("temperature", this.#temperature, "a number, at least 0");
    const sampling = {
      model: this.#model.value,
      temperature,
      max_completion_tokens: numberOf("max_completion_tokens", this.#tokens,
        "a whole number, at least 1"),
      seed: isEmpty(this.#seed) ? drawnSeed()
        : numberOf("seed", this.#seed, "a whole number, or nothing"),
      response_format: this.#format(),
    };
    const speculative = this.#speculative(drafter);
    const { system } = this;
    const { rule } = this.#facts;
    return {
      sides: SIDES[this.#mode.value()] ?? ["on"],
      model: sampling.model,
      drafter,
      mayDiffer: rule !== "match" && temperature > 0 ? rule : null,
      body: (messages, side, salt) => ({
        ...sampling,
        messages: system ? [{ role: "system", content: system }, ...messages] : messages,
        cache_salt: salt,
        speculative: side === "off" || drafter === null ? "off" : speculative,
        explain: true,
        stream: true,
        stream_options: { include_usage: true, include_rounds: true },
      }),
    };
  }

  /** @param {string | null} drafter @returns {Speculative} */
  #speculative(drafter) {
    return {
      drafter,
      max_draft_len: isEmpty(this.#longest) ? undefined
        : numberOf("speculative.max_draft_len", this.#longest, "a whole number, or nothing"),
      policy: this.#policy.value || undefined,
    };
  }

  /** @returns {JsonSchemaFormat | undefined} */
  #format() {
    const text = this.#schema.value.trim();
    if (!text) return undefined;
    try {
      return { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(text) } };
    } catch (error) {
      throw fieldError("response_format", `no JSON: ${messageOf(error)}`);
    }
  }
}

/** @type {{ [mode: string]: Side[] }} */
const SIDES = { both: ["off", "on"], on: ["on"], off: ["off"] };

/** One seed for both answers. */
const drawnSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

/** Return whether nothing is written in an input for a number. @param {HTMLInputElement} input */
const isEmpty = (input) => input.value === "" && !input.validity.badInput;

/** @param {string} field @param {HTMLInputElement} input @param {string} expected */
function numberOf(field, input, expected) {
  if (Number.isFinite(input.valueAsNumber)) return input.valueAsNumber;
  throw fieldError(field, `must be ${expected}`);
}

/** @param {Options} options @param {string | null} chosen */
function select(options, chosen = null) {
  return h("select", {}, options.map(([value, text]) => (
    h("option", { value, selected: value === chosen }, text))));
}

/**
 * @param {string} name
 * @param {[value: string, text: string, enabled: boolean][]} options
 * @param {string} chosen
 */
function radioButtons(name, options, chosen) {
  const inputs = options.map(([value, , enabled]) => h("input", {
    type: "radio", name, value, checked: value === chosen, disabled: !enabled,
  }));
  return {
    element: h("div", { class: "radios" },
      options.map(([, text], index) => h("label", {}, inputs[index], ` ${text}`))),
    value: () => inputs.find((input) => input.checked)?.value ?? chosen,
  };
}

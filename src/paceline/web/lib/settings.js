// What the playground asks with: mode, drafter, sampling, system prompt, grammar.

import { h } from "./dom.js";
import { clearErrors, labelled, showAtField } from "./errors.js";

const NARROW = 900; // pixels below which the settings start closed

export class Settings {
  /** `facts` is what GET ui/serving said; `changed` is called when the conversation must start over. */
  constructor(facts, changed) {
    this.facts = facts;
    const drafts = facts.drafters.length > 0;
    this.mode = choice("mode", [
      ["both", "Off beside on", drafts],
      ["on", drafts ? "Chat, speculation on" : "Chat", true],
      ["off", "Chat, speculation off", drafts],
    ], drafts ? "both" : "on");
    this.model = select(facts.models.map((name) => [name, name]));
    this.drafter = select(facts.drafters.map(({ name }) => [name, name]), facts.default_drafter);
    this.policy = select([["", `the server's: ${facts.draft_policy}`], ["fixed", "always as long as can be"]]);
    this.longest = h("input", { type: "number", min: 0, inputMode: "numeric", placeholder: "as long as it can" });
    this.temperature = h("input", { type: "number", min: 0, max: 100, step: 0.1, value: "0.7", inputMode: "decimal" });
    this.tokens = h("input", { type: "number", min: 1, step: 1, value: "192", inputMode: "numeric" });
    this.seed = h("input", { type: "number", step: 1, placeholder: "drawn, and shown", inputMode: "numeric" });
    this.system = h("textarea", { rows: 2, on: { change: changed } });
    this.schema = h("textarea", { rows: 3, class: "code", spellcheck: false, placeholder: '{"type": "object", …}' });
    this.element = this.#build(drafts);
  }

  /** The wish, or null where a field cannot be read, which then says so. */
  read() {
    clearErrors(this.element);
    try {
      return this.#wish();
    } catch (error) {
      if (!error.field) throw error;
      showAtField(this.element, error);
      return null;
    }
  }

  // -- inside --------------------------------------------------------------------------------------

  #build(drafts) {
    const { facts } = this;
    const row = (...fields) => h("div", { class: "pair" }, fields);
    return h("details", { class: "card settings", open: innerWidth >= NARROW },
      h("summary", {}, "Settings"),
      h("fieldset", {}, h("legend", {}, "What to see"), this.mode.element,
        drafts ? null : h("p", { class: "hint" }, "This server has no drafter: it decodes plainly.")),
      facts.models.length > 1 ? labelled("model", "Model", this.model) : null,
      drafts ? labelled("speculative.drafter", "Drafter", this.drafter) : null,
      drafts ? labelled("speculative.policy", "Draft lengths", this.policy) : null,
      drafts ? labelled("speculative.max_draft_len", "Longest draft", this.longest) : null,
      row(labelled("temperature", "Temperature", this.temperature),
        labelled("max_completion_tokens", "Max tokens", this.tokens)),
      labelled("seed", "Seed", this.seed, "The same seed gives the same text, with speculation off and on."),
      labelled("system", "System prompt", this.system, "A change starts a new conversation."),
      labelled("response_format", "JSON schema", this.schema,
        "Binds the answer to a grammar: what it leaves no choice about is forced."));
  }

  #wish() {
    const mode = this.mode.value;
    const drafter = this.drafter.value || null;
    const sampling = {
      model: this.model.value,
      temperature: number("temperature", this.temperature, "a number, at least 0"),
      max_completion_tokens: number("max_completion_tokens", this.tokens, "a whole number, at least 1"),
      // one seed for both answers
      seed: this.seed.value === "" && !this.seed.validity.badInput ? crypto.getRandomValues(new Uint32Array(1))[0]
        : number("seed", this.seed, "a whole number, or nothing"),
    };
    const format = this.#format();
    if (format !== null) sampling.response_format = format;
    const speculative = { drafter };
    if (this.longest.value !== "" || this.longest.validity.badInput) {
      speculative.max_draft_len = number("speculative.max_draft_len", this.longest, "a whole number, or nothing");
    }
    if (this.policy.value) speculative.policy = this.policy.value;
    const system = this.system.value.trim();
    const { rule } = this.facts;
    return {
      mode,
      drafter,
      mayDiffer: rule !== "match" && sampling.temperature > 0 ? rule : null,
      body: (messages, which, salt) => ({
        ...sampling,
        messages: system ? [{ role: "system", content: system }, ...messages] : messages,
        cache_salt: salt,
        speculative: which === "off" || drafter === null ? "off" : speculative,
        explain: true,
        stream: true,
        stream_options: { include_usage: true, include_rounds: true },
      }),
    };
  }

  #format() {
    const text = this.schema.value.trim();
    if (!text) return null;
    try {
      return { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(text) } };
    } catch (error) {
      throw new FieldError("response_format", `no JSON: ${error.message}`);
    }
  }
}

class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

function number(field, input, expected) {
  if (input.value === "" || !Number.isFinite(input.valueAsNumber)) {
    throw new FieldError(field, `must be ${expected}`);
  }
  return input.valueAsNumber;
}

function select(options, chosen = null) {
  return h("select", {}, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

/** Radio buttons. */
function choice(name, options, chosen) {
  const inputs = options.map(([value, , enabled]) => h("input", {
    type: "radio", name, value, checked: value === chosen, disabled: !enabled,
  }));
  return {
    element: h("div", { class: "choice" }, options.map(([, text], index) => h("label", {}, inputs[index], ` ${text}`))),
    get value() { return inputs.find((input) => input.checked).value; },
  };
}

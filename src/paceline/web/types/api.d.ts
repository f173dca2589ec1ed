// Written by `python -m tools.page_types` from the server's pydantic models. Do not edit.

export interface AssistantMessage {
  role: "assistant";
  content: string | null;
  refusal: null;
  tool_calls?: ToolCallOutput[] | null;
}

export interface CalledFunctionInput {
  name: string;
  /** A JSON object, as text. */
  arguments: string;
}

export interface CalledFunctionOutput {
  name: string;
  arguments: string;
}

export interface ChatChoice {
  index: number;
  finish_reason: "stop" | "length" | "tool_calls";
  stop_reason: string | number | null;
  token_ids?: number[] | null;
  message: AssistantMessage;
  logprobs: ChatLogprobs | null;
}

export interface ChatCompletion {
  id: string;
  created: number;
  model: string;
  system_fingerprint: string;
  usage: Usage;
  metrics: Metrics;
  object: "chat.completion";
  choices: ChatChoice[];
  prompt_token_ids?: number[] | null;
}

export interface ChatLogprob {
  token: string;
  logprob: number;
  bytes: number[];
  top_logprobs: TopLogprob[];
}

export interface ChatLogprobs {
  content: ChatLogprob[];
  refusal: null;
}

export interface ChatRequest {
  model: string;
  /** Default 1; 0 is argmax. */
  temperature?: number | null;
  top_p?: number | null;
  /** 0 or -1 switches it off. */
  top_k?: number | null;
  min_p?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  repetition_penalty?: number | null;
  /** Token id to bias, ±100. */
  logit_bias?: { [key: string]: number } | null;
  max_tokens?: number | null;
  min_tokens?: number | null;
  /** Up to 16 strings. */
  stop?: string | string[] | null;
  stop_token_ids?: number[] | null;
  ignore_eos?: boolean | null;
  /** Default true. */
  skip_special_tokens?: boolean | null;
  /** What the output must conform to: a JSON schema, a regex, a grammar. */
  structured_outputs?: StructuredOutputs | null;
  n?: number | null;
  seed?: number | null;
  /** Drafter and longest draft, or `off` to decode without drafts. */
  speculative?: "off" | Speculative | null;
  /** Keep what each round did for GET /v1/requests/{id}/rounds. */
  explain?: boolean | null;
  /** Scope of cached prefixes and shared answers, beside key and user. */
  cache_salt?: string | null;
  return_token_ids?: boolean | null;
  stream?: boolean | null;
  stream_options?: StreamOptions | null;
  /** Scope like cache_salt: an end user's own caches. */
  user?: string | null;
  metadata?: { [key: string]: string } | null;
  service_tier?: "auto" | "default" | null;
  store?: false | null;
  /** OpenAI's newer name for user. */
  safety_identifier?: string | null;
  /** Prefixes are cached by content. */
  prompt_cache_key?: string | null;
  messages: Message[];
  max_completion_tokens?: number | null;
  logprobs?: boolean | null;
  top_logprobs?: number | null;
  add_generation_prompt?: boolean | null;
  /** Variables for the model's chat template, which must read them. */
  chat_template_kwargs?: { [key: string]: unknown } | null;
  response_format?: TextFormat | JsonObjectFormat | JsonSchemaFormat | null;
  modalities?: "text"[] | null;
  tools?: Tool[] | null;
  /** Default auto, where there are tools. */
  tool_choice?: "none" | "auto" | "required" | NamedTool | null;
  /** Default true. */
  parallel_tool_calls?: boolean | null;
  /** Not supported. */
  functions?: unknown[] | null;
  function_call?: "none" | null;
  audio?: null;
  prediction?: null;
  reasoning_effort?: null;
  verbosity?: null;
  web_search_options?: null;
}

export interface ChoiceRounds {
  index: number;
  finish_reason: string | null;
  rounds: Round[];
  rounds_left_out: number;
}

export interface CommittedToken {
  id: number;
  text: string;
  kind: "accepted" | "bonus" | "forced";
}

export interface ErrorDetail {
  message: string;
  type: string;
  param: string | null;
  code: string | null;
}

export interface ErrorResponse {
  error: ErrorDetail;
}

export interface Function {
  name: string;
  description?: string | null;
  /** JSON schema; null: no arguments. */
  parameters?: { [key: string]: unknown } | null;
  /** The schema is always adhered to. */
  strict?: boolean | null;
}

export interface FunctionName {
  name: string;
}

export interface JsonObjectFormat {
  type: "json_object";
}

export interface JsonSchemaFormat {
  type: "json_schema";
  json_schema: NamedSchema;
}

/**
 * What a budget was used for: the sum, over all tokens, of the total variation distance between the
 * law a token came from and the target's, at most epsilon each; and the draft tokens that stand
 * where the target would have said another one.
 */
export interface Lossy {
  epsilon: number;
  total_variation: number;
  replaced_tokens: number;
}

export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content?: string | TextPart[] | null;
  name?: string | null;
  tool_call_id?: string | null;
  refusal?: null;
  tool_calls?: ToolCallInput[] | null;
  function_call?: null;
  audio?: null;
  /** Not supported. */
  annotations?: unknown[] | null;
}

/**
 * Times in seconds, from arrival; only the answer of a single choice has them. `seed` is a list,
 * one for each prompt, where those differ. `forced_tokens` are those that a grammar left no choice
 * about; they count in the usage and nowhere else.
 */
export interface Metrics {
  seed: number | number[];
  queue_time?: number | null;
  ttft?: number | null;
  tpot?: number | null;
  e2e_latency?: number | null;
  drafter?: string | null;
  forced_tokens?: number | null;
  lossy?: Lossy | null;
  speculative_decoding: SpeculativeDecoding | null;
}

export interface NamedSchema {
  name: string;
  schema: { [key: string]: unknown } | boolean;
  description?: string | null;
  /** A schema is always adhered to. */
  strict?: boolean | null;
}

export interface NamedTool {
  type: "function";
  function: FunctionName;
}

/** The rounds that one part of a drafter drafted. */
export interface PartDecoding {
  num_spec_steps: number;
  num_accepted_draft_tokens: number;
  num_draft_tokens: number;
}

export interface PromptTokensDetails {
  cached_tokens: number;
}

export interface RequestRounds {
  id: string;
  object: "request.rounds";
  created: number;
  model: string;
  choices: ChoiceRounds[];
}

/**
 * `verified_tokens` have a row each; at `forced_places` of them a grammar left no choice.
 * `hidden_tokens` counts drafted tokens that are not listed, because the draft was looked up in
 * other requests' text and they are not part of this answer.
 */
export interface Round {
  request: string;
  time: number;
  cohort: string;
  drafter: string | null;
  version: string | null;
  part: string | null;
  position: number;
  proposed: number;
  verified: number;
  accepted: number;
  forced: number;
  cut_by: string | null;
  confidence: number[] | null;
  rule: string;
  temperature: number;
  grammar: boolean;
  step_requests: number;
  step_rows: number;
  draft_ms: number;
  step_ms: number;
  drafted_tokens: RoundToken[];
  hidden_tokens: number;
  verified_tokens: RoundToken[];
  forced_places: number[];
  committed_tokens: CommittedToken[];
}

export interface RoundToken {
  id: number;
  text: string;
}

export interface Speculative {
  /** Name of a registered drafter. */
  drafter?: string | null;
  max_draft_len?: number | null;
  /** What chooses the draft lengths: throughput, fixed, fixed:k, ema or off. */
  policy?: string | null;
  /** Total variation that each token's law may differ by. */
  lossy?: number | null;
}

/**
 * Rounds with a draft, of all choices together, under vLLM's names; lengths include the bonus token
 * where they say `acceptance_length`, and do not elsewhere. `parts` are those of a drafter that is
 * made of several, by name.
 */
export interface SpeculativeDecoding {
  mean_acceptance_length: number;
  draft_acceptance_rate: number;
  acceptance_histogram: number[];
  num_spec_steps: number;
  num_accepted_draft_tokens: number;
  num_draft_tokens: number;
  num_spec_tokens: number;
  per_step_accepted?: number[] | null;
  per_step_drafted?: number[] | null;
  parts?: { [key: string]: PartDecoding } | null;
}

export interface StreamOptions {
  include_usage?: boolean | null;
  /** With include_usage: every event tells its choice's usage so far. */
  continuous_usage_stats?: boolean | null;
  /** With explain: every event tells the round that it came from. */
  include_rounds?: boolean | null;
  /** Fill every event up to the same size, in a field `obfuscation`. */
  include_obfuscation?: boolean | null;
}

/** One of them. `lark` is llguidance's dialect of Lark. */
export interface StructuredOutputs {
  /** A JSON schema. */
  json?: { [key: string]: unknown } | boolean | null;
  regex?: string | null;
  lark?: string | null;
  choice?: string[] | null;
}

export interface TextFormat {
  type: "text";
}

export interface TextPart {
  type: "text";
  text: string;
}

export interface Tool {
  type: "function";
  function: Function;
}

export interface ToolCallInput {
  id: string;
  type: "function";
  function: CalledFunctionInput;
}

export interface ToolCallOutput {
  id: string;
  type: "function";
  function: CalledFunctionOutput;
}

export interface TopLogprob {
  token: string;
  logprob: number;
  bytes: number[];
}

/**
 * `prompt_tokens_details` is null where the request does not say whom it shares cached prompts
 * with, unless the server runs with --share-answers always.
 */
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: PromptTokensDetails | null;
}

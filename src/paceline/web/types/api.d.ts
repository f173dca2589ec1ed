// Written by `python -m tools.page_types` from the server's pydantic models. Do not edit.

/** Throughput without speculation, over batches. */
export interface ArByBatch {
  batch: number[];
  ceiling: Throughput;
  calibrated: Throughput;
}

/** A step without speculation. */
export interface ArStep {
  step_ms: number;
  tpot_ms: number;
  tokens_per_second_per_request: number;
  tokens_per_second_per_device: number;
  components: { [key: string]: number };
}

export interface AssistantMessage {
  role: "assistant";
  content: string | null;
  refusal: null;
  tool_calls?: CallMade[];
}

export interface BestByBatch {
  max_draft: (number | null)[];
  ceiling: BestNumbers;
  calibrated: BestNumbers;
  batch: number[];
}

export interface BestByContext {
  max_draft: (number | null)[];
  ceiling: BestNumbers;
  calibrated: BestNumbers;
  context: number[];
}

/** The best draft length by place, and its numbers. */
export interface BestNumbers {
  tokens_per_second_per_request: (number | null)[];
  tokens_per_second_per_device: (number | null)[];
  draft_length: (number | null)[];
  acceptance_length: (number | null)[];
  speedup: (number | null)[];
  tpot_ms: (number | null)[];
}

/** A call of a tool by the model. */
export interface CallMade {
  id: string;
  type: "function";
  function: FunctionMade;
}

export interface CalledFunction {
  name: string;
  /** A JSON object, as text. */
  arguments: string;
}

export interface ChatChoice {
  index: number;
  finish_reason: "stop" | "length" | "tool_calls";
  stop_reason: string | number | null;
  token_ids?: number[];
  message: AssistantMessage;
  logprobs: ChatLogprobs | null;
}

/** The answer to a conversation. */
export interface ChatCompletion {
  id: string;
  created: number;
  model: string;
  system_fingerprint: string;
  usage: Usage;
  metrics: Metrics;
  object: "chat.completion";
  choices: ChatChoice[];
  prompt_token_ids?: number[];
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
  /** Temperature of the sampling (default: 1); 0 is argmax. */
  temperature?: number | null;
  /** Sample from the likeliest tokens whose probabilities add up to this. */
  top_p?: number | null;
  /** Sample from this many of the likeliest tokens; 0 or -1: from all. */
  top_k?: number | null;
  /** Leave out tokens that are less likely than this share of the likeliest one. */
  min_p?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  repetition_penalty?: number | null;
  /** Bias of each token id, from -100 to 100. */
  logit_bias?: { [key: string]: number } | null;
  max_tokens?: number | null;
  min_tokens?: number | null;
  /** Texts that end the answer, up to 16. */
  stop?: string | string[] | null;
  stop_token_ids?: number[] | null;
  ignore_eos?: boolean | null;
  /** Leave special tokens out of the text (default: true). */
  skip_special_tokens?: boolean | null;
  /** The JSON schema, regex or grammar that the output must match. */
  structured_outputs?: StructuredOutputs | null;
  /** Number of choices for each prompt. */
  n?: number | null;
  /** Seed of the noise; null draws one. */
  seed?: number | null;
  /** Drafting of this request; `off` decodes without drafts. */
  speculative?: "off" | Speculative | null;
  /** Keep the rounds of this request for GET /v1/requests/{id}/rounds. */
  explain?: boolean | null;
  /** Requests share cached prefixes and answers only with others of the same salt. */
  cache_salt?: string | null;
  return_token_ids?: boolean | null;
  stream?: boolean | null;
  stream_options?: StreamOptions | null;
  /** The end user; works like cache_salt. */
  user?: string | null;
  metadata?: { [key: string]: string } | null;
  service_tier?: "auto" | "default" | null;
  store?: false | null;
  /** Another name of `user`, which OpenAI introduced later. */
  safety_identifier?: string | null;
  /** Accepted without effect: prefixes are cached by content. */
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

export interface CommittedToken {
  id: number;
  text: string;
  kind: TokenKind;
}

/** Draft lengths 0 … `max_draft`; `acceptance_length` is the toy model's speedup. */
export interface Curve {
  draft_length: number[];
  acceptance_length: number[];
  ceiling: DraftNumbers;
  calibrated: DraftNumbers;
}

/** Why a round verified fewer draft tokens than its request had asked for. */
export type CutReason = "prompt" | "off" | "held back" | "failed" | "room" | "context" | "drafter" | "grammar" | "cost" | "rest";

/** The device, and how many of them the deployment has. */
export interface Device {
  name: string;
  devices: number;
  memory: number;
  memory_bandwidth: number;
  source: string;
}

/**
 * Numbers by draft length. `break_even_length` is the AL at which that draft length is as fast as
 * AR.
 */
export interface DraftNumbers {
  speedup: number[];
  step_ms: number[];
  verify_ms: number[];
  draft_ms: number[];
  tpot_ms: number[];
  tokens_per_second_per_request: number[];
  tokens_per_second_per_device: number[];
  break_even_length: number[];
}

/**
 * One drafter's views. `commits` is P(a round commits 1, 2, … tokens) at the calibrated optimum;
 * `flags` are lines to launch "paceline", "vllm" and "sglang" with there, null where the engine has
 * no such drafter.
 */
export interface DrafterAnswer {
  name: string;
  kind: string;
  block: number | null;
  max_draft: number;
  acceptance: number[];
  curve: Curve;
  optimum: Tiers_Optimum_;
  by_batch: BestByBatch;
  by_context: BestByContext | null;
  heat_map: HeatMap;
  commits: number[];
  flags: { [key: string]: string | null };
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

export interface ExplainedChoice {
  index: number;
  finish_reason: string | null;
  rounds: ShownRound[];
  rounds_left_out: number;
}

/** The most requests that fit at the scenario's context. */
export interface Fitting {
  max_batch: number;
}

export interface Function {
  name: string;
  description?: string | null;
  /** JSON schema of the arguments; null means none. */
  parameters?: { [key: string]: unknown } | null;
  /** Arguments always match the schema. */
  strict?: boolean | null;
}

export interface FunctionMade {
  name: string;
  arguments: string;
}

export interface FunctionName {
  name: string;
}

/** Speedups, [batch][draft_length]. */
export interface HeatMap {
  batch: number[];
  draft_length: number[];
  ceiling: ((number | null)[] | null)[];
  calibrated: ((number | null)[] | null)[];
}

export interface JsonObjectFormat {
  type: "json_object";
}

export interface JsonSchemaFormat {
  type: "json_schema";
  json_schema: NamedSchema;
}

/**
 * Use of a lossy budget. `total_variation` is summed over all tokens, each at most `epsilon`.
 * `replaced_tokens` counts the draft tokens that replace another token of the target.
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
  tool_calls?: ToolCall[] | null;
  function_call?: null;
  audio?: null;
  /** Not supported. */
  annotations?: unknown[] | null;
}

/**
 * Measurements of the request. Times are in seconds from arrival and are given for a single choice
 * only. `seed` is a list with one entry per prompt where the seeds differ. `speedup_vs_ar` is the
 * estimated time without speculation divided by the measured time, for a single choice; null where
 * nothing was timed. `forced_tokens` counts the tokens that the grammar forced; they count in the
 * usage too.
 */
export interface Metrics {
  seed: number | number[];
  queue_time?: number;
  ttft?: number;
  tpot?: number | null;
  e2e_latency?: number;
  drafter: string | null;
  speedup_vs_ar?: number | null;
  forced_tokens?: number;
  lossy?: Lossy;
  speculative_decoding: SpeculativeDecoding | null;
}

/** The model; `state_bytes` are of one request's recurrent states. */
export interface ModelSize {
  name: string;
  family: string;
  parameters: number;
  active_parameters: number;
  weight_bytes: number;
  kv_bytes_per_token: number;
  state_bytes: number;
}

export interface NamedSchema {
  name: string;
  schema: { [key: string]: unknown } | boolean;
  description?: string | null;
  /** The answer always matches the schema. */
  strict?: boolean | null;
}

export interface NamedTool {
  type: "function";
  function: FunctionName;
}

/** The best row of the curve; "draft" is among the components. */
export interface Optimum {
  draft_length: number;
  acceptance_length: number;
  speedup: number;
  step_ms: number;
  verify_ms: number;
  draft_ms: number;
  tpot_ms: number;
  tokens_per_second_per_request: number;
  tokens_per_second_per_device: number;
  break_even_length: number;
  components: { [key: string]: number };
}

/** The rounds in which one part of a composed drafter made the draft. */
export interface PartDecoding {
  num_spec_steps: number;
  num_accepted_draft_tokens: number;
  num_draft_tokens: number;
}

/**
 * The answer of a prediction. `scenario` is the question with its defaults filled in; `calibration`
 * is its name and its numbers; `notes` are sentences to show beside the numbers.
 */
export interface Prediction {
  format: "paceline-prediction/1";
  scenario: { [key: string]: unknown };
  model: ModelSize;
  hardware: Device;
  calibration: { [key: string]: string | number };
  capacity: Fitting;
  ar: Tiers_ArStep_;
  ar_by_batch: ArByBatch;
  drafters: DrafterAnswer[];
  notes: string[];
}

export interface PromptTokensDetails {
  cached_tokens: number;
}

/** The rounds of every choice of one request. */
export interface RequestRounds {
  id: string;
  object: "request.rounds";
  created: number;
  model: string;
  choices: ExplainedChoice[];
}

export interface RoundToken {
  id: number;
  text: string;
}

/**
 * One round of one stream. Counts are in tokens, `draft_ms` and `step_ms` in milliseconds, and
 * `time` in seconds since the epoch. `part` names the part of a composed drafter that made the
 * draft. `position` is the index of the first output token that the round committed. The drafter
 * proposed `proposed` tokens; `verified` of them, and of the tokens that the grammar forced among
 * them, got a row in the target's forward; `accepted` of them were committed, without the forced
 * ones. `cut_by` says why fewer were verified than the request allows. `confidence` is the
 * drafter's own, for each proposed token. `step_requests` and `step_rows` count all requests and
 * rows of the step. Each of `verified_tokens` had a row; at `forced_places` the grammar allowed one
 * token only. `hidden_tokens` counts drafted tokens that are not listed because they come from the
 * text of other requests.
 */
export interface ShownRound {
  request: string;
  cohort: string;
  drafter: string | null;
  version: string | null;
  rule: string;
  temperature: number;
  grammar: boolean;
  part: string | null;
  position: number;
  proposed: number;
  verified: number;
  accepted: number;
  forced: number;
  cut_by: CutReason | null;
  time: number;
  confidence: number[] | null;
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

/** The object that a request may give as `speculative`. */
export interface Speculative {
  /** Name of a registered drafter. */
  drafter?: string | null;
  /** Longest draft of a round (default: the drafter's own). */
  max_draft_len?: number | null;
  /** Policy for draft lengths: throughput, fixed, fixed:k or off. */
  policy?: string | null;
  /** Total variation by which a token's law may differ from the target's; 0 is lossless. */
  lossy?: number | null;
}

/**
 * Counts of the rounds with a draft, over all choices, under the names that vLLM uses.
 * `mean_acceptance_length` includes the bonus token; the other counts do not. `parts` has the parts
 * of a composed drafter by name.
 */
export interface SpeculativeDecoding {
  mean_acceptance_length: number | null;
  draft_acceptance_rate: number | null;
  acceptance_histogram: number[];
  num_spec_steps: number;
  num_accepted_draft_tokens: number;
  num_draft_tokens: number;
  num_spec_tokens: number;
  per_step_accepted?: number[];
  per_step_drafted?: number[];
  parts?: { [key: string]: PartDecoding };
}

export interface StreamOptions {
  include_usage?: boolean | null;
  /** With include_usage: every event has the usage of its choice so far. */
  continuous_usage_stats?: boolean | null;
  /** With explain: every event has the round that produced it. */
  include_rounds?: boolean | null;
  /** Pad every event to the same size, with a field `obfuscation`. */
  include_obfuscation?: boolean | null;
}

/** Exactly one of the fields says what the output must match. `lark` is llguidance's Lark. */
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

/** Committed tokens per second by place; one against the other is the Pareto front. */
export interface Throughput {
  tokens_per_second_per_request: (number | null)[];
  tokens_per_second_per_device: (number | null)[];
}

/** One answer for each tier. */
export interface Tiers_ArStep_ {
  ceiling: ArStep;
  calibrated: ArStep;
}

/** One answer for each tier. */
export interface Tiers_Optimum_ {
  ceiling: Optimum;
  calibrated: Optimum;
}

/** The reason why a token was committed. */
export type TokenKind = "accepted" | "bonus" | "forced";

export interface Tool {
  type: "function";
  function: Function;
}

export interface ToolCall {
  id: string;
  type: "function";
  function: CalledFunction;
}

export interface TopLogprob {
  token: string;
  logprob: number;
  bytes: number[];
}

/**
 * Token counts. `prompt_tokens_details` is null unless the request names a cache scope
 * (`cache_salt` or `user`) or the server runs with --share-answers always.
 */
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: PromptTokensDetails | null;
}

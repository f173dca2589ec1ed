// Written by `python -m tools.page_types` from the server's pydantic models. Do not edit.

/** A cell of the matrix of versions and cohorts. */
export interface AlCell {
  version: string;
  cohort: string;
  scored: ScoredAl | null;
  seen: SeenAl | null;
}

/** One event of a streamed answer. */
export interface AnswerChunk {
  id: string;
  created: number;
  model: string;
  system_fingerprint: string;
  choices: ChunkChoice[];
  prompt_token_ids?: number[];
  usage?: Usage | null;
  metrics?: Metrics;
  obfuscation?: string;
  object: "chat.completion.chunk" | "text_completion";
}

/** Throughput without speculation, over batches. */
export interface ArByBatch {
  batch: number[];
  roofline: Throughput;
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
  reasoning_content?: string;
  tool_calls?: CallMade[];
}

/** All that the page's tab Autospec shows. Times are in seconds since the epoch. */
export interface AutospecOverview {
  time: number;
  by: "minute" | "hour" | "day";
  loop: DecidingLoop | null;
  cohorts: ShownCohort[];
  versions: ShownVersion[];
  matrix: AlCell[];
  changes: ShownChange[];
  decisions: ShownDecision[];
  left_out: LeftOut;
  traces: ReadTraces;
}

export interface BestByBatch {
  fits: ("drafts" | "no draft" | "nothing")[];
  max_draft: (number | null)[];
  roofline: BestNumbers;
  calibrated: BestNumbers;
  batch: number[];
}

export interface BestByContext {
  fits: ("drafts" | "no draft" | "nothing")[];
  max_draft: (number | null)[];
  roofline: BestNumbers;
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

/** Efficiencies and overheads of an engine. Every default is the identity. */
export interface Calibration {
  /** share of the bandwidth that streaming weights and states reaches */
  memory_efficiency?: number;
  /** share of the peak that matmuls reach once they have rows enough */
  compute_efficiency?: number;
  /** share of the bandwidth that attention over the cache reaches */
  attention_memory_efficiency?: number;
  /** share of the peak that attention over the cache reaches */
  attention_compute_efficiency?: number;
  /** share of the bandwidth at which logits are read to choose tokens */
  sampling_efficiency?: number;
  /** how much of the shorter of loading and computing hides under the longer */
  overlap?: number;
  /** rows that a matmul computes at least; rounds the rows up to a multiple */
  row_tile?: number;
  /**
   * rows at which a matmul reaches half of compute_efficiency (Hockney's n½): the cost of setting
   * up a tile of weights, in rows
   */
  half_rows?: number;
  /** seconds per forward: scheduling, launch, sampling set-up */
  step_overhead?: number;
  /** seconds per layer: launches, barriers, norms */
  layer_overhead?: number;
  /** seconds per request and layer: block tables, starting an attention */
  request_overhead?: number;
  /** seconds per row and layer: norms, rotary embedding, cache writes */
  row_overhead?: number;
  /**
   * seconds per layer with recurrent states, where a request has more than one row: keeping the
   * states that rejected drafts return to
   */
  state_overhead?: number;
}

/** A call of a tool by the model. */
export interface CallMade {
  id: string;
  type: "function";
  function: FunctionMade;
}

/** A piece of call `index`; the first piece has the id, the type and the name. */
export interface CallPiece {
  index: number;
  id?: string;
  type?: "function";
  function: FunctionPiece;
}

export interface CalledFunction {
  name: string;
  /** A JSON object, as text. */
  arguments: string;
}

/** The requests of one side of a canary so far; tokens per round include the bonus token. */
export interface CanaryArm {
  requests: number;
  tokens_per_round: number | null;
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
  /** A name from /v1/models (default: the first of them). */
  model?: string;
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
  /** Label log-probabilities with `token_id:` and the token's id in place of its text. */
  return_tokens_as_token_ids?: boolean | null;
  stream?: boolean | null;
  stream_options?: StreamOptions | null;
  /** The end user; works like cache_salt. */
  user?: string | null;
  metadata?: { [key: string]: string } | null;
  /** Accepted without effect: this server has one tier. */
  service_tier?: "auto" | "default" | "flex" | "scale" | "priority" | null;
  /** Accepted without effect: requests are served in the order in which they came. */
  priority?: number | null;
  /** Accepted without effect: answers are not kept. */
  store?: boolean | null;
  /** Another name of `user`, which OpenAI introduced later. */
  safety_identifier?: string | null;
  /**
   * Names the session where neither the header X-Session-ID nor `user` does: requests of one
   * session get the same drafter. Prefixes are cached by content.
   */
  prompt_cache_key?: string | null;
  /** Accepted without effect: prefixes stay cached as long as there is room. */
  prompt_cache_retention?: "in_memory" | "in-memory" | "24h" | null;
  messages: Message[];
  max_completion_tokens?: number | null;
  logprobs?: boolean | null;
  top_logprobs?: number | null;
  /** End the prompt where the answer begins (default: true, without continue_final_message). */
  add_generation_prompt?: boolean | null;
  /** Leave the last message open, so that the answer goes on with it. */
  continue_final_message?: boolean | null;
  /** Variables for the model's chat template, which must read them. */
  chat_template_kwargs?: { [key: string]: unknown } | null;
  /** Whether the model thinks first, where its chat template lets a request choose. */
  enable_thinking?: boolean | null;
  /** How long the model thinks, where its chat template reads it; `none` switches thinking off. */
  reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | null;
  response_format?: TextFormat | JsonObjectFormat | JsonSchemaFormat | null;
  modalities?: "text"[] | null;
  tools?: Tool[] | null;
  /** Default auto, where there are tools. */
  tool_choice?: "none" | "auto" | "required" | NamedTool | null;
  /** Default: true where the format of the model's calls allows several in one answer. */
  parallel_tool_calls?: boolean | null;
  /** Not supported. */
  functions?: unknown[] | null;
  function_call?: "none" | null;
  audio?: null;
  /** Accepted without effect: drafters do not read it. It would change no text. */
  prediction?: PredictedOutput | null;
  /** Accepted without effect: no chat template reads it. */
  verbosity?: "low" | "medium" | "high" | null;
  web_search_options?: null;
}

/** One choice in a chunk: chat has `delta`, completions have `text`. */
export interface ChunkChoice {
  index: number;
  delta?: MessageDelta;
  text?: string;
  logprobs: ChatLogprobs | CompletionLogprobs | null;
  finish_reason: "stop" | "length" | "tool_calls" | null;
  stop_reason?: string | number | null;
  token_ids?: number[];
  prompt_token_ids?: number[];
  round?: ShownRound;
}

/**
 * AL incl. bonus of a cohort, an item for each minute, hour or day with requests: `time` is when it
 * began, `low` and `high` are the 95% interval, `expected` is what is usual then.
 */
export interface CohortCurve {
  time: number[];
  al: number[];
  low: (number | null)[];
  high: (number | null)[];
  expected: (number | null)[];
  requests: number[];
}

/**
 * Comparison of the last `days` with what is usual: by the last turn of the loop (`by_loop`), or by
 * the default policy where none has looked. `expected` and the relative `change` are null where the
 * days of reference are too few; `error` is the change's standard error, where known.
 */
export interface CohortDrift {
  by_loop: boolean;
  reference_days: number;
  days: number;
  expected: number | null;
  seen: number | null;
  change: number | null;
  error: number | null;
}

/** Something that happened to a cohort's drafter. */
export interface CohortMark {
  time: number;
  kind: "live" | "tried" | "stopped";
  version: string;
}

export interface CommittedToken {
  id: number;
  text: string;
  kind: TokenKind;
}

/**
 * Log-probabilities of a choice's tokens. `text_offset` counts the characters before each. The
 * first token of an echoed prompt has none.
 */
export interface CompletionLogprobs {
  tokens: string[];
  token_logprobs: (number | null)[];
  top_logprobs: ({ [key: string]: number } | null)[];
  text_offset: number[];
}

/**
 * Every draft length looked at, and whether it `fits`; `acceptance_length` is the toy model's
 * speedup.
 */
export interface Curve {
  draft_length: number[];
  fits: boolean[];
  acceptance_length: number[];
  roofline: DraftNumbers;
  calibrated: DraftNumbers;
}

/** Says why a round verified fewer draft tokens than its request had asked for. */
export type CutReason = "prompt" | "off" | "held back" | "failed" | "room" | "context" | "drafter" | "grammar" | "cost" | "rest";

/** The process that decides for the store, and has servers do what it says. */
export interface DecidingLoop {
  purpose: string;
  host: string;
  since: number;
}

/** The device, and how many of them the deployment has. */
export interface Device {
  name: string;
  devices: number;
  memory: number;
  memory_bandwidth: number;
  source: string;
}

/**
 * Numbers by draft length; null for drafts that do not fit. `break_even_length` is the AL at which
 * that draft length is as fast as AR.
 */
export interface DraftNumbers {
  speedup: (number | null)[];
  step_ms: (number | null)[];
  verify_ms: (number | null)[];
  draft_ms: (number | null)[];
  tpot_ms: (number | null)[];
  tokens_per_second_per_request: (number | null)[];
  tokens_per_second_per_device: (number | null)[];
  break_even_length: (number | null)[];
}

/**
 * One drafter's views. Where no draft `fits`, the optimum is null. `commits` is P(a round commits
 * 1, 2, … tokens) at the calibrated optimum; `flags` are lines to launch "paceline", "vllm" and
 * "sglang" with there.
 */
export interface DrafterAnswer {
  name: string;
  kind: string;
  block: number | null;
  fits: "drafts" | "no draft" | "nothing";
  max_draft: number;
  acceptance: number[];
  curve: Curve;
  optimum: Tiers_Optimum_ | null;
  evidence: Evidence;
  by_batch: BestByBatch;
  by_context: BestByContext | null;
  heat_map: HeatMap;
  commits: number[];
  flags: { [key: string]: LaunchLine };
}

/**
 * What has changed in the store: the cohort's live version, and those that were retired for it.
 * `loop` has servers follow; without one they do not.
 */
export interface DrafterChange {
  cohort: string | null;
  live: string | null;
  retired: string[];
  loop: DecidingLoop | null;
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

/**
 * States how far calibrated numbers may be off: what is measured lies between `low` and `high`
 * times them, as far as published measurements tell; null where nothing was measured.
 */
export interface Evidence {
  low: number | null;
  high: number | null;
  text: string;
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

export interface FunctionPiece {
  name?: string;
  arguments: string;
}

/** One device. */
export interface Hardware {
  /** its name */
  name: string;
  /** bytes/s that the memory moves */
  memory_bandwidth: number;
  /** FLOP/s by rate: fp4, fp8, int8, bf16, fp32 */
  peak: { [key: string]: number };
  /** bytes */
  memory: number;
  /** bytes/s to a peer, per direction; 0: no link */
  link_bandwidth?: number;
  /** seconds per call over the link */
  link_latency?: number;
  /** one of nvidia-gpu, amd-gpu, apple-gpu, accelerator, cpu; it decides the default calibration */
  kind?: "nvidia-gpu" | "amd-gpu" | "apple-gpu" | "accelerator" | "cpu" | null;
  /** where the figures are from */
  source?: string;
}

export interface HardwareLists {
  hardware: ListedHardware[];
  calibrations: { [key: string]: { [key: string]: unknown } };
}

/** Speedups, [batch][draft_length]; null exactly where the draft does not fit. */
export interface HeatMap {
  batch: number[];
  draft_length: number[];
  roofline: ((number | null)[])[];
  calibrated: ((number | null)[])[];
}

/** Median TPOT of requests held back from drafting ÷ that of the others, and their numbers. */
export interface Holdback {
  speedup: number;
  held_back: number;
  others: number;
}

export interface JsonObjectFormat {
  type: "json_object";
}

export interface JsonSchemaFormat {
  type: "json_schema";
  json_schema: NamedSchema;
}

/** Latencies of the streams that ended; null where no stream has the number. */
export interface Latency {
  streams: number;
  queue: Quantiles | null;
  ttft: Quantiles | null;
  tpot: Quantiles | null;
  total: Quantiles | null;
}

/** A command that launches an engine; `missing` says what the engine lacks where there is none. */
export interface LaunchLine {
  command: string | null;
  missing: string | null;
}

/** How many more there are; `columns` are versions that the matrix leaves out. */
export interface LeftOut {
  cohorts: number;
  versions: number;
  columns: number;
  changes: number;
  decisions: number;
}

/** Hardware with bytes, bytes per second, and FLOP/s by number format. */
export interface ListedHardware {
  name: string;
  memory: number;
  memory_bandwidth: number;
  peak: { [key: string]: number };
  source: string;
}

export interface LiveGauges {
  running: number;
  waiting: number;
  kv_usage: number;
}

/** The requests of one drafter and cohort; `drafter` is null for requests without drafts. */
export interface LiveGroup {
  drafter: string | null;
  cohort: string;
  tokens: number;
  speedup_vs_ar: number | null;
  speculation: LiveSpeculation;
  latency: Latency;
}

/** One point of the curves: gauges at `time`, the rest over the seconds before. */
export interface LivePoint {
  running: number;
  waiting: number;
  kv_usage: number;
  time: number;
  tokens_per_second: number;
  acceptance_length: number | null;
  draft_length: number | null;
  speedup_vs_ar: number | null;
}

export interface LiveRounds {
  rounds: number;
  draft_rounds: number;
  draft_tokens: number;
  accepted_tokens: number;
  acceptance_length: number | null;
  draft_length: number | null;
  rounds_by_draft_length: number[];
  positions: PositionCount[];
}

/** The numbers of the Live tab. `time` is in seconds since the epoch. */
export interface LiveSnapshot {
  tokens_per_second: number;
  prompt_tokens_per_second: number;
  generation_tokens: number;
  prefix_hit_rate: number | null;
  preemptions: number;
  speedup_vs_ar: number | null;
  speculation: LiveSpeculation;
  time: number;
  window: number;
  now: LiveGauges;
  latency: Latency;
  holdback: Holdback | null;
  groups: LiveGroup[];
  history: LivePoint[];
}

/** Counts of rounds, and those of each part of a composed drafter. */
export interface LiveSpeculation {
  rounds: number;
  draft_rounds: number;
  draft_tokens: number;
  accepted_tokens: number;
  acceptance_length: number | null;
  draft_length: number | null;
  rounds_by_draft_length: number[];
  positions: PositionCount[];
  forced_tokens: number;
  parts: { [key: string]: LiveRounds };
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

export interface MeasuredPoints {
  points: ShownPoint[];
}

export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content?: string | TextPart[] | null;
  name?: string | null;
  tool_call_id?: string | null;
  reasoning_content?: string | null;
  /** The same as reasoning_content, as in vLLM. */
  reasoning?: string | null;
  refusal?: null;
  tool_calls?: ToolCall[] | null;
  function_call?: null;
  audio?: null;
  /** Not supported. */
  annotations?: unknown[] | null;
}

/** Text or calls that a chunk adds to the message. */
export interface MessageDelta {
  role?: "assistant";
  content?: string;
  reasoning_content?: string;
  refusal?: null;
  tool_calls?: CallPiece[];
}

/**
 * Measurements of the request. Times are in seconds from arrival and are given for a single choice
 * only; `ttft` is null where there is no token. `seed` is a list with one entry per prompt where
 * the seeds differ. `speedup_vs_ar` is the estimated time without speculation divided by the
 * measured time, for a single choice; null where nothing was timed. `route` says why the request
 * got its drafter: `named`, `default`, or `route N` of the server's routes; null where it got none.
 * `forced_tokens` counts the tokens that the grammar forced; they count in the usage too.
 */
export interface Metrics {
  seed: number | number[];
  queue_time?: number;
  ttft?: number | null;
  tpot?: number | null;
  e2e_latency?: number;
  drafter: string | null;
  drafter_version: string | null;
  route: string | null;
  speedup_vs_ar?: number | null;
  forced_tokens?: number;
  lossy?: Lossy;
  speculative_decoding: SpeculativeDecoding | null;
}

/** A listed model; `max_context` is 0 where its config states none. */
export interface ModelFacts {
  name: string;
  max_context: number;
  parameters: number;
  active_parameters: number;
  weight_bytes: number;
}

export interface ModelLists {
  models: ModelFacts[];
  precisions: string[];
  drafters: string[];
  presets: Preset[];
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

export interface NamedConfig {
  config: { [key: string]: unknown };
  name: string;
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

export interface PageState {
  version: string;
  key_needed: boolean;
  opens_on: string;
  tabs: Tab[];
}

/** The rounds in which one part of a composed drafter made the draft. */
export interface PartDecoding {
  num_spec_steps: number;
  num_accepted_draft_tokens: number;
  num_draft_tokens: number;
}

export interface PositionCount {
  drafted: number;
  accepted: number;
}

/** A guess of the answer, which OpenAI's servers use to answer sooner. */
export interface PredictedOutput {
  type: "content";
  content: string | TextPart[];
}

/**
 * The answer of a prediction. `scenario` is the question with its defaults filled in, the number of
 * devices too; `calibration` is its name and its numbers, `evidence` that of plain decoding;
 * `published` are measurements of others; `notes` are sentences to show beside the numbers.
 */
export interface Prediction {
  format: "paceline-prediction/2";
  scenario: { [key: string]: unknown };
  model: ModelSize;
  hardware: Device;
  calibration: { [key: string]: string | number };
  evidence: Evidence;
  published: PublishedPoint[];
  capacity: Fitting;
  ar: Tiers_ArStep_;
  ar_by_batch: ArByBatch;
  drafters: DrafterAnswer[];
  notes: string[];
}

/** A scenario (`StatedScenario`) with a name; `see` are the words to show beside its answer. */
export interface Preset {
  name: string;
  see: string;
  scenario: { [key: string]: unknown };
}

/** A version and where it goes. */
export interface PromotionBody {
  /** The version's name. */
  name: string;
  /** The state that it gets; null: the next one. */
  to?: "scored" | "shadow" | "canary" | "live" | null;
  /**
   * With `live`: the cohort that it serves, `model|app|language|region`; "" is all requests that no
   * other cohort matches.
   */
  cohort?: string;
  /** Why; it is kept in the history. */
  reason?: string;
}

export interface PromptTokensDetails {
  cached_tokens: number;
}

/**
 * A published measurement of this model on these devices. `tokens_per_second` and `batch` are of
 * all requests; null where the source does not tell.
 */
export interface PublishedPoint {
  source: string;
  url: string | null;
  set: string;
  kind: string | null;
  batch: number;
  draft_length: number;
  acceptance_length: number;
  tokens_per_second: number | null;
  speedup: number | null;
}

/** Seconds at quantiles of the requests that ended. */
export interface Quantiles {
  p50: number;
  p90: number;
  p99: number;
}

/**
 * State of the reading of traces: `none` where the server writes none, `reading` while that lasts,
 * `failed` with a `message`; `until` is the time up to which requests are counted.
 */
export interface ReadTraces {
  state: "none" | "reading" | "read" | "failed";
  until: number | null;
  message: string | null;
}

/**
 * A request whose rounds are kept. A choice that still runs has no finish reason yet;
 * `acceptance_length` includes the bonus token, and is null where nothing was drafted.
 */
export interface RecentRequest {
  id: string;
  created: number;
  model: string;
  finish_reasons: (string | null)[];
  tokens: number;
  rounds: number;
  acceptance_length: number | null;
}

/** The latest requests whose rounds the server keeps, the newest first. */
export interface RecentRequests {
  requests: RecentRequest[];
}

/** The rounds of every choice of one request. */
export interface RequestRounds {
  id: string;
  object: "request.rounds";
  created: number;
  model: string;
  choices: ExplainedChoice[];
}

/** A cohort that gets back the version that it had before. */
export interface RollbackBody {
  /** `model|app|language|region`; "" is all requests that no other cohort matches. */
  cohort?: string;
  /**
   * The version that comes back. If another one would, the rollback is refused: somebody was
   * faster. Null takes any.
   */
  name?: string | null;
  /** Why; it is kept in the history. */
  reason?: string;
}

export interface RoundToken {
  id: number;
  text: string;
}

/** Numbers by optimizer step; None where one is not finite. */
export interface RunCurve {
  step: number[];
  value: (number | null)[];
}

/** AL at the planned end, with its interval. */
export interface RunForecast {
  al: number;
  low: number;
  high: number;
}

/**
 * The last steps: `hours` of steps so far, `hours_left` to the planned end, the share of the
 * machine's matmul peak, and milliseconds of a step by phase. None is a number that the log does
 * not have.
 */
export interface RunSpeed {
  hours: number | null;
  hours_left: number | null;
  slots_per_second: number | null;
  peak_share: number | null;
  step_ms: number | null;
  phases: { [key: string]: number };
}

/**
 * The state of a run. `speed` is None before the first steps are logged; `is_falling` says that the
 * learning rate falls to the end; `fallen` maps sets to the share that their AL lost, `gaps` to
 * their production gap, AL on held-out prompts minus AL on foreign ones.
 */
export interface RunState {
  folder: string;
  step: number;
  is_running: boolean;
  is_falling: boolean;
  speed: RunSpeed | null;
  loss: RunCurve;
  train_al: RunCurve;
  sets: ScoredSet[];
  forecast: RunForecast | null;
  fallen: { [key: string]: number };
  gaps: { [key: string]: number | null };
}

/** AL incl. bonus with its 95% interval, as a version was scored on a cohort's answers. */
export interface ScoredAl {
  al: number;
  low: number;
  high: number;
  rounds: number;
  time: number;
  source: string;
}

/**
 * Acceptance on one set: `al` incl. bonus of the last evaluation, `best` of all, `positions` the
 * shares of the drafts that were accepted up to each position.
 */
export interface ScoredSet {
  name: string;
  kind: string;
  al: number | null;
  best: number | null;
  positions: (number | null)[];
  curve: RunCurve;
}

/** Sums up what Live has seen of a drafter: `acceptance_length` includes the bonus token. */
export interface SeenAcceptance {
  rounds: number;
  acceptance_length: number;
  draft_length: number;
}

/**
 * Sums of a version over a cohort's requests of the last week; `speedup` is over decoding without
 * drafts, by the server's cost table.
 */
export interface SeenAl {
  al: number;
  low: number | null;
  high: number | null;
  requests: number;
  speedup: number | null;
}

/** States acceptance as a scenario does: `alpha`, or `al` at a draft length. */
export interface ServedAcceptance {
  alpha: number | null;
  al: number | null;
  draft_length: number | null;
}

/** A drafter's measured cost, as a scenario states it: a share of an AR step, or seconds. */
export interface ServedCost {
  name: string;
  kind: string;
  cost: number | null;
  block: number | null;
  seconds: number | null;
  acceptance: ServedAcceptance;
}

export interface ServedDrafter {
  name: string;
  version: string;
  max_draft_len: number;
}

/** The machine, as a scenario states a device. */
export interface ServedMachine {
  name: string;
  kind: string;
  memory_bandwidth: number;
  peak: { [key: string]: number };
  memory: number;
  source: string;
}

/**
 * Describes what runs here, as parts of a scenario. `median_error` is that of the calibration at
 * the steps that it was fitted to; `seen` has the drafters that have drafted, by name.
 */
export interface ServedScenario {
  model: NamedConfig;
  hardware: ServedMachine;
  precision: string;
  calibration: { [key: string]: number };
  median_error: number;
  drafters: ServedCost[];
  seen: { [key: string]: SeenAcceptance };
  context: number;
}

/** Describes the server to the page. */
export interface ServingFacts {
  models: string[];
  max_model_len: number;
  drafters: ServedDrafter[];
  default_drafter: string | null;
  draft_policy: string;
  rule: string;
  holdback: number;
  max_num_seqs: number;
}

/**
 * An attempt to replace a cohort's drafter; `percent` of its requests get the new one, and `hold`
 * is what it waits for: room on the server, or what the canary still lacks.
 */
export interface ShownChange {
  id: number;
  cohort: string;
  origin: "drift" | "growth" | "renewal" | "weights" | "pushed";
  version: string;
  replaces: string;
  stage: "building" | "training" | "scoring" | "loading" | "canary" | "live" | "stopped";
  percent: number;
  score: string;
  hold: string[];
  new: CanaryArm | null;
  old: CanaryArm | null;
  created: number;
  changed: number;
  ended: number | null;
  reason: string;
}

/**
 * A cohort, `model|app|language|region`; "" stands for all requests. `live` drafts for it, by
 * itself if `is_own`; with `shares` its requests are shared out among versions, for the reason in
 * `shared_because`. A rollback is possible where `has_rollback`, and brings `back` a version, or
 * with null ends the cohort's own service. `requests` and `share` (of rounds) are of the last week.
 */
export interface ShownCohort {
  cohort: string;
  live: string | null;
  is_own: boolean;
  shares: { [key: string]: number };
  shared_because: string;
  has_rollback: boolean;
  back: string | null;
  requests: number;
  share: number;
  curve: CohortCurve | null;
  drift: CohortDrift | null;
  marks: CohortMark[];
}

/**
 * A decision, and why nothing else was decided. `gain` and `cost` are in the currency of the
 * policy, null where nothing is bought. It was made first when `noted`, last when `seen`.
 */
export interface ShownDecision {
  id: number;
  kind: string;
  action: string;
  cohorts: string[];
  start: number;
  gain: number | null;
  cost: number | null;
  why: string[];
  why_not: string[];
  noted: number;
  seen: number;
  ended: number | null;
}

/**
 * A measured speedup over AR. `acceptance_length` includes the bonus token; `draft_length` and
 * `batch` are null where they differ within it.
 */
export interface ShownPoint {
  acceptance_length: number;
  speedup: number;
  draft_length: number | null;
  batch: number | null;
  note: string;
}

/**
 * One round of one stream. Counts are in tokens, `draft_ms` and `step_ms` in milliseconds, and
 * `time` in seconds since the epoch. `part` names the part of a composed drafter that made the
 * draft. `position` is the index of the first output token that the round committed. The drafter
 * proposed `proposed` tokens; `verified` of them, and of the tokens that the grammar forced among
 * them, got a row in the target's forward, and with alternatives `beside` more; `accepted` of them
 * were committed, without the forced ones. `cut_by` says why fewer were verified than the request
 * allows. `confidence` is the drafter's own, for each proposed token. `step_requests` and
 * `step_rows` count all requests and rows of the step. Each of `verified_tokens` had a row; at
 * `forced_places` the grammar allowed one token only. `hidden_tokens` counts drafted tokens that
 * are not listed because they come from the text of other requests.
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
  beside: number;
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

/**
 * A version of a drafter. `lineage` has its ancestors, its parent first; `goals` are the states
 * that it can be promoted to; `changed`, `actor` and `reason` are of its last step.
 */
export interface ShownVersion {
  name: string;
  state: "registered" | "trained" | "scored" | "shadow" | "canary" | "live" | "retired";
  serves: string[];
  kind: string | null;
  spec: string | null;
  checksum: string | null;
  target: string | null;
  lineage: string[];
  created: number;
  note: string;
  goals: ("scored" | "shadow" | "canary" | "live")[];
  changed: number;
  actor: string;
  reason: string;
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

/**
 * The quality of drafts, in one of these forms: alpha; al and draft_length; conditional;
 * unconditional; first, al and draft_length; beta; accepted and drafted.
 */
export interface StatedAcceptance {
  /** every position is accepted alike */
  alpha?: number | null;
  /** tokens per round, incl. bonus */
  al?: number | null;
  /** the draft length of `al` */
  draft_length?: number | null;
  /** by position: accepted ÷ drafts that came to it */
  conditional?: number[] | null;
  /** by position: accepted so far ÷ all drafts */
  unconditional?: number[] | null;
  /** acceptance of the first position */
  first?: number | null;
  /** a and b of the law that each round's alpha is drawn from */
  beta?: [number, number] | null;
  /** tokens accepted, by round */
  accepted?: number[] | null;
  /** tokens drafted, by round, or one number for all rounds */
  drafted?: number | number[] | null;
}

/** A drafter: its cost, and how well it drafts. */
export interface StatedDrafter {
  /** ideal, mtp, eagle3, draft_model, dflash, ngram, suffix */
  kind: "ideal" | "mtp" | "eagle3" | "draft_model" | "dflash" | "ngram" | "suffix";
  /** default: the kind */
  name?: string;
  /** cost of one pass, as a share of the target's AR step */
  cost?: number | null;
  /**
   * the drafter's config, or a listed model's name, to compute the cost from (eagle3, draft_model,
   * dflash); mtp without a cost is computed from the model's own layer
   */
  config?: string | { [key: string]: unknown } | null;
  /** seconds of one look-up (ngram, suffix; default 0) */
  seconds?: number | null;
  /**
   * tokens that one pass drafts (dflash without a config; the anchor is not counted: 15 for what
   * checkpoints call a block of 16)
   */
  block?: number | null;
  /** its longest draft, where that is less than the scenario's */
  max_draft?: number | null;
  /** folder or hub id, for the launch lines */
  checkpoint?: string | null;
  /** how well it drafts; ideal accepts all by default */
  acceptance?: StatedAcceptance | null;
}

/** A model of your own. */
export interface StatedModel {
  /** a Hugging Face config.json */
  config: { [key: string]: unknown };
  /** its name in the answer */
  name?: string;
}

/** A question to the roofline: what would speculation buy? */
export interface StatedScenario {
  /** a listed name, or `{"config": {a Hugging Face config.json}, "name": "mine"}` */
  model: string | StatedModel;
  /** a listed name, or an object with the fields of a device */
  hardware: string | Hardware;
  /** 1 to 3 drafters */
  drafters: StatedDrafter[];
  /** the model's folder or hub id, for the launch lines; default MODEL */
  checkpoint?: string | null;
  /**
   * one name for all matrices ("bf16", "fp8", …), or an object by component; default: the config's
   */
  precision?: string | { [key: string]: unknown } | null;
  /** requests decoded together */
  batch?: number;
  /** tokens in each request's cache */
  context?: number;
  /** devices that share each layer; default: the fewest that hold the model and one request */
  tensor_parallel?: number | null;
  /** groups of such devices that share the batch out */
  data_parallel?: number;
  /**
   * devices among which whole experts are dealt; 1 cuts each expert up (loads are taken as even:
   * without data_parallel it changes the launch lines alone)
   */
  expert_parallel?: number;
  /**
   * experts of neighbouring tokens: uniform (drawn independently, the most that can be touched) or
   * measured (as alike as in real text)
   */
  correlation?: "uniform" | "measured";
  /** of recurrent states when verifying: per-token or replay */
  snapshots?: "per-token" | "replay";
  /** format of recurrent states: bf16 or fp32; default: the config's */
  state_precision?: "bf16" | "fp32" | null;
  /** longest draft length looked at, 1 to 64 */
  max_draft?: number;
  /**
   * a preset's name, or the object that `paceline roofline fit` writes; default: sglang-b200 for
   * GPUs of NVIDIA and AMD, else the preset of the nearest kind of model
   */
  calibration?: string | Calibration | null;
  /** of `by_batch` and `heat_map`; default 1, 2, 4, … 1024 and `batch` */
  batches?: number[] | null;
  /** of `by_context`; default none, and then there is no such view */
  contexts?: number[] | null;
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

/**
 * A tab of the page. One that is not available has the reason, and the command that starts what the
 * tab needs.
 */
export interface Tab {
  name: string;
  title: string;
  available: boolean;
  reason?: string;
  command?: string;
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
  roofline: ArStep;
  calibrated: ArStep;
}

/** One answer for each tier. */
export interface Tiers_Optimum_ {
  roofline: Optimum;
  calibrated: Optimum;
}

/** One step of a request as its reader sees it: `tokens` = `accepted` + `own`, at `t_ms`. */
export interface TimedEvent {
  t_ms: number;
  tokens: number;
  accepted: number;
  own: number;
  drafted: number;
}

/**
 * Events of both panes. `acceptance_length` includes the bonus token, and is null where it is not
 * known; `rows` names the rows of a file to choose from.
 */
export interface TimedRun {
  ar: TimedEvent[];
  speculative: TimedEvent[];
  acceptance_length: number | null;
  rows: string[];
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
 * The runs of training that the page shows. `errors` are those of runs whose log cannot be read, by
 * folder.
 */
export interface TrainingRuns {
  runs: RunState[];
  errors: { [key: string]: string };
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

// What the server answers, by the names that the page uses. Types that have a model in Python come
// from api.d.ts, which tools/page_types.py writes; the others are written here.

import type { ChatCompletion, ErrorResponse, Prediction as Answer, RequestRounds } from "./api";

// -- rounds ---------------------------------------------------------------------------------------

export type Round = RequestRounds["choices"][number]["rounds"][number];
export type RoundToken = Round["verified_tokens"][number];
export type CommittedToken = Round["committed_tokens"][number];

// -- ui/state and ui/serving ----------------------------------------------------------------------

export interface Tab {
  name: string;
  title: string;
  available: boolean;
  /** Why the tab is not available, and the command that starts what it needs. */
  reason?: string;
  command?: string;
}

export interface PageState {
  version: string;
  key_needed: boolean;
  tabs: Tab[];
}

export interface ServedDrafter {
  name: string;
  version: string;
  max_draft_len: number;
}

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

// -- events of a streamed chat --------------------------------------------------------------------

export type AnswerMetrics = ChatCompletion["metrics"] & { speedup_vs_ar?: number | null };

export interface ChunkChoice {
  index: number;
  delta?: { role?: "assistant"; content?: string | null };
  finish_reason: string | null;
  stop_reason?: string | number | null;
  round?: Round;
}

/** An event of a stream: a part of the answer, or what went wrong. */
export interface ChatChunk {
  choices: ChunkChoice[];
  metrics?: AnswerMetrics;
  error?: ErrorResponse["error"];
}

// -- ui/live --------------------------------------------------------------------------------------

/** Seconds at the quantiles of the requests that ended. */
export interface Quantiles {
  p50: number;
  p90: number;
  p99: number;
}

export interface Latency {
  streams: number;
  queue: Quantiles | null;
  ttft: Quantiles | null;
  tpot: Quantiles | null;
  total: Quantiles | null;
}

export interface PositionCount {
  drafted: number;
  accepted: number;
}

export interface LiveLengths {
  rounds: number;
  draft_rounds: number;
  draft_tokens: number;
  accepted_tokens: number;
  acceptance_length: number | null;
  draft_length: number | null;
  rounds_by_draft_length: number[];
  positions: PositionCount[];
}

export interface LiveSpeculation extends LiveLengths {
  forced_tokens: number;
  parts: { [name: string]: LiveLengths };
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

export interface LivePoint {
  time: number;
  running: number;
  waiting: number;
  kv_usage: number;
  tokens_per_second: number;
  acceptance_length: number | null;
  draft_length: number | null;
  speedup_vs_ar: number | null;
}

export interface Holdback {
  speedup: number;
  held_back: number;
  others: number;
}

export interface LiveSnapshot {
  time: number;
  window: number;
  now: { running: number; waiting: number; kv_usage: number };
  tokens_per_second: number;
  prompt_tokens_per_second: number;
  generation_tokens: number;
  prefix_hit_rate: number | null;
  preemptions: number;
  speedup_vs_ar: number | null;
  speculation: LiveSpeculation;
  latency: Latency;
  holdback: Holdback | null;
  groups: LiveGroup[];
  history: LivePoint[];
}

// -- ui/models, ui/hardware, ui/measured, ui/timing -----------------------------------------------

export interface ListedModel {
  name: string;
  parameters: number;
  active_parameters: number;
  weight_bytes: number;
}

export interface ModelLists {
  models: ListedModel[];
  precisions: string[];
  drafters: string[];
}

export interface ListedHardware {
  name: string;
  memory: number;
  memory_bandwidth: number;
  peak: { [format: string]: number };
  source: string;
}

export interface HardwareLists {
  hardware: ListedHardware[];
  calibrations: { [name: string]: unknown };
}

export interface MeasuredPoint {
  acceptance_length: number;
  speedup: number;
  draft_length: number | null;
  batch: number | null;
  note: string;
}

export interface MeasuredPoints {
  points: MeasuredPoint[];
}

/** One step of a request as its reader sees it: `tokens` = `accepted` + `own`, at `t_ms`. */
export interface TimedEvent {
  t_ms: number;
  tokens: number;
  accepted: number;
  own: number;
  drafted: number;
}

export interface TimedRun {
  ar: TimedEvent[];
  speculative: TimedEvent[];
  acceptance_length: number | null;
  rows: string[];
}

// -- ui/predict -----------------------------------------------------------------------------------

export interface StatedScenario {
  model: string | { config: unknown; name: string };
  hardware: string;
  drafters: StatedDrafter[];
  checkpoint?: string;
  precision?: string;
  calibration?: unknown;
  batch: number | null;
  context: number | null;
  tensor_parallel: number | null;
  max_draft: number | null;
  batches?: number[] | null;
}

export interface StatedDrafter {
  kind: string;
  name: string;
  acceptance?: StatedAcceptance;
  cost?: number | null;
  config?: unknown;
  block?: number | null;
  seconds?: number | null;
}

export type StatedAcceptance =
  | { alpha: number | null }
  | { al: number | null; draft_length: number | null }
  | { conditional: number[] }
  | { unconditional: number[] };

export type { BestNumbers, DrafterAnswer, Throughput } from "./api";

/** `scenario` is the question with its defaults filled in; the page reads these of it. */
export interface Prediction extends Omit<Answer, "scenario"> {
  scenario: { batch: number; context: number; batches: number[] | null };
}

/** Milliseconds by the name of a component. */
export type Components = Answer["ar"]["ceiling"]["components"];

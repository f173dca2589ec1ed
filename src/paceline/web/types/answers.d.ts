// What the server answers, by the names that the page uses. The types are in api.d.ts, which
// tools/page_types.py writes from the models in Python.

import type {
  AnswerChunk,
  ErrorResponse,
  LiveRounds,
  Metrics,
  ModelLists as Lists,
  Prediction as Answer,
  Preset as ListedPreset,
  RequestRounds,
  ShownPoint,
  ShownVersion as Version,
  StatedAcceptance as CheckedAcceptance,
  StatedDrafter as CheckedDrafter,
  StatedScenario as CheckedScenario,
} from "./api";

export type {
  AlCell,
  AutospecOverview,
  BestNumbers,
  CanaryArm,
  CohortDrift,
  CohortMark,
  DrafterChange,
  DrafterAnswer,
  Evidence,
  HardwareLists,
  LaunchLine,
  LiveGroup,
  LivePoint,
  LiveSnapshot,
  MeasuredPoints,
  ModelFacts,
  PageState,
  PublishedPoint,
  Quantiles,
  RecentRequest,
  RecentRequests,
  RunState,
  ServedScenario,
  ServingFacts,
  ShownChange,
  ShownCohort,
  ShownDecision,
  ShownVersion,
  Tab,
  Throughput,
  TimedEvent,
  TimedRun,
  TrainingRuns,
} from "./api";

export type Round = RequestRounds["choices"][number]["rounds"][number];
export type RoundToken = Round["verified_tokens"][number];
export type CommittedToken = Round["committed_tokens"][number];
export type AnswerMetrics = Metrics;
export type Fits = Answer["drafters"][number]["fits"];
export type LiveLengths = LiveRounds;
export type MeasuredPoint = ShownPoint;
export type DrafterState = Version["state"];

/** An event of a stream: a part of the answer, or what went wrong. */
export type ChatChunk = AnswerChunk & Partial<ErrorResponse>;

/**
 * What a user typed, which the server checks: a number may be missing (null), and a name may be any
 * text.
 */
type Typed<Type> = Type extends number ? number | null
  : Type extends string ? string
  : Type extends (infer Item)[] ? Typed<Item>[]
  : Type extends object ? { [Key in keyof Type]: Typed<Type[Key]> }
  : Type;

export type StatedScenario = Typed<CheckedScenario>;
export type StatedDrafter = Typed<CheckedDrafter>;
export type StatedAcceptance = Typed<CheckedAcceptance>;

/** A preset names what the lists have. */
export type Preset = Omit<ListedPreset, "scenario"> & {
  scenario: CheckedScenario & { model: string; hardware: string };
};
export type ModelLists = Omit<Lists, "presets"> & { presets: Preset[] };

/** `scenario` is the question with its defaults filled in; the page reads these of it. */
export type Prediction = Omit<Answer, "scenario"> & {
  scenario: Required<Pick<CheckedScenario, "batch" | "context" | "batches">>;
};

/** Milliseconds by the name of a component. */
export type Components = Answer["ar"]["roofline"]["components"];

"""The result of an evaluation as a typed value, and the JSON file that holds it.

A report can be made again from the file alone: every number in it comes from the rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import BeforeValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from paceline.bench.report.words import NOTHING, count, percent, tokens_short, with_interval
from paceline.core import InvalidRequest, SamplingParams
from paceline.core.documents import Document, checked, read_json_object
from paceline.core.field_types import Between, Several
from paceline.core.rounds import AR
from paceline.drafters.spec import BASELINES, REMEMBERING
from paceline.evaluate.gap import ProductionGap, production_gaps
from paceline.evaluate.served import EvaluatedEngine

FORMAT: Final = "paceline-evaluation/1"
DRAFTER = "drafter"  # the one that is evaluated, beside every kind that needs no training
WARMED = tuple(kind for kind in BASELINES if kind in REMEMBERING)
DRAFTERS = (DRAFTER, *BASELINES)
THROUGHPUT, FULL = "throughput", "full"  # the engine's default policy; always the whole block
POLICY, BLOCK = f"{DRAFTER}/{THROUGHPUT}", f"{DRAFTER}/{FULL}"
# sides whose answers are timed, and sides that are asked once, for their acceptance only
TIMED = (AR, POLICY, BLOCK, *(f"{kind}/{THROUGHPUT}" for kind in BASELINES))
ONCE = tuple(f"{kind}/{FULL}" for kind in BASELINES)
MOST_TOKENS = 256  # longer answers of small models loop, and loops flatter
GRAMMARS = {"json_schema": "a JSON schema", "regex": "a regex", "lark": "a Lark grammar"}
TOKENS = f"from 2 to {MOST_TOKENS}: in longer answers small models loop, which flatters"
NO_PROMISE = "this engine does not promise"
AtLeastOne = Annotated[int, Between(1)]


@checked
class EvaluationSettings:
    """The questions of an evaluation. Raises InvalidRequest naming the field.

    prompts        of each set, spread evenly over it
    tokens         most new tokens of an answer, at most MOST_TOKENS
    temperatures   each evaluated by itself; 0 is argmax
    runs           paired runs of each prompt, for the speed
    seed           of the first prompt's noise; the next has the next
    warm           the drafter remembers the answers that baselines are warmed with
    """

    prompts: AtLeastOne = 40
    tokens: Annotated[int, Between(2, MOST_TOKENS, words=TOKENS)] = MOST_TOKENS
    temperatures: Annotated[tuple[float, ...], Several] = (0.0, 1.0)
    runs: AtLeastOne = 1
    seed: Annotated[int, Between(0, 2**63)] = 0
    warm: bool = False

    def __post_init__(self) -> None:
        if not self.temperatures or len(set(self.temperatures)) < len(self.temperatures):
            expected = "at least one temperature, and each once"
            raise InvalidRequest("temperatures", list(self.temperatures), expected)
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)


def _read_settings(value: object) -> EvaluationSettings:
    if isinstance(value, EvaluationSettings):
        return value
    if not isinstance(value, dict):
        raise ValueError("an object with the settings of the evaluation")
    return EvaluationSettings(**value)


@with_config(ConfigDict(extra="forbid", strict=True))
class RequestRow(TypedDict):
    """One prompt with the answers of every side. `rounds` are [position, drafted, accepted] of
    `core.rounds.Round`, `seconds` of each run from the first counted token to the last. Texts that
    differ between sides are timed over `timed_tokens` of each, where that is stated."""

    prompt: str
    prompt_sha256: str
    prompt_tokens: int
    seed: int
    output_tokens: int
    output_sha256: str
    counted_tokens: int
    forced_tokens: NotRequired[int]
    grammar_sha256: NotRequired[str | None]
    finish_reason: str | None
    same_text: dict[str, bool]
    seconds: dict[str, list[float | None]]
    timed_tokens: NotRequired[int]
    rounds: dict[str, list[list[int]]]


class PositionShare(Document):
    """A draft position: `share` of all rounds that accepted so many tokens, `conditional` share of
    the rounds that came to it."""

    position: int
    accepted: int
    reached: int
    share: float | None
    conditional: float | None


class ContextBin(Document):
    """The acceptance length of rounds with `start` to `end` tokens before the anchor."""

    start: int = Field(alias="from")
    end: int = Field(alias="to")
    rounds: int
    al: float

    @property
    def label(self) -> str:
        """`128–256`."""
        return f"{tokens_short(self.start)}–{tokens_short(self.end)}"


class AcceptanceNumbers(Document):
    """The acceptance of one drafter on one set. AL includes the bonus token; None: no rounds."""

    requests: int
    rounds: int
    drafted_rounds: int
    al: float | None
    al_interval: list[float] | None
    al_mean_of_requests: float | None
    positions: list[PositionShare]
    contexts: list[ContextBin]

    @property
    def text(self) -> str:
        return with_interval(self.al, self.al_interval)


class SpeedNumbers(Document):
    """The speed of one side beside AR, over the requests that were timed."""

    requests: int
    speedup: float | None
    speedup_interval: list[float] | None
    tokens_per_round: float | None
    speedup_per_token: float | None
    tpot_ms: float | None
    ar_tpot_ms: float | None

    @property
    def text(self) -> str:
        return with_interval(self.speedup, self.speedup_interval, "×")


class GrammarDigest(Document):
    """A grammar without its text, which is the application's own."""

    kind: str
    sha256: str


class SetNumbers(Document):
    """All numbers of the rows of one set at one temperature. `same_text` None: no answer was there
    to compare with. `speed` is empty where nothing ran without speculation."""

    requests: int
    looping: int
    output_tokens: int
    counted_tokens: int
    forced_tokens: int = 0
    bound: int = 0
    same_text: bool | None
    acceptance: dict[str, AcceptanceNumbers]
    speed: dict[str, SpeedNumbers]


class SetResult(SetNumbers):
    """One set at one temperature: its numbers, and the rows that they were made of."""

    set: str
    role: str
    choice: str | None
    temperature: float
    left_out: int
    warmed: str
    grammar: GrammarDigest | None = None
    rows: list[RequestRow]

    def al_of(self, drafter: str) -> float | None:
        """Return the AL of one of DRAFTERS, None where it has no rounds."""
        acceptance = self.acceptance.get(drafter)
        return None if acceptance is None else acceptance.al

    @property
    def bound_note(self) -> str | None:
        """The sentence on bound answers; None where all answers are free."""
        if self.grammar is None:
            return None
        grammar = GRAMMARS.get(self.grammar.kind, "a grammar")
        bound = (
            f"{self.bound} of {self.requests} answers were bound to {grammar} "
            f"({self.grammar.sha256[:8]}) as the application binds them"
        )
        if not any("forced_tokens" in row for row in self.rows):
            return bound  # an engine elsewhere does not tell what it forced
        counted = f"{self.forced_tokens} of {self.counted_tokens} counted tokens"
        return f"{bound}: {counted} were forced, and are in no AL"


class EvaluatedDrafter(Document):
    """A drafter's version and the longest draft that it makes."""

    version: str
    block: int


class EvaluationMachine(Document):
    """The machine and the form in which the target ran."""

    name: str
    threads: int
    device: str
    dtype: str
    quantize: str | None
    network: str

    @property
    def described(self) -> str:
        form = self.quantize or self.dtype
        return f"{self.name}, {count(self.threads, 'thread')}, {self.device}, {form}"


class Evaluation(Document):
    """The result of `paceline evaluate`: of the engine here on a `machine`, or of an `engine` that
    serves elsewhere."""

    format: Literal["paceline-evaluation/1"] = FORMAT
    date: str
    paceline: str
    model: str
    drafter: str
    drafters: dict[str, EvaluatedDrafter]
    machine: EvaluationMachine | None = None
    engine: EvaluatedEngine | None = None
    settings: Annotated[EvaluationSettings, BeforeValidator(_read_settings)]
    same_text: bool | None
    results: list[SetResult]

    @classmethod
    def from_json(cls, value: object, where: str) -> Evaluation:
        """Read what `as_json` wrote. Raises InvalidRequest: field `evaluation` for another format,
        else the field below `where`."""
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            expected = f"what `paceline evaluate` wrote, in the format {FORMAT}"
            raise InvalidRequest("evaluation", where, expected)
        return cls.read(value, where)

    @classmethod
    def read_file(cls, path: Path, field: str) -> Evaluation:
        """Read the JSON file beside a report. Raises InvalidRequest, `field` where it cannot be
        read."""
        return cls.from_json(read_json_object(path, field), str(path))

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values, as docs/evaluation.md describes them."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def block(self) -> int:
        """The longest draft of the drafter that is evaluated."""
        return self.drafters[DRAFTER].block

    @property
    def names(self) -> dict[str, str]:
        """The drafters as reports call them."""
        names = {kind: f"{kind}, warmed" if kind in WARMED else kind for kind in BASELINES}
        names[DRAFTER] = self.drafter
        return {drafter: names[drafter] for drafter in DRAFTERS if drafter in self.drafters}

    @property
    def beside(self) -> list[str]:
        """The drafters that were measured beside the one that is evaluated."""
        return [drafter for drafter in self.names if drafter != DRAFTER]

    @property
    def served_side(self) -> str:
        """The side whose speed users get: the policy of the engine, where it has one."""
        return POLICY if any(POLICY in result.speed for result in self.results) else BLOCK

    def speed_of(self, result: SetResult, drafter: str) -> SpeedNumbers | None:
        """Return the speed of a drafter with the policy that users get, None where it was not
        timed."""
        side = self.served_side if drafter == DRAFTER else f"{drafter}/{THROUGHPUT}"
        return result.speed.get(side)

    @property
    def gaps(self) -> list[ProductionGap]:
        """The production gap of every drafter at every temperature; [] without foreign prompts."""
        return production_gaps(self.results, self.names, self.settings.temperatures)

    def policy_name(self, side: str) -> str:
        """Return what reports call the policy of a side."""
        return "as served" if self.engine and side == self.served_side else side.split("/")[1]

    @property
    def notes(self) -> list[str]:
        """Sentences that stand above all numbers."""
        return [] if self.engine is None else self.engine.notes

    @property
    def text_is_broken(self) -> bool:
        """Whether a text differs that must not."""
        promised = self.engine is None or self.engine.promises_text
        return self.same_text is False and promised

    def same_text_of(self, result: SetResult, side: str | None = None) -> str:
        """Return `yes`, `NO`, or how many of the answers are equal: those of one side, or all."""
        pairs = [
            [same for name, same in row["same_text"].items() if side in (None, name)]
            for row in result.rows
        ]
        compared = [all(pair) for pair in pairs if pair]
        if not compared:
            return NOTHING
        if self.engine is None or self.engine.promises_text:
            return "yes" if all(compared) else "NO"
        return f"{sum(compared)} of {len(compared)}"

    @property
    def same_text_line(self) -> str:
        if self.same_text is None:
            return "same text: not compared"
        if self.same_text or self.text_is_broken:
            return f"same text: {'yes' if self.same_text else 'NO'}"
        compared = [row for result in self.results for row in result.rows if row["same_text"]]
        equal = sum(all(row["same_text"].values()) for row in compared)
        share = percent(equal / len(compared))
        return f"same text: {equal} of {len(compared)} answers ({share}), which {NO_PROMISE}"

    @property
    def described(self) -> str:
        """One line on the drafter, the model, the settings and the machine."""
        settings, drafter = self.settings, self.drafters[DRAFTER]
        warmed = f", warmed as {' and '.join(WARMED)} is" if settings.warm else ""
        places = [place.described for place in (self.machine, self.engine) if place is not None]
        return (
            f"{self.drafter} ({drafter.version}, drafts of up to {drafter.block}{warmed}) for "
            f"{self.model}; up to {settings.prompts} prompts of each set, up to "
            f"{settings.tokens} new tokens, {count(settings.runs, 'paired run')}; "
            f"{'; '.join(places)}; Paceline {self.paceline}, {self.date[:10]}"
        )

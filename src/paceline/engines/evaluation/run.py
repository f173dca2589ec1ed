"""Ask an engine every prompt by every side, in turns, and make an Evaluation of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from paceline.core import PacelineError
from paceline.core.rounds import AR
from paceline.engines.client import EngineError
from paceline.engines.evaluation.prompts import PromptSource, ServedSet
from paceline.engines.evaluation.rounds import RoundsAnswer, RoundsReader
from paceline.engines.evaluation.rows import ask_of, row_of
from paceline.engines.evaluation.servers import Servers, of_side, sides_of
from paceline.evaluate.measure import Progress, grammar_digest, turned
from paceline.evaluate.numbers import set_numbers
from paceline.evaluate.result import (
    BLOCK,
    DRAFTER,
    EvaluatedDrafter,
    Evaluation,
    EvaluationSettings,
    GrammarDigest,
    RequestRow,
    SetResult,
)
from paceline.evaluate.served import EvaluatedEngine
from paceline.evaluate.sets import SetSpec
from paceline.version import __version__

WARM_UP_TOKENS = 16
UNTOLD = "{} of {} answers tell nothing of their drafts, and no AL is of them: {}."
NO_DRAFTS = "None of {} answers had a draft: {}."
REMEDIES = {
    "vllm": "vLLM drafts with --speculative-config, and tells it with "
    "--per-request-spec-decode-metrics detailed",
    "paceline": "a Paceline server drafts unless it serves with `--drafter none`",
    "sglang": "SGLang drafts with --speculative-algorithm, and tells counts alone",
}


class EvaluationBroke(PacelineError):
    """An engine failed in the middle. `partial` is the evaluation of the answers until then; None
    where there is none."""

    def __init__(self, message: str, partial: Evaluation | None) -> None:
        super().__init__(message)
        self.partial = partial


class EvaluationJob(NamedTuple):
    """One answer to ask for: of a prompt, by its set's and its own index."""

    run: int
    temperature: float
    set: int
    prompt: int
    side: str


@dataclass(slots=True)
class EngineEvaluation:
    """One evaluation. `drafter` is what reports call it, `version` that of its checkpoint where it
    lies here; `source` reads the prompts of `sets`.

    `started(answers)` is called once everything is checked, `progress(what)` after each answer.
    """

    servers: Servers
    source: PromptSource
    drafter: str
    sets: Sequence[SetSpec]
    settings: EvaluationSettings
    version: str = "unknown"
    progress: Progress = lambda what: None
    started: Callable[[int], None] = lambda answers: None
    _answers: dict[tuple[float, int, int], dict[str, list[RoundsAnswer]]] = field(
        default_factory=dict, init=False
    )
    _readers: list[RoundsReader] = field(default_factory=list, init=False)  # of servers in use

    def run(self) -> Evaluation:
        """Measure everything. Raises InvalidRequest before anything is asked when a set does not
        fit, and EvaluationBroke when an engine fails."""
        context = self.servers.engine.description.max_model_len or 2**31
        fits = context - self.settings.tokens
        sets = [self.source.read(spec, self.settings.prompts, fits) for spec in self.sets]
        jobs = list(self._jobs(sets))
        self.started(len(jobs))
        for number, job in enumerate(jobs):
            try:
                self._ask(sets[job.set], job)
            except EngineError as error:
                raise self._broke(sets, job, number, len(jobs), error) from error
            self.progress(f"{sets[job.set].spec.name}, T = {job.temperature:g}")
        return self._evaluation(sets)

    @property
    def model(self) -> str:
        """The target's name here, or the engine's where it is not here."""
        target = self.source.target
        return self.servers.engine.model if target is None else target.name

    def _jobs(self, sets: Sequence[ServedSet]) -> Iterator[EvaluationJob]:
        """Yield all jobs: side by side where all sides can be asked at any time, so that a slower
        machine is slower for each; else all of a side before the next, which takes a restart."""
        sides = sides_of(self.servers)
        places = [
            (temperature, index, prompt)
            for temperature in self.settings.temperatures
            for index, chosen in enumerate(sets)
            for prompt in range(len(chosen.prompts))
        ]
        for run in range(self.settings.runs):
            if self.servers.together:
                for number, place in enumerate(places):
                    for side in turned(sides, run + number):
                        yield EvaluationJob(run, *place, side)
            else:
                for side in sides[::-1] if run % 2 == 0 else sides:
                    for place in places:
                        yield EvaluationJob(run, *place, side)

    def _ask(self, chosen: ServedSet, job: EvaluationJob) -> None:
        client, prompt = self.servers.client(job.side), chosen.prompts[job.prompt]
        seed = self.settings.seed + job.prompt
        ask = of_side(client, job.side, ask_of(prompt, self.settings.tokens, job.temperature, seed))
        reader = next((reader for reader in self._readers if reader.client is client), None)
        if reader is None:  # what is lazy is paid for before anything is timed
            reader = RoundsReader(client)
            self._readers.append(reader)
            reader.ask(replace(ask, max_tokens=WARM_UP_TOKENS))
        answer = reader.ask(ask)
        sides = self._answers.setdefault((job.temperature, job.set, job.prompt), {})
        sides.setdefault(job.side, []).append(answer)

    # -- what comes of the answers ----------------------------------------------------------------

    def _broke(
        self, sets: Sequence[ServedSet], job: EvaluationJob, done: int, of: int, error: EngineError
    ) -> EvaluationBroke:
        """Say which engine failed, and where; put what was measured beside it."""
        who = "the engine" if job.side != AR else "the server without speculation"
        chosen = sets[job.set]
        name = chosen.prompts[job.prompt].name
        where = f"{chosen.spec.name}, {name}, T = {job.temperature:g}"
        told = self.servers.failure(error)
        why = f"{who} failed after {done} of {of} answers, at {where}: {told}"
        partial = self._evaluation(sets, why) if self._rows_by_set(sets) else None
        return EvaluationBroke(why, partial)

    def _rows_by_set(self, sets: Sequence[ServedSet]) -> dict[tuple[float, int], list[RequestRow]]:
        """Return the rows of the prompts that the engine has answered, by temperature and set. The
        last run counts only where every side has it."""
        rows: dict[tuple[float, int], list[RequestRow]] = {}
        for (temperature, index, number), sides in sorted(self._answers.items()):
            if BLOCK not in sides:
                continue
            runs = min(map(len, sides.values()))
            whole = {side: answers[:runs] for side, answers in sides.items()}
            prompt, seed = sets[index].prompts[number], self.settings.seed + number
            rows.setdefault((temperature, index), []).append(row_of(prompt, whole, seed))
        return rows

    def _evaluation(self, sets: Sequence[ServedSet], broke_off: str | None = None) -> Evaluation:
        by_set = self._rows_by_set(sets)
        rows = [row for of_set in by_set.values() for row in of_set]
        drafted = [r[1] for row in rows for side in row["rounds"].values() for r in side]
        block = max(drafted, default=self.servers.engine.description.draft_len or 1)
        results = [
            self._result(sets[index], temperature, by_set[temperature, index], block)
            for temperature in self.settings.temperatures
            for index in range(len(sets))
            if (temperature, index) in by_set
        ]
        texts = [result.same_text for result in results if result.same_text is not None]
        return Evaluation(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            paceline=__version__,
            model=self.model,
            drafter=self.drafter,
            drafters={DRAFTER: EvaluatedDrafter(version=self.version, block=block)},
            engine=self._described(block, broke_off),
            settings=self.settings,
            same_text=all(texts) if texts else None,
            results=results,
        )

    def _result(
        self, chosen: ServedSet, temperature: float, rows: list[RequestRow], block: int
    ) -> SetResult:
        grammar = chosen.grammar
        shown = (
            GrammarDigest(kind=grammar.kind, sha256=grammar_digest(grammar)) if grammar else None
        )
        return SetResult(
            set=chosen.spec.name,
            role=chosen.spec.role,
            choice=chosen.spec.choice,
            temperature=temperature,
            left_out=chosen.left_out,
            warmed="",
            grammar=shown,
            rows=rows,
            **dict(set_numbers(rows, {DRAFTER: block}, self.settings.tokens)),
        )

    def _described(self, block: int, broke_off: str | None) -> EvaluatedEngine:
        told = self.servers.engine.description
        answers = [each for sides in self._answers.values() for each in sides.get(BLOCK, ())]
        untold = sum(each.rounds is None for each in answers)
        drafts = sum(round.drafted > 0 for each in answers for round in each.rounds or ())
        missing, remedy = list(self.source.missing), REMEDIES.get(told.kind, "")
        if untold:
            missing.append(UNTOLD.format(untold, len(answers), remedy))
        elif not drafts:
            missing.append(NO_DRAFTS.format(len(answers), remedy))
        return EvaluatedEngine(
            kind=told.kind,
            version=told.version,
            draft_len=told.draft_len or block,
            prompts=self.source.form,
            reference=self.servers.reference,
            promises_text=self.servers.engine.kind.traits.promises_text,
            missing=missing,
            broke_off=broke_off,
        )

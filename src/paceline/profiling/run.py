"""Record the real engine on real prompts: plain decoding, then speculation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import median

from paceline.bench.load.answers import fresh_requests
from paceline.core import InvalidRequest, PacelineError, SamplingParams, SpeculativeParams
from paceline.core.spans import OFF, Recording
from paceline.drafters.base import Networked, Recorded
from paceline.engine.config import EngineConfig
from paceline.engine.driver import Driver
from paceline.engine.engine import Engine
from paceline.engine.peak import matmul_peak
from paceline.models.networks import DTYPES
from paceline.profiling.gaps import Bandwidth, Roof
from paceline.profiling.tree import Steps, gather

ENGINE = "engine"  # the lane of the engine's thread
AR, SPECULATIVE = "AR", "speculative"
WARM_UP = 8  # tokens that are answered before anything counts: the first ones pay for what is lazy
READ_EVERY = 8  # decode steps between two read loops, so that both see the same machine


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """The passes to record: `steps` decode steps of `batch` requests at once in each. Raises
    InvalidRequest naming the field."""

    params: SamplingParams
    speculative: object = None
    batch: int = 1
    steps: int = 100

    def __post_init__(self) -> None:
        for name in ("batch", "steps"):
            if getattr(self, name) < 1:
                raise InvalidRequest(name, getattr(self, name), "a whole number of at least 1")
        if self.params.max_tokens is not None and self.params.max_tokens < 2:
            expected = "at least 2: the first token comes with the prompt, without a decode step"
            raise InvalidRequest("max_tokens", self.params.max_tokens, expected)
        SpeculativeParams.parse(self.speculative)

    def check(self, config: EngineConfig) -> None:
        """Raise InvalidRequest where the engine of this config cannot follow the plan."""
        if self.batch > config.max_num_seqs:
            expected = f"at most --max-num-seqs, {config.max_num_seqs}"
            raise InvalidRequest("batch", self.batch, expected)
        if config.device != "cpu":
            # Kernels of a GPU run later: the host's clock would time their launches.
            raise InvalidRequest(
                "device", config.device, "cpu: spans are taken on the host's clock"
            )


@dataclass(slots=True)
class Pass:
    """One way to answer the prompts, recorded. `tokens` are the answers, cut where it ended."""

    name: str
    recording: Recording = field(default_factory=Recording)
    reads: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)

    def steps(self) -> Steps:
        return gather(self.recording.lanes[0].spans())


def record(engine: Engine, prompts: Sequence[list[int]], plan: ProfilePlan) -> list[Pass]:
    """Record the passes that an engine can make: with speculation only if it has a drafter."""
    passes = {AR: SpeculativeParams.parse("off")}
    if engine.default_drafter is not None and plan.speculative != "off":
        passes[SPECULATIVE] = SpeculativeParams.parse(plan.speculative)
    recorded = []
    for name, speculation in passes.items():
        _warm_up(engine, prompts[0], speculation)
        recorded.append(_recorded(engine, prompts, plan, Pass(name), speculation))
    return recorded


def roof_of(engine: Engine, recorded: Pass, peak: float | None) -> Roof:
    """Return the limits by which a pass is judged, with the read loops between its own steps."""
    streamed, reads = engine.runner.network.streamed_bytes, recorded.reads
    itemsize = 1 if engine.config.quantize else DTYPES[engine.config.dtype].itemsize
    return Roof(Bandwidth(streamed, median(reads), len(reads)), peak, itemsize)


def peak_of(engine: Engine) -> float | None:
    """Return the operations per second of a large product in the target's dtype, with its threads;
    None for int8 weights, because torch has no fast product of those to compare with."""
    config = engine.config
    return None if config.quantize else matmul_peak(DTYPES[config.dtype], config.device)


def drafter_network(engine: Engine) -> Recorded | None:
    """Return the network of the default drafter, None where it runs none."""
    drafter = engine.drafters.get(engine.default_drafter or "")
    return drafter.network if isinstance(drafter, Networked) else None


def _warm_up(engine: Engine, prompt: list[int], speculation: SpeculativeParams) -> None:
    params = SamplingParams(max_tokens=WARM_UP, temperature=0)
    for _ in Driver(engine).run(fresh_requests(engine, prompt, params, speculation)):
        pass
    engine.runner.network.read_weights()


def _recorded(
    engine: Engine,
    prompts: Sequence[list[int]],
    plan: ProfilePlan,
    recorded: Pass,
    speculation: SpeculativeParams,
) -> Pass:
    lane = recorded.recording.lane(ENGINE)
    # Answers may end with their first token; so many prompts are enough for any model that talks.
    queue = islice(cycle(prompts), plan.steps + plan.batch)
    answers: dict[str, list[int]] = {}
    driver, decoded = Driver(engine), 0
    engine.record(lane)
    try:
        while decoded < plan.steps:
            for prompt in islice(queue, plan.batch - driver.open):
                requests = fresh_requests(engine, prompt, plan.params, speculation)
                driver.queue(requests)
                answers.update((request.id, []) for request in requests)
            if not driver.open:
                break
            lane.latest = None
            for delta in driver.step():
                answers[delta.request_id] += delta.token_ids
            if lane.latest is not None and not lane.latest["prompt_rows"]:
                decoded += 1
                if decoded % READ_EVERY == 1:
                    recorded.reads.append(driver.read_seconds())
    finally:
        engine.record(OFF)
        driver.close()
    if not decoded:
        raise PacelineError("no decode step to profile: every answer ended with its first token")
    recorded.tokens = list(answers.values())
    return recorded

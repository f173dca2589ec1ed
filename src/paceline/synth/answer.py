"""Requests to the target, its answers, and what answers them: any Answerer, or an engine of our
own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from paceline.core import FinishReason, Request, SamplingParams
from paceline.core.drafts import KVSpec
from paceline.dataset.loops import LOOP_TOKENS, looping
from paceline.engine.config import EngineConfig
from paceline.engine.machine import available_memory
from paceline.engine.memory import KV_SHARE
from paceline.llm import LLM
from paceline.models.config import ModelConfig
from paceline.synth.row_batch import LOOK

CUT = "cut at loops"  # in the name of what cuts answers there: others write other sets
AHEAD = 2  # batches of requests that the engine holds: no step begins with an empty place


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `prompt_ids` are what serving sends; `messages` are the same for a server that
    renders them itself. `bound` asks for the application's grammar or tools; `tools` are those of
    the prompt, which the answer is free to call. An answer that is `cut_at_loop` ends at the first
    multiple of LOOK tokens where its last tokens loop (dataset.loops), as if it had reached its
    longest length: nothing is learnt from a loop."""

    index: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    messages: tuple[Mapping[str, str], ...]
    bound: bool = False
    tools: tuple[Mapping[str, object], ...] = ()
    cut_at_loop: bool = False


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """The answer to an Ask. `ids` are the tokens that the target said, its end of turn included.
    `fault` is the reason why an answer cannot be used, under which it is counted."""

    index: int
    ids: tuple[int, ...] = ()
    finish_reason: str = ""
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed since the start: `tokens` generated in `seconds`, by `batch` requests at once in
    the mean, after reading `prompt_tokens` that were not in the prefix cache."""

    tokens: int
    prompt_tokens: int
    seconds: float
    batch: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, float]:
        return {
            "generated_tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
            "mean_batch": round(self.batch, 1),
        }


class Answerer(Protocol):
    """Answers requests in any order, several at once. `what` names it in the manifest: another
    answerer would write another text. `capacity` is the number of requests that it still takes."""

    what: str

    @property
    def capacity(self) -> int: ...
    def submit(self, ask: Ask) -> None: ...
    def wait(self) -> Sequence[TargetAnswer]:
        """Block until at least one request is answered."""
        ...

    def speed(self) -> Speed: ...
    def close(self) -> None: ...


class EngineAnswerer:
    """Answers requests with an engine of its own, whose batch is kept full: a request takes the
    place of a finished request at the very next step. A request that the engine fails to answer is
    a fault of that request, not of the run."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises ModelError or InvalidRequest, as LLM does."""
        self._driver = LLM(config=config).driver
        self._engine = self._driver.engine
        self._most = AHEAD * config.max_num_seqs
        self._open: dict[str, tuple[Ask, Request, list[int]]] = {}
        self._generated = self._steps = self._running = 0
        self._started, self._seconds = 0.0, 0.0
        parts = (config.dtype, config.quantize, config.device, self._engine.backend, CUT)
        self.what = "engine: " + ", ".join(part for part in parts if part)

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def capacity(self) -> int:
        return self._most - self.in_flight

    def submit(self, ask: Ask) -> None:
        self._started = self._started or time.perf_counter()
        (request,) = self._engine.make_requests(
            list(ask.prompt_ids), ask.params, request_id=f"synth-{ask.index}"
        )
        self._open[request.id] = (ask, request, [])
        self._driver.queue([request])

    def wait(self) -> list[TargetAnswer]:
        answers: list[TargetAnswer] = []
        while self._open and not answers:
            deltas = self._driver.step()
            self._seconds = time.perf_counter() - self._started  # the time between steps included
            self._steps += 1
            self._running += self._engine.stats().running + sum(d.finished for d in deltas)
            for delta in deltas:
                if delta.request_id not in self._open:
                    continue  # it was cut by the delta before
                self._generated += len(delta.token_ids)
                ask, request, ids = self._open[delta.request_id]
                loops = ask.cut_at_loop and loop_cut(ids, delta.token_ids)
                ids += delta.token_ids
                reason = delta.finish_reason
                if loops and (reason is None or loops < len(ids)):
                    self._driver.drop([request])
                    del ids[loops:]
                    reason = FinishReason.LENGTH
                if reason is not None:
                    del self._open[delta.request_id]
                    fault = "grammar_failed" if reason is FinishReason.ERROR else None
                    answers.append(TargetAnswer(ask.index, tuple(ids), reason.value, fault))
        if not self._open:
            self._engine.check_integrity()
        return answers

    def speed(self) -> Speed:
        stats = self._engine.stats()
        prompt = stats.prompt_tokens - stats.prefix_hits
        batch = self._running / self._steps if self._steps else 0.0
        return Speed(self._generated, prompt, self._seconds, batch)

    def close(self) -> None:
        self._driver.close()
        self._open.clear()


def loop_cut(ids: Sequence[int], added: Sequence[int]) -> int:
    """Return the length at which an answer, `ids` and now `added`, is to be cut since it loops; 0
    where it is not."""
    first, end = len(ids) // LOOK * LOOK + LOOK, len(ids) + len(added)
    if first > end:
        return 0
    both = np.array([*ids, *added])
    for length in range(first, end + 1, LOOK):
        tail = no_text(1)
        kept = both[max(0, length - LOOP_TOKENS) : length]
        tail[0, LOOP_TOKENS - len(kept) :] = kept
        if looping(tail)[0]:
            return length
    return 0


def no_text(texts: int) -> np.ndarray:
    """Return the tails of texts without a token, as dataset.loops.looping() takes them: int64
    [texts, LOOP_TOKENS]."""
    return np.tile(np.arange(-LOOP_TOKENS - 1, -1), (texts, 1))


def full_batch(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """Return the same configuration with KV for a full batch of the longest rows, as far as memory
    allows: a server's plan has KV for a few of them only."""
    if config.kv_memory is not None:
        return config
    size = 4 if config.dtype == "float32" else 2
    spec = KVSpec(model.num_layers, model.num_kv_heads, model.head_dim, size)
    context = config.max_model_len or model.max_context
    wanted = config.max_num_seqs * context * spec.bytes_per_token
    return replace(config, kv_memory=min(wanted, int(available_memory() * KV_SHARE)))

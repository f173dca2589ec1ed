"""Answers from our own engine. Its batch is kept full: a request takes the place of a finished
request at the very next step."""

from __future__ import annotations

import time
from dataclasses import replace

from paceline.core import FinishReason
from paceline.core.drafts import KVSpec
from paceline.engine.config import EngineConfig
from paceline.engine.machine import available_memory
from paceline.engine.memory import KV_SHARE
from paceline.llm import LLM
from paceline.models.config import ModelConfig
from paceline.synth.answer import Ask, Speed, TargetAnswer

AHEAD = 2  # batches of requests that the engine holds: no step begins with an empty place


class EngineAnswerer:
    """Answers requests with an engine of its own. A request that the engine fails to answer is a
    fault of that request, not of the run."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises ModelError or InvalidRequest, as LLM does."""
        self._driver = LLM(config=config).driver
        self._engine = self._driver.engine
        self._most = AHEAD * config.max_num_seqs
        self._tokens: dict[str, tuple[int, list[int]]] = {}
        self._generated = self._steps = self._running = 0
        self._started, self._seconds = 0.0, 0.0
        parts = (config.dtype, config.quantize, config.device, self._engine.backend)
        self.what = "engine: " + ", ".join(part for part in parts if part)

    @property
    def in_flight(self) -> int:
        return len(self._tokens)

    @property
    def capacity(self) -> int:
        return self._most - self.in_flight

    def submit(self, ask: Ask) -> None:
        self._started = self._started or time.perf_counter()
        (request,) = self._engine.make_requests(
            list(ask.prompt_ids), ask.params, request_id=f"synth-{ask.index}"
        )
        self._tokens[request.id] = (ask.index, [])
        self._driver.queue([request])

    def wait(self) -> list[TargetAnswer]:
        answers: list[TargetAnswer] = []
        while self._tokens and not answers:
            deltas = self._driver.step()
            self._seconds = time.perf_counter() - self._started  # the time between steps included
            self._steps += 1
            self._running += self._engine.stats().running + sum(d.finished for d in deltas)
            for delta in deltas:
                self._generated += len(delta.token_ids)
                index, ids = self._tokens[delta.request_id]
                ids += delta.token_ids
                if delta.finish_reason is not None:
                    del self._tokens[delta.request_id]
                    failed = delta.finish_reason is FinishReason.ERROR
                    fault = "grammar_failed" if failed else None
                    answers.append(
                        TargetAnswer(index, tuple(ids), delta.finish_reason.value, fault)
                    )
        if not self._tokens:
            self._engine.check_integrity()
        return answers

    def speed(self) -> Speed:
        stats = self._engine.stats()
        prompt = stats.prompt_tokens - stats.prefix_hits
        batch = self._running / self._steps if self._steps else 0.0
        return Speed(self._generated, prompt, self._seconds, batch)

    def close(self) -> None:
        self._driver.close()
        self._tokens.clear()


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

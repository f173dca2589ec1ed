"""Engines over the tiny model with a DFlash drafter that is watched: what it drafted from is
recorded, and judged by the training form."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import torch

from paceline.core import DraftBatch, Request, SamplingParams, SpeculativeParams
from paceline.drafters.reference import Recorder, Trained
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.models.loader import LoadedModel
from paceline.models.network import TorchNetwork
from tests.engine.tiny import tiny_config, tiny_model
from tests.random_weights import random_weights

SIZES = {"max_model_len": 240, "token_budget": 24, "max_num_seqs": 24}


def make_engine(drafter: Any, loaded: LoadedModel | None = None, **options: Any) -> Engine:
    fixed = {"backend": "torch", "dtype": "float32", "threads": 1, "draft_policy": "fixed"}
    config = EngineConfig(model="tiny", drafter=drafter, **(fixed | options))
    return build_engine(config, loaded or tiny_model("float32"))


def tiny_target(**changes: Any) -> TorchNetwork:
    config = tiny_config(**changes)
    target = TorchNetwork(config, random_weights(config, 0), "cpu", torch.float32)
    target.allocate_kv(64)
    return target


class Planter(Recorder):
    """Plants true tokens among the drafts, so that some are accepted."""

    def __init__(self, drafter: Any, truth: dict[tuple[int, ...], list[int]], rate: float) -> None:
        super().__init__(drafter)
        self._truth, self._rate, self._rng = truth, rate, random.Random(3)

    def propose(self, requests: Any, lengths: Any) -> Any:
        proposed = super().propose(requests, lengths)
        for request, tokens in zip(requests, proposed.tokens, strict=True):
            known = self._truth.get(tuple(request.prompt_ids), [])
            for index in range(len(tokens)):
                at = request.output_len + index
                if at < len(known) and self._rng.random() < self._rate:
                    tokens[index] = known[at]
        return proposed


def watch(engine: Engine, truth: dict[tuple[int, ...], list[int]], rate: float = 0.8) -> Planter:
    (name,) = engine.drafters
    watched = Planter(engine.drafters[name], truth, rate)
    engine.drafters[name] = engine.drafting.drafters[name] = watched  # type: ignore[index]
    return watched


def watch_dflash(
    engine: Engine, truth: dict[tuple[int, ...], list[int]], rate: float = 0.8
) -> Planter:
    """The same for the DFlash part of a hybrid."""
    (name,) = engine.drafters
    hybrid: Any = engine.drafters[name]
    hybrid.dflash = watched = Planter(hybrid.dflash, truth, rate)
    return watched


def look_up_first(drafter: Any, requests: list[Request], lengths: list[int]) -> DraftBatch:
    """Return each request's draft of a round, asked for as the engine asks."""
    found, enough = drafter.look_up(requests, lengths)
    found.q = [None] * len(requests)
    asked = [index for index, is_enough in enumerate(enough) if not is_enough]
    if asked:
        drafted = drafter.propose([requests[i] for i in asked], [lengths[i] for i in asked])
        for row, index in enumerate(asked):
            if drafted.is_wanted(row):
                found.tokens[index], found.q[index] = drafted.tokens[row], drafted.q_rows(row)
                found.confidence[index] = drafted.confidence[row]
    return found


def jobs(count: int) -> list[tuple[list[int], SamplingParams]]:
    rng = random.Random(5)
    shared = [rng.randrange(256) for _ in range(40)]
    made = []
    for index in range(count):
        prompt = (shared if index % 3 == 0 else []) + [
            rng.randrange(256) for _ in range(rng.randrange(3, 70))
        ]
        temperature = 0.0 if index % 2 else 1.0
        options = {"temperature": temperature, "seed": index, "ignore_eos": True}
        made.append((prompt, SamplingParams(max_tokens=rng.randrange(20, 100), **options)))
    return made


@cache
def answers_of_jobs(count: int) -> list[list[int]]:
    """The outputs of jobs(count) without drafts and without the prefix cache, one by one."""
    return run(make_engine(None, prefix_cache=False), jobs(count), together=1)


def run(engine: Engine, work: list[Any], together: int, **wishes: Any) -> list[list[int]]:
    waiting, running, done = list(enumerate(work)), [], {}
    while waiting or engine.has_work:
        while waiting and len(running) < together:
            index, (prompt, params) = waiting.pop(0)
            (request,) = engine.make_requests(
                prompt, params, SpeculativeParams(**wishes), request_id=f"{id(work)}.{index}"
            )
            running.append(request)
            done[index] = request
            engine.add([request])
        engine.step()
        running = [request for request in running if request.finish_reason is None]
    engine.check_integrity()
    return [done[index].output_ids for index in range(len(work))]


def check_drafts(watched: Planter, window: int | None = None) -> None:
    """Every recorded draft against the training form over the whole sequence."""
    texts: dict[str, list[int]] = {}
    for draft in watched.drafts:
        texts[draft.request] = max(texts.get(draft.request, []), draft.tokens, key=len)
    trained = Trained(tiny_target(), watched, texts)
    for draft in watched.drafts:
        anchor, count = len(draft.tokens) - 1, len(draft.logits)
        (expected,) = trained.logits(
            watched.config, draft.request, torch.tensor([anchor]), count, draft.first
        )
        torch.testing.assert_close(draft.logits, expected, rtol=1e-4, atol=1e-4)
        if window is not None:
            assert draft.first == max(0, anchor - window)

"""Combinations drawn by lot: drafter x draft length x batch x memory x policy x temperature.

What test_streams.py shows one by one must hold for any mix. The truth is the request alone, without
speculation or prefix cache, on the same backend.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.costs import Costs
from paceline.engine.engine import Engine
from paceline.engine.step_cost import StepCost
from tests.drafters.watched import watch, watch_dflash
from tests.engine.test_streams import Finished, dflash_truth, expected, jobs, run
from tests.engine.tiny import EngineFactory, save_tiny
from tests.models.dflash.tiny import write_drafter

MOST = 15
DRAFTERS = {
    "ngram": f"ngram,max_draft_len={MOST}",
    "suffix": f"suffix,max_draft_len={MOST}",
    "auto": f"auto,max_draft_len={MOST}",
    "draft_model": f"small=draft_model:{{}},max_draft_len={MOST},min_token_prob=0.2",
    "replay": f"replay,al=4,max_draft_len={MOST}",
    "dflash": f"d={{}}/dflash,max_draft_len={MOST}",
    "hybrid": f"h=hybrid:{{}}/dflash,max_draft_len={MOST}",
}
CHUNKS = {"max_model_len": 240, "token_budget": 24, "max_num_seqs": 24}
BLOCKS = 15  # for up to eight requests of up to ten blocks each

# Forty-nine of 4032 mixes, on one backend: the single features are tested on each.
one_backend = pytest.mark.parametrize(
    "make_engine", [("native", "bfloat16", "cpu")], ids=["native-bfloat16"], indirect=True
)


@dataclass(frozen=True)
class Mix:
    drafter: str
    length: int
    together: int
    stress: str  # none; chunks of a few rows; memory for a few requests, with chunks
    policy: str
    temperature: float

    def __str__(self) -> str:
        return (
            f"{self.drafter}-{self.length}-batch{self.together}-{self.stress}-{self.policy}"
            f"-T{self.temperature:g}"
        )


def drawn_mixes(count: int) -> list[Mix]:
    rng = random.Random(20)
    return [
        Mix(
            drafter=list(DRAFTERS)[i % len(DRAFTERS)],
            length=rng.randrange(MOST + 1),
            together=rng.choice([1, 8]),
            stress=rng.choice(["none", "chunks", "memory"]),
            policy=rng.choice(["fixed", "throughput"]),
            temperature=rng.choice([0.0, 1.0]),
        )
        for i in range(count)
    ]


# What users run by default, with everything else against it.
CHOSEN = [
    Mix(drafter, 7, 8, "memory", "throughput", temperature)
    for drafter in ("draft_model", "hybrid")
    for temperature in (0.0, 1.0)
]


def work_at(temperature: float) -> list[Any]:
    """Eight jobs, three of which come twice: with the same seed, so the answer is in the cache."""
    work = jobs(8, seed=5, longest=110)
    work = [(prompt, replace(params, temperature=temperature)) for prompt, params in work]
    return work + work[:3]


def build(make_engine: EngineFactory, mix: Mix, folder: Path, truth: list[Finished]) -> Engine:
    write_drafter(folder / "dflash", block=MOST + 1, second=mix.together > 1)
    spec = DRAFTERS[mix.drafter].format(save_tiny(folder))
    sizes: dict[str, Any] = {"draft_policy": mix.policy}
    if mix.stress != "none":
        sizes |= CHUNKS
    if mix.stress == "memory":
        per_token = make_engine(spec, **sizes).plan.kv_bytes_per_token
        sizes["kv_memory"] = per_token * 16 * BLOCKS
    engine = make_engine(spec, **sizes)
    if mix.policy != "fixed":
        # Steps so long that drafting costs nothing beside them, and rows that cost at some point:
        # drafts are made and cut on any machine.
        engine.drafting.use(Costs(StepCost([1, 12, 64], [10.0, 11.0, 60.0])))
    if mix.drafter == "dflash":
        watch(engine, dflash_truth(truth, work_at(mix.temperature)))
    if mix.drafter == "hybrid":
        watch_dflash(engine, dflash_truth(truth, work_at(mix.temperature)))
    if mix.drafter == "replay":
        said = iter(truth)
        for prompt, params in work_at(mix.temperature):
            for choice in range(params.n):
                engine.drafters["replay"].learn(prompt, next(said).tokens, choice=choice)
    return engine


@one_backend
@pytest.mark.parametrize("mix", [*drawn_mixes(49), *CHOSEN], ids=str)
def test_any_mix_gives_the_same_streams(
    make_engine: EngineFactory, tmp_path: Path, mix: Mix
) -> None:
    work = work_at(mix.temperature)
    truth = expected(make_engine, work)
    engine = build(make_engine, mix, tmp_path, truth)
    got = run(engine, work, together=mix.together, max_draft_len=mix.length)
    assert got == truth
    stats = engine.stats()
    assert (stats.speculation.accepted_tokens > 0) == (mix.length > 0)
    assert stats.prefix_hits > 0
    if mix.stress == "memory" and mix.together > 1:
        assert stats.preemptions > 0
    if mix.stress != "memory" and mix.together == 1:
        # With nobody beside it and room for everything, what a request finds in the cache is what
        # those before it have said.
        plain = make_engine(**{"prefix_cache": True, **(CHUNKS if mix.stress == "chunks" else {})})
        assert [f.cached for f in got] == [f.cached for f in run(plain, work, together=1)]


@one_backend
@pytest.mark.parametrize("together", [3, 12])
def test_usage_of_every_choice_under_preemption(
    make_engine: EngineFactory, tmp_path: Path, together: int
) -> None:
    work = [
        (prompt, replace(params, n=3, temperature=1.0))
        for prompt, params in jobs(6, seed=5, longest=110)
    ]
    mix = Mix("draft_model", 7, together, "memory", "throughput", 1.0)
    engine = build(make_engine, mix, tmp_path, [])
    got = run(engine, work, together=together)
    assert got == expected(make_engine, work)
    assert engine.stats().preemptions > 0
    for index, finished in enumerate(got):
        prompt, params = work[index // 3]
        _, _, prompt_tokens, completion_tokens = finished.end
        assert prompt_tokens == len(prompt)
        assert completion_tokens == len(finished.tokens) <= params.max_tokens
        assert finished.cached % 16 == 0 and finished.cached < len(prompt)

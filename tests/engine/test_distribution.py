"""`token` and `block` through the real engine: another stream, the same distribution.

A chi-square test of the first three output tokens over many seeds against the law that the
network's own logits give: the prompt's step chooses the first, drafts of two cover the others.
Thresholds are at 1e-9: a correct engine never fails, the controls always (the weakest one has
6e-21).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from paceline.core import DraftBatch, SamplingParams, SpeculativeParams
from paceline.drafters.base import TargetInfo
from paceline.drafters.kinds import KINDS, register
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.engine import Engine
from paceline.engine.lengths import LengthController, ThroughputLengths
from paceline.engine.step_cost import StepCost
from paceline.kernels import ops
from tests.engine.conftest import BACKENDS, NATIVE_RUNS
from tests.engine.tiny import EngineFactory, save_tiny
from tests.models.dflash.tiny import write_drafter

DRAWS, LENGTH = 2000, 3
PROMPT = [5, 9, 200, 31, 7]
PARAMS = {"temperature": 1.0, "top_k": 6, "max_tokens": 4, "ignore_eos": True}


class FlatDrafter:
    """Draws from a flat law over a few tokens, and says so; or claims another q (the control)."""

    name, version, max_draft_len, feature_layers, kv, lookback = "flat", "1", 2, (), None, 0
    parallel, weight_bytes, reach = False, 0, None

    def __init__(self, tokens: list[int], honest: bool = True) -> None:
        self.tokens, self.honest = tokens, honest

    def attach(self, target: TargetInfo) -> None: ...
    def begin(self, requests, held) -> None: ...
    def observe(self, rows) -> None: ...
    def release(self, requests) -> None: ...

    def propose(self, requests, lengths) -> DraftBatch:
        tokens, q = [], []
        for request, length in zip(requests, lengths, strict=True):
            row = torch.zeros(256, dtype=torch.float64)
            row[self.tokens] = 1 / len(self.tokens)
            drawn = [
                ops.gumbel_argmax(
                    row.log().float(),
                    inv_temperature=1.0,
                    seed=request.seed,
                    choice=request.choice,
                    position=request.position + i,
                    round_start=request.position,
                    role=ops.ROLE_DRAFT,
                )
                for i in range(length)
            ]
            claimed = row if self.honest else torch.full((256,), 1 / 256, dtype=torch.float64)
            tokens.append(drawn)
            q.append([claimed] * length)
        return DraftBatch(tokens, q)


def likely(engine: Engine, context: list[int]) -> dict[int, float]:
    """The processed law after `context`: what one step of the engine itself would draw from."""
    params = SamplingParams(**{**PARAMS, "max_tokens": 1, "logprobs": 20})
    (request,) = engine.make_requests(
        context, params, SpeculativeParams(off=True), request_id=f"law{context}"
    )
    engine.add([request])
    (delta,) = engine.step()
    top = delta.logprobs[0].top[: PARAMS["top_k"]]
    weights = np.exp([p for _, p in top])
    return dict(zip([t for t, _ in top], (weights / weights.sum()).tolist(), strict=True))


def law(engine: Engine, context: list[int], length: int) -> dict[tuple[int, ...], float]:
    """Of the next `length` tokens, by the chain rule."""
    if length == 0:
        return {(): 1.0}
    return {
        (token, *rest): p * p_rest
        for token, p in likely(engine, context).items()
        for rest, p_rest in law(engine, [*context, token], length - 1).items()
    }


def p_value(engine: Engine) -> float:
    """Of the first LENGTH tokens' counts over DRAWS seeds."""
    truth = law(engine, PROMPT, LENGTH)
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, DRAWS, 50):
        got: dict[str, list[int]] = {}
        for seed in range(start, start + 50):
            params = SamplingParams(**PARAMS, seed=seed)
            requests = engine.make_requests(PROMPT, params, request_id=str(seed))
            got[requests[0].id] = []
            engine.add(requests)
        while engine.has_work:
            for delta in engine.step():
                got[delta.request_id] += delta.token_ids
        counts.update(tuple(tokens[:LENGTH]) for tokens in got.values())
    assert set(counts) <= set(truth), "a token outside the kept set was drawn"
    common = [tokens for tokens, p in truth.items() if p * DRAWS >= 5]
    seen = [counts[tokens] for tokens in common] + [DRAWS - sum(counts[t] for t in common)]
    wanted = [truth[tokens] * DRAWS for tokens in common]
    wanted.append(DRAWS - sum(wanted))
    cells = [(s, w) for s, w in zip(seen, wanted, strict=True) if w > 1e-9]
    statistic = sum((s - w) ** 2 / w for s, w in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


@pytest.fixture(autouse=True)
def flat(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(KINDS, "flat", KINDS["ngram"])  # taken out afterwards
    register("flat")(lambda spec, context: FlatDrafter([1, 2, 3, 4]))


def candidates(engine: Engine) -> list[int]:
    """Eight of the target's own: of drafts among them a good share is accepted."""
    first = list(likely(engine, PROMPT))
    second = list(itertools.chain(*(likely(engine, [*PROMPT, a]) for a in first[:3])))
    return list(dict.fromkeys(first[:4] + second))[:8]


def engine_with(make_engine: EngineFactory, rule: str, honest: bool) -> Engine:
    engine = make_engine("flat", rule=rule, max_num_seqs=50, token_budget=2048)
    engine.drafters["flat"].tokens = candidates(engine)
    engine.drafters["flat"].honest = honest
    return engine


def on_all_backends(rules: list[str], eager: list[str]) -> pytest.MarkDecorator:
    """Each rule on each backend. The law does not depend on the backend, and eager PyTorch is
    slow: where the native network runs, `make test` takes eager with the rules `eager` alone."""
    cases = []
    for backend, rule in itertools.product(BACKENDS, rules):
        (runs,) = backend.values
        twin = NATIVE_RUNS and runs[0] == "torch" and runs[2] == "cpu" and rule not in eager
        marks = [*backend.marks, *([pytest.mark.slow] if twin else [])]
        cases.append(pytest.param(runs, rule, id=f"{backend.id}-{rule}", marks=marks))
    return pytest.mark.parametrize(("make_engine", "rule"), cases, indirect=["make_engine"])


@on_all_backends(["match", "token", "block"], eager=["block"])
def test_distribution_is_the_targets(make_engine: EngineFactory, rule: str) -> None:
    engine = engine_with(make_engine, rule, honest=True)
    assert p_value(engine) > 1e-9
    stats = engine.stats()
    assert stats.speculation.accepted_tokens > 0.02 * stats.speculation.draft_tokens


@on_all_backends(["token", "block"], eager=[])
def test_control_a_draft_that_lies_about_its_q_is_rejected(
    make_engine: EngineFactory, rule: str
) -> None:
    assert p_value(engine_with(make_engine, rule, honest=False)) < 1e-9


# -- a draft model that samples -------------------------------------------------------------------

one_backend = pytest.mark.parametrize(
    "make_engine", [("native", "bfloat16", "cpu")], ids=["native-bfloat16"], indirect=True
)


def sampling_engine(make_engine: EngineFactory, folder: Path, rule: str) -> Engine:
    drafter = f"small=draft_model:{save_tiny(folder)},max_draft_len=3,min_token_prob=0.02"
    return make_engine(drafter, rule=rule, max_num_seqs=50, token_budget=2048)


class Dear(DraftCost):
    """Drafting costs so much that the length hangs on what became of the drafts before."""

    def propose(self, lengths: Sequence[int]) -> float:
        return 0.2 * max(lengths, default=0)


@one_backend
@pytest.mark.parametrize("policy", ["fixed", "throughput"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_sampling_draft_model_keeps_the_distribution(
    make_engine: EngineFactory, tmp_path: Path, rule: str, policy: str
) -> None:
    engine = sampling_engine(make_engine, tmp_path, rule)
    if policy != "fixed":
        costs = Costs(StepCost([1, 100, 200], [1.0, 1.2, 4.0]))
        costs.drafters["small"] = Dear()
        engine.drafting.costs = costs
        engine.drafting.lengths = {
            "throughput": ThroughputLengths(costs, False),
            "fixed": LengthController(),
        }[policy]
    assert p_value(engine) > 1e-9
    stats = engine.stats()
    assert stats.speculation.accepted_tokens > 0.3 * stats.speculation.draft_tokens


# -- a DFlash drafter that samples ----------------------------------------------------------------


def dflash_engine(make_engine: EngineFactory, folder: Path, rule: str, second: bool) -> Engine:
    """Its head is cut to the target's likely tokens; in the second generation q is sparse."""
    ids = candidates(make_engine(None))
    write_drafter(folder, block=4, second=second, head_ids=ids)
    return make_engine(f"d={folder}", rule=rule, max_num_seqs=50, token_budget=2048)


SLOW = pytest.mark.slow


@one_backend
@pytest.mark.parametrize(
    ("rule", "second"),
    [
        pytest.param("match", False, id="match-DFlash", marks=SLOW),
        pytest.param("match", True, id="match-DFlash 2", marks=SLOW),
        pytest.param("token", False, id="token-DFlash"),
        pytest.param("token", True, id="token-DFlash 2", marks=SLOW),
        pytest.param("block", False, id="block-DFlash", marks=SLOW),
        pytest.param("block", True, id="block-DFlash 2"),
    ],
)
def test_a_sampling_dflash_drafter_keeps_the_distribution(
    make_engine: EngineFactory, tmp_path: Path, rule: str, second: bool
) -> None:
    engine = dflash_engine(make_engine, tmp_path / "drafter", rule, second)
    assert p_value(engine) > 1e-9
    stats = engine.stats()
    assert stats.speculation.accepted_tokens > 0.02 * stats.speculation.draft_tokens


@one_backend
@pytest.mark.parametrize("rule", ["token", pytest.param("block", marks=pytest.mark.slow)])
def test_control_a_selector_that_lies_about_its_q_is_noticed(
    make_engine: EngineFactory, tmp_path: Path, rule: str
) -> None:
    engine = dflash_engine(make_engine, tmp_path / "drafter", rule, second=True)
    drafter = engine.drafters["d"]
    propose = drafter.propose

    def lying(requests, lengths):
        drafts = propose(requests, lengths)
        for rows in drafts.q:
            for row in rows or []:
                row.probs = torch.full_like(row.probs, 1 / len(row.probs))
        return drafts

    drafter.propose = lying
    assert p_value(engine) < 1e-9


class Peeking(LengthController):
    """Cuts a draft before its first even token: a length that looks at what was drawn."""

    def __init__(self, anticipating: bool) -> None:
        self.anticipating = anticipating

    def verify_lengths(self, batch, *, rows, decoding) -> list[int]:
        drafts = [entry.draft.verified for entry in batch]
        return [next((i for i, t in enumerate(d) if t % 2 == 0), len(d)) for d in drafts]


@one_backend
@pytest.mark.parametrize("says_so", [True, False], ids=["said", "control-not-said"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_cut_that_looks_at_the_draws_is_kept_from_them(
    make_engine: EngineFactory, tmp_path: Path, rule: str, says_so: bool
) -> None:
    """The engine does not ask a controller that says it looks. One that looks and does not say so
    biases the output: the control for that guard, and for the power of this test."""
    engine = sampling_engine(make_engine, tmp_path, rule)
    engine.drafting.lengths = Peeking(anticipating=says_so)
    assert (p_value(engine) > 1e-9) == says_so

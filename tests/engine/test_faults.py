"""An error in a step costs the requests in it, not the engine, and nobody else's text."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch

from paceline.core import FinishReason, SamplingParams
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.engine.grammar import GrammarState
from paceline.engine.roster import NOT_FINITE, EngineFailed
from tests.engine.faults import (
    FaultySpans,
    InjectedError,
    Outcome,
    check,
    error_at_line,
    faulty_engine,
    run_all,
)
from tests.engine.tiny import tiny_model

ONE_REQUEST = ("verify", "commit", "detokenise")  # spans that belong to one request
# of drafters: an error there costs drafts only
NO_REQUEST = (
    "draft",
    "look up",
    "catch up",
    "propose",
    "observe",
)


@cache
def reference() -> tuple[Outcome, dict[str, int]]:
    """The run without a fault, and how often each span was opened."""
    run_all(faulty_engine())  # fills the caches: the prefix cache changes what a step holds
    spans = FaultySpans()
    outcome = run_all(faulty_engine(), spans)
    assert not outcome.failed
    return outcome, spans.opened


PARTS = (  # of a forward
    "embed", "norm", "qkv", "rotary", "attention", "o", "gate_up", "down", "head",
)  # fmt: skip
NAMES = (
    "step", "schedule", "draft", "catch up", "propose", "forward", "pack", "grammar", "sample",
    "verify", "commit", "detokenise", "observe", "settle", *PARTS,
)  # fmt: skip


def plan_of(name: str, moment: float) -> None:
    """Run with an error in span `name` at a share `moment` of its openings, and check. How often
    it opens varies a little with what drafters remember, so the last moments may not come."""
    engine, (wanted, opened) = faulty_engine(), reference()
    at = 1 + int(moment * (opened[name] - 1))
    outcome = run_all(engine, FaultySpans(name, at))
    check(engine, outcome, wanted)
    if name in ONE_REQUEST:
        assert len(outcome.failed) == 1
    elif name in NO_REQUEST:
        assert not outcome.failed
    else:
        assert len(outcome.failed) <= engine.scheduler.max_num_seqs
    assert all("span" in (outcome.errors[name] or "") for name in outcome.failed)


def test_every_span_of_a_step_is_in_the_plan() -> None:
    assert set(reference()[1]) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_error_in_a_span_ends_its_requests_and_no_other(name: str) -> None:
    for moment in (0.0, 0.6):
        plan_of(name, moment)
    again = run_all(faulty_engine()).tokens
    assert again == reference()[0].tokens, "the engine says something else afterwards"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_200_random_moments() -> None:
    rng = random.Random(15)
    for _ in range(200):
        plan_of(rng.choice(NAMES), 0.8 * rng.random())


@pytest.mark.parametrize(
    "count", [6, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_an_error_at_any_line_of_engine_and_drafters(count: int) -> None:
    engine, (wanted, _) = faulty_engine(), reference()
    with error_at_line(0) as lines:
        run_all(engine)
    rng, total = random.Random(count), lines()
    for _ in range(count):
        at = rng.randrange(1, total)
        try:
            with error_at_line(at):
                outcome = run_all(engine)
        except InjectedError:  # in make_requests() or record(), which are outside of steps
            while engine.has_work:
                engine.step()
            continue
        check(engine, outcome, wanted)
        assert run_all(engine).tokens == wanted.tokens, at


# -- logits that are no numbers -------------------------------------------------------------------

POISON = 77  # the token whose embedding is NaN


def poisoned(
    dtype: str, value: float = float("nan"), drafter: str | None = None, **changes: object
) -> Engine:
    model = tiny_model(dtype, tie_word_embeddings=False)
    model.weights["model.embed_tokens.weight"][POISON] = value  # type: ignore[index]
    options = {"drafter": drafter, "dtype": dtype, "threads": 1, "max_num_seqs": 4, **changes}
    return build_engine(EngineConfig(model="tiny", **options), model)  # type: ignore[arg-type]


def both(engine: Engine, bad: SamplingParams) -> tuple[list[object], list[int]]:
    """A request with the poisoned token beside one without: the last delta's finish reason, stop
    reason and error of the first, the tokens of the second."""
    good = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    engine.add(engine.make_requests([5, 6, 7], good, request_id="good"))
    engine.add(engine.make_requests([5, 6, POISON], bad, request_id="bad"))
    ended: list[object] = []
    tokens: list[int] = []
    while engine.has_work:
        for delta in engine.step():
            if delta.request_id == "good#0":
                tokens += delta.token_ids
            elif delta.finished:
                ended = [delta.finish_reason, delta.stop_reason, delta.error]
    engine.check_integrity()
    return ended, tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1},
        {"temperature": 1, "top_p": 0.9},
        {"temperature": 1, "top_k": 5},
        {"temperature": 1, "min_p": 0.1},
        {"temperature": 0, "logprobs": 2},
        {"temperature": 0, "logit_bias": {9: 1.0}},
    ],
)
def test_logits_that_are_not_finite_end_their_request_alone(
    dtype: str, value: float, options: dict[str, object]
) -> None:
    engine = poisoned(dtype, value)
    bad = SamplingParams(max_tokens=8, **options)  # type: ignore[arg-type]
    ended, tokens = both(engine, bad)
    assert ended[:2] == [FinishReason.ERROR, NOT_FINITE]
    assert "NaN or infinity" in str(ended[2]) and "weights" in str(ended[2])
    assert len(tokens) == 8
    assert both(engine, bad)[1] == tokens


def test_a_poisoned_prefix_is_not_served_from_the_cache() -> None:
    engine = poisoned("float32")
    prompt, params = [POISON] + [5] * 40, SamplingParams(temperature=0, max_tokens=4)
    for name in ("a", "b"):
        engine.add(engine.make_requests(prompt, params, request_id=name))
        deltas = []
        while engine.has_work:
            deltas += engine.step()
        assert deltas[-1].stop_reason == NOT_FINITE
        assert deltas[-1].cached_tokens == 0


def run_one(engine: Engine, prompt: list[int]) -> tuple[list[int], str | int | None]:
    """The tokens of a greedy answer, and why it stopped."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    engine.add(engine.make_requests(prompt, params, request_id="one"))
    tokens: list[int] = []
    while engine.has_work:
        for delta in engine.step():
            tokens += delta.token_ids
    engine.check_integrity()
    return tokens, delta.stop_reason


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_poisoned_request_leaves_in_its_blocks_harms_nobody(dtype: str) -> None:
    """Its blocks are the next to be used, first for a trial of the target and then by others."""
    engine, prompt = poisoned(dtype), [5, 6, 7]
    wanted = run_one(engine, prompt)
    for before in (3, 20):
        poison = [5] * before + [POISON] + [5] * 10
        assert run_one(engine, poison) == ([], NOT_FINITE)
        assert run_one(engine, prompt) == wanted


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_a_poisoned_draft_changes_no_text(dtype: str) -> None:
    engine = poisoned(dtype, drafter="replay,al=16", draft_policy="fixed")
    prompt = [5, 6, 7]
    tokens, _ = wanted = run_one(engine, prompt)
    for place in (1, 5, 20):
        spoilt = [*tokens[:place], POISON, *tokens[place + 1 :]]
        engine.drafters["replay"].learn(prompt, spoilt)  # type: ignore[attr-defined]
        assert run_one(engine, prompt) == wanted


def test_an_engine_whose_target_gives_no_numbers_any_more_gives_up() -> None:
    engine = poisoned("float32")
    network = engine.runner.network
    network.head = lambda x: torch.full((len(x), network.vocab_size), torch.nan)  # type: ignore
    engine.add(engine.make_requests([1, 2], SamplingParams(max_tokens=4), request_id="a"))
    with pytest.raises(EngineFailed, match="NaN or infinity"):
        while engine.has_work:
            engine.step()


def test_an_error_in_the_masks_of_a_request_ends_that_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, (wanted, _) = faulty_engine(), reference()
    fill, calls = GrammarState.fill, 0

    def fail_once(state: GrammarState, *args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise InjectedError("span grammar: a mask")
        fill(state, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(GrammarState, "fill", fail_once)
    outcome = run_all(engine)
    check(engine, outcome, wanted)
    assert len(outcome.failed) == 1

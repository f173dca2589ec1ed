"""Under a grammar too, a stream is the same token for token whatever speculation does; what is
forced is known from the text alone."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core import FinishReason, Grammar, OutputDelta, SamplingParams, TokenKind
from paceline.engine.lengths import LengthController
from paceline.engine.step_cost import StepCost
from tests.deltas import stats_of
from tests.engine.test_grammar import GRAMMARS, SCHEMA, masks, state
from tests.engine.test_streams import Finished, expected, run
from tests.engine.tiny import EngineFactory, save_tiny
from tests.models.dflash.tiny import write_drafter

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "logprobs": 2},
    {"temperature": 0, "repetition_penalty": 1.2, "logprobs": 0},
    {"temperature": 1.0, "n": 2, "stop": ("kel",)},
    {"temperature": 0.5, "min_p": 0.02, "logit_bias": {65: 5.0}},
]


def jobs(seed: int = 3, longest: int = 160) -> list[tuple[list[int], SamplingParams]]:
    """Each grammar with every option, and two jobs without one."""
    rng = random.Random(seed)
    grammars = [*GRAMMARS.values(), None] * len(OPTIONS)
    made = []
    for i, grammar in enumerate(grammars):
        if grammar is None and i > 8:
            continue
        prompt = [rng.randrange(256) for _ in range(rng.randrange(1, 30))]
        params = SamplingParams(
            max_tokens=rng.randrange(20, longest), seed=i, **OPTIONS[i % len(OPTIONS)]
        )
        made.append((prompt, replace(params, grammar=grammar)))
    return made


DRAFTERS = {
    "off": None,
    "suffix": "suffix,max_draft_len=7",
    "ngram": "ngram,max_draft_len=5,min_ngram=1",
    "draft_model": "small=draft_model:{},max_draft_len=6,min_token_prob=0.05",
    "dflash": "d={}/dflash",
    "hybrid": "hybrid:{}/dflash",
    "replay": "replay,al=4,max_draft_len=7",
}


SLOW = {"ngram", "replay"}  # look-ups and plans are also drafted by suffix and hybrid


@pytest.mark.parametrize(
    "drafter", [pytest.param(d, marks=[pytest.mark.slow] * (d in SLOW)) for d in DRAFTERS]
)
def test_streams_do_not_depend_on_drafter_or_batch(
    make_engine: EngineFactory, tmp_path: Path, drafter: str
) -> None:
    write_drafter(tmp_path / "dflash", block=8)
    spec = DRAFTERS[drafter] and DRAFTERS[drafter].format(save_tiny(tmp_path))
    truth = expected(make_engine, jobs())
    for together, options in ((1, {}), (12, {}), (12, {"token_budget": 14, "max_num_seqs": 12})):
        engine = make_engine(spec, **options)
        if drafter == "replay":
            teach(engine, truth)
        assert run(engine, jobs(), together=together) == truth
        assert not engine.grammars.held, "a stream that has ended leaves nothing behind"
    stats = engine.stats()
    assert (stats.speculation.draft_tokens > 0) == (spec is not None)
    assert stats.speculation.forced_tokens > 200


def teach(engine: Any, truth: list[Finished]) -> None:
    choices = [(prompt, i) for prompt, params in jobs() for i in range(params.n)]
    for (prompt, choice), stream in zip(choices, truth, strict=True):
        engine.drafters["replay"].learn(prompt, stream.tokens, choice=choice)


def test_streams_survive_preemption(make_engine: EngineFactory) -> None:
    work = jobs()
    truth = expected(make_engine, work)
    per_token = make_engine().plan.kv_bytes_per_token
    engine = make_engine("suffix", kv_memory=per_token * 16 * 18, max_model_len=220)
    assert run(engine, work, together=8) == truth
    assert engine.stats().preemptions > 0


class CutAnywhere(LengthController):
    """Cuts drafts to 0, 1, 2, ... tokens in turn: also right before a token that is forced."""

    def __init__(self) -> None:
        self.turn = 0

    def verify_lengths(self, batch: Any, *, rows: int, decoding: int) -> list[int]:
        self.turn += 1
        return [min(len(entry.draft), self.turn % 8) for entry in batch]


@pytest.mark.parametrize("drafter", ["suffix", "replay"])
def test_a_draft_cut_before_a_forced_token_changes_nothing(
    make_engine: EngineFactory, drafter: str
) -> None:
    truth = expected(make_engine, jobs())
    engine = make_engine(DRAFTERS[drafter])
    if drafter == "replay":
        teach(engine, truth)
    engine.drafting.lengths = CutAnywhere()
    assert run(engine, jobs(), together=6) == truth
    assert engine.stats().speculation.forced_tokens > 200


@pytest.fixture(params=["token", "block", "match"])
def rule(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_rule_keeps_to_the_grammar(
    make_engine: EngineFactory, tmp_path: Path, rule: str
) -> None:
    """Sampled drafts, most of which the grammar does not allow, included."""
    spec = f"small=draft_model:{save_tiny(tmp_path)},max_draft_len=6,min_token_prob=0"
    engine = make_engine(spec, rule=rule)
    finished = run(engine, jobs(), together=6)
    checked = 0
    for (_, params), stream in zip(each_choice(jobs()), finished, strict=True):
        checked += conforms(params.grammar, stream.text, stream.end[0], params.stop)
    assert checked > 10
    assert engine.stats().speculation.accepted_tokens > 0


def each_choice(work: list[Any]) -> list[Any]:
    return [job for job in work for _ in range(job[1].n)]


def conforms(grammar: Grammar | None, text: str, reason: Any, stop: tuple[str, ...]) -> bool:
    """Whether there was something to check: a text that came to its own end."""
    if grammar is None or reason is not FinishReason.STOP or stop:
        return False
    if grammar.kind == "json_schema":
        said = json.loads(text)
        assert list(said) == list(SCHEMA["properties"])
        assert said["unit"] in SCHEMA["properties"]["unit"]["enum"]
        assert len(said["name"]) <= 6 and 0 <= said["level"] <= 500 and len(said["tags"]) <= 3
    elif grammar.kind == "regex":
        assert re.fullmatch(grammar.source, text)
    else:
        assert re.fullmatch(r"[0-9]{1,3}([+-][0-9]{1,3})*", text)
    return True


def rounds(engine: Any, prompt: list[int], params: SamplingParams) -> list[OutputDelta]:
    engine.add(engine.make_requests(prompt, params, request_id="r"))
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    return deltas


@pytest.mark.parametrize("drafter", [None, "suffix,max_draft_len=7", "replay,al=5"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forced_tokens_are_those_without_a_choice(
    make_engine: EngineFactory, drafter: str | None, temperature: float
) -> None:
    """With speculation off and on: exactly the tokens whose mask has one bit are forced, they
    follow in the round of the token before them, and they are counted apart."""
    engine = make_engine(drafter)
    for seed, grammar in enumerate([*GRAMMARS.values()] * 3):
        params = SamplingParams(
            temperature=temperature, seed=seed, max_tokens=150, grammar=grammar, logprobs=1
        )
        if drafter is not None and drafter.startswith("replay"):
            alone = rounds(make_engine(), [1, 2, 3], params)
            said = [token for delta in alone for token in delta.token_ids]
            engine.drafters["replay"].learn([1, 2, 3], said)
        deltas = rounds(engine, [1, 2, 3], params)
        tokens = [token for delta in deltas for token in delta.token_ids]
        kinds = [kind for delta in deltas for kind in delta.kinds]
        single, walker = [], state(grammar)
        for token in tokens[:-1]:
            single.append(np.count_nonzero(masks(walker, [])[0]) == 1)
            walker.advance(token)
        single.append(np.count_nonzero(masks(walker, [])[0]) == 1)
        assert [kind is TokenKind.FORCED for kind in kinds] == single
        for delta in deltas[:-1]:
            walker = state(grammar, tokens[: delta.completion_tokens])
            assert not walker.forced(), "what is forced comes at once"
        last = deltas[-1]
        stats = stats_of(deltas)
        assert stats.forced_tokens == sum(single)
        chosen = stats.accepted_tokens + kinds.count(TokenKind.BONUS)
        assert last.completion_tokens == chosen + sum(single)
        logprobs = [row for delta in deltas for row in delta.logprobs]
        certain = [row for row, forced in zip(logprobs, single, strict=True) if forced]
        assert all(row.logprob == 0 and row.top == ((row.token, 0.0),) for row in certain)


def test_forced_tokens_save_rounds(make_engine: EngineFactory) -> None:
    params = SamplingParams(temperature=0, max_tokens=150, grammar=GRAMMARS["schema"])
    deltas = rounds(make_engine(), [5, 6], params)
    last, stats = deltas[-1], stats_of(deltas)
    assert last.finish_reason is FinishReason.STOP
    forced = stats.forced_tokens
    assert stats.rounds <= last.completion_tokens - forced + 1 < last.completion_tokens


def test_what_a_grammar_forces_is_no_merit_of_drafts(make_engine: EngineFactory) -> None:
    params = SamplingParams(temperature=0, max_tokens=150, grammar=GRAMMARS["schema"])
    engine = make_engine(None)
    engine.scheduler.cost = StepCost([1, 8, 64], [1.0, 1.0, 8.0])
    stats = stats_of(rounds(engine, [5, 6], params))
    assert stats.forced_tokens > 20 and stats.speedup_vs_ar == pytest.approx(1.0, rel=0.1)


def test_max_tokens_ends_a_stream_among_forced_tokens(make_engine: EngineFactory) -> None:
    params = SamplingParams(temperature=0, max_tokens=100, grammar=GRAMMARS["schema"])
    whole = rounds(make_engine(), [5, 6], params)
    all_ids = [token for delta in whole for token in delta.token_ids]
    engine = make_engine("suffix")
    for most in range(1, 24):
        deltas = rounds(engine, [5, 6], replace(params, max_tokens=most))
        assert deltas[-1].finish_reason is FinishReason.LENGTH
        assert deltas[-1].completion_tokens == most
        assert all_ids[:most] == [token for delta in deltas for token in delta.token_ids]


def test_a_stream_that_is_aborted_leaves_nothing_behind(make_engine: EngineFactory) -> None:
    engine = make_engine("suffix")
    params = SamplingParams(temperature=1, max_tokens=99, grammar=GRAMMARS["schema"], n=3, seed=1)
    requests = engine.make_requests([1, 2], params, request_id="r")
    engine.add(requests)
    for _ in range(2):
        engine.step()
    for request in requests:
        engine.abort(request.id)
    assert not engine.grammars.held and not engine.has_work


def test_a_grammar_that_gives_up_ends_its_stream_alone(
    make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine("suffix")
    bad = SamplingParams(temperature=0, max_tokens=50, grammar=GRAMMARS["regex"])
    good = replace(bad, grammar=GRAMMARS["lark"])
    engine.add(engine.make_requests([1, 2], bad, request_id="bad"))
    engine.add(engine.make_requests([3, 4], good, request_id="good"))
    engine.step()
    held = engine.grammars.held["bad#0"]
    monkeypatch.setattr(held, "forced", lambda: held.advance(7))  # not allowed: the matcher fails
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    ends = {delta.request_id: delta for delta in deltas if delta.finished}
    assert ends["bad#0"].finish_reason is FinishReason.ERROR
    assert ends["bad#0"].stop_reason == "grammar_failed" and ends["bad#0"].error
    assert ends["good#0"].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    engine.check_integrity()

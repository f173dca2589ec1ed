"""Plain rounds are judged without a verifier: the deltas are those that a verifier gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core import OutputDelta, SamplingParams, TokenKind
from paceline.engine.engine import Engine
from paceline.engine.tree_path import TreePath
from tests.engine.planted_trees import plant_trees
from tests.engine.tiny import EngineFactory
from tests.models.dflash.tiny import write_drafter

PROMPTS = [[5, 6, 7, 8] * 8, [9, 10, 9, 10, 9], list(range(20, 60))]
PARAMS = [
    {"max_tokens": 40, "ignore_eos": True},
    {"max_tokens": 40, "stop": ("a", "\\n")},
    {"max_tokens": 40, "stop_token_ids": tuple(range(0, 256, 3))},
    {"max_tokens": 1},
]


def deltas(engine: Engine, *, plain: bool) -> list[dict[str, Any]]:
    """The deltas of a few requests at once without their times; with verifiers if not `plain`."""
    for index, options in enumerate(PARAMS):
        for place, prompt in enumerate(PROMPTS):
            params = SamplingParams(temperature=0.0, seed=1, **options)
            name = f"{index}-{place}"
            engine.add(engine.make_requests(prompt, params, request_id=name, explain=True))
    for output in engine._roster.outputs.values():
        assert output.plain
        output.plain = plain
    made: list[OutputDelta] = []
    while engine.has_work:
        made += engine.step()
    return [untimed(delta) for delta in made]


def untimed(delta: OutputDelta) -> dict[str, Any]:
    assert delta.round is not None
    round = delta.round._replace(seconds=0.0, ar_seconds=0.0, step=None)
    return delta._replace(round=round, metrics=None)._asdict()


@pytest.mark.parametrize("drafter", [None, "ngram,min_ngram=1,max_draft_len=6"])
def test_plain_rounds_equal_verified_ones(make_engine: EngineFactory, drafter: str | None) -> None:
    fast, slow = (deltas(make_engine(drafter), plain=plain) for plain in (True, False))
    assert fast == slow
    kinds = {kind for delta in fast for kind in delta["kinds"]}
    assert kinds == {TokenKind.BONUS} | ({TokenKind.ACCEPTED} if drafter else set())
    assert {delta["finish_reason"] for delta in fast} >= {None, "length", "stop"}


@pytest.fixture
def truth(make_engine: EngineFactory) -> dict[tuple[int, ...], list[int]]:
    engine, answers = make_engine(), {}
    for prompt in PROMPTS:
        params = SamplingParams(temperature=0.0, **PARAMS[0])
        (request,) = engine.make_requests(prompt, params, request_id="t")
        engine.add([request])
        while engine.has_work:
            engine.step()
        answers[tuple(prompt)] = request.output_ids
    return answers


def tree_engine(
    make_engine: EngineFactory, folder: Path, truth: dict[tuple[int, ...], list[int]]
) -> Engine:
    engine = make_engine(f"d={write_drafter(folder / 'd', layers=2, block=8)}", draft_tree=12)
    plant_trees(engine, truth)
    return engine


def test_plain_rounds_of_trees_equal_verified_ones(
    make_engine: EngineFactory, tmp_path: Path, truth: dict[tuple[int, ...], list[int]]
) -> None:
    """Stops and the token limit in the middle of a branch included."""
    fast, slow = (
        deltas(tree_engine(make_engine, tmp_path, truth), plain=plain) for plain in (True, False)
    )
    assert fast == slow
    assert {delta["finish_reason"] for delta in fast} >= {None, "length", "stop"}
    assert sum(delta["kinds"].count(TokenKind.ACCEPTED) for delta in fast) > 50


@pytest.mark.parametrize("reached", [True, False])
def test_rows_of_branches_must_be_finite_where_the_path_reaches_them(
    make_engine: EngineFactory,
    tmp_path: Path,
    truth: dict[tuple[int, ...], list[int]],
    reached: bool,
) -> None:
    """Either all rows of branches are broken, or all that no path reaches."""
    engine = tree_engine(make_engine, tmp_path, truth)
    forward, broken_rows = engine.runner.forward, 0

    def broken(scheduled: Any, *args: Any, logits: bool) -> Any:
        nonlocal broken_rows
        output = forward(scheduled, *args, logits=logits)
        finite, branches = output.finite.clone(), sum(e.draft.branch_rows for e in scheduled)
        argmax, branch_out, out = output.argmax.tolist(), len(finite) - branches, 0
        finite[branch_out:] = False
        for entry in scheduled:
            if entry.draft.branches and not reached:
                path = TreePath(entry.draft, out, branch_out, None)
                path.verify(lambda row, path=path: argmax[path.places[row]])
                finite[path.places] = True
            out, branch_out = out + entry.outputs, branch_out + entry.draft.branch_rows
        broken_rows += int((~finite).sum())
        output.on_host, output.finite = None, finite
        return output

    engine.runner.forward = broken
    for index, prompt in enumerate(PROMPTS * 4):
        params = SamplingParams(temperature=0.0, **PARAMS[0])
        engine.add(engine.make_requests(prompt, params, request_id=str(index)))
    said: list[OutputDelta] = []
    while engine.has_work:
        said += engine.step()
    last = [delta for delta in said if delta.finished]
    ended = [delta for delta in last if delta.stop_reason == "model_not_finite"]
    assert broken_rows > 50 and len(last) == 12
    if reached:
        assert ended and all("output token" in (delta.error or "") for delta in ended)
    else:
        assert not ended


def test_rows_that_are_not_finite_end_plain_streams(make_engine: EngineFactory) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    engine.add(engine.make_requests(PROMPTS[0], params, request_id="r"))
    assert not engine.step()[0].finished
    forward = engine.runner.forward

    def broken(*args: Any, logits: bool) -> Any:
        output = forward(*args, logits=logits)
        output.on_host, output.finite = None, torch.zeros_like(output.finite)
        return output

    engine.runner.forward = broken
    (last,) = engine.step()
    assert (last.finish_reason, last.stop_reason) == ("error", "model_not_finite")
    assert last.error is not None and "output token 1 " in last.error


def test_logits_are_computed_where_a_round_reads_them(make_engine: EngineFactory) -> None:
    """A step whose tokens are all the argmax of their rows has none; what anybody beside them asks
    for has them for all."""
    engine = make_engine()
    forward, kept = engine.runner.forward, list[bool]()

    def watched(*args: Any, logits: bool) -> Any:
        output = forward(*args, logits=logits)
        kept.append(len(output.logits) > 0)
        return output

    engine.runner.forward = watched
    greedy = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
    asked: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"temperature": 1.0}, True),
        ({"logprobs": 2}, True),
        ({"presence_penalty": 0.5}, True),
        ({"prompt_logprobs": 0}, True),
    ]
    for index, (options, wanted) in enumerate(asked):
        for place, more in enumerate(({}, options)):
            params = SamplingParams(**(greedy | more))
            name = f"{index}-{place}"
            engine.add(engine.make_requests(PROMPTS[place], params, request_id=name))
        kept.clear()
        while engine.has_work:
            assert all(delta.error is None for delta in engine.step())
        assert kept and any(kept) == wanted, options

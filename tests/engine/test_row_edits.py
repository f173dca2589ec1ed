"""Row edits against their definition: the same bits, whatever was asked before."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import Request, SamplingParams
from paceline.engine.row_edits import RowTables, TokenCounts, edits_of
from tests.engine.tiny import EngineFactory

VOCAB = 97
EOS = frozenset({3, 5})
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=40)


def plain(request: Request, logits: torch.Tensor, draft: list[int]) -> torch.Tensor:
    """The definition, token by token, from the whole history."""
    params, output = request.params, request.output_ids + draft
    row = logits.clone()
    for token, bias in params.logit_bias.items():
        row[token] += bias
    if len(output) < params.min_tokens:
        for token in request.eos_ids.union(params.stop_token_ids):
            row[token] = -torch.inf
    if params.repetition_penalty != 1:
        for token in set(request.prompt_ids + output):
            penalty = params.repetition_penalty
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    for token, count in Counter(output).items():
        amount = params.frequency_penalty * count + params.presence_penalty
        row[token] -= torch.tensor(amount, dtype=torch.float32)
    return row


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.7, 1.3]),
        "presence_penalty": st.sampled_from([-1.5, 0.6]),
        "frequency_penalty": st.sampled_from([-0.3, 1.1]),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32)),
        "min_tokens": st.integers(1, 30),
        "stop_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=9).map(tuple),
    },
)


@settings(max_examples=200, deadline=None)
@given(OPTIONS, TOKENS.filter(bool), TOKENS, TOKENS, st.integers(0, 2**31))
def test_the_edits_are_those_of_the_definition(
    options: dict[str, Any], prompt: list[int], output: list[int], draft: list[int], seed: int
) -> None:
    request = Request(id="r", prompt_ids=prompt, params=SamplingParams(**options), eos_ids=EOS)
    edits, rng = edits_of(request, torch.device("cpu")), random.Random(seed)
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 10
    if edits is None:
        assert not request.params.edited
        return
    for token in [*output, None]:  # a row after each output token, and rows of a draft in any order
        for length in rng.sample(range(len(draft) + 1), k=min(3, len(draft) + 1)):
            before = logits.clone()
            row = edits.apply(logits, draft[:length])
            assert torch.equal(logits, before), "the model's own logits were changed"
            assert torch.equal(row, plain(request, logits, draft[:length]))
        if token is not None:
            request.tokens.append(token)


def test_a_row_that_nothing_changes_is_not_copied() -> None:
    params = SamplingParams(min_tokens=2)
    request = Request(id="r", prompt_ids=[1], params=params, eos_ids=EOS)
    edits, logits = edits_of(request, torch.device("cpu")), torch.randn(VOCAB)
    assert edits is not None
    assert edits.apply(logits, []) is not logits
    request.tokens += [7, 8]
    assert edits.apply(logits, []) is logits


@pytest.mark.parametrize("length", [10, 8000])
def test_history_is_not_built_anew_for_each_row(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of a row must not grow with a history that repeats a few tokens."""
    request = Request(
        id="r",
        prompt_ids=[1],
        params=SamplingParams(repetition_penalty=1.2, frequency_penalty=0.1),
        eos_ids=EOS,
    )
    edits, logits = edits_of(request, torch.device("cpu")), torch.randn(VOCAB)
    assert edits is not None
    request.tokens += [2, 3, 4, 5] * (length // 4)
    edits.apply(logits, [])
    counted: list[int] = []
    add = TokenCounts.add

    def watched(counts: TokenCounts, tokens: Iterable[int]) -> None:
        tokens = list(tokens)
        counted.append(len(tokens))
        add(counts, tokens)

    monkeypatch.setattr(TokenCounts, "add", watched)
    request.tokens.append(6)
    for _ in range(9):
        edits.apply(logits, [7, 8])
    assert sum(counted) == 1 + 2


class Watched(dict[int, float]):
    """A table of biases that counts how often it is read."""

    reads = 0

    def __iter__(self) -> Iterator[int]:
        self.reads += 1
        return super().__iter__()


def test_long_tables_are_read_at_the_door_and_shared_by_all_choices(
    make_engine: EngineFactory,
) -> None:
    """Steps wait while a request is opened: nothing that is as long as a table is done there."""
    engine, bias = make_engine(max_num_seqs=16), Watched({token: -1.0 for token in range(60)})
    params = SamplingParams(
        n=8,
        max_tokens=4,
        min_tokens=2,
        logit_bias=bias,
        stop_token_ids=tuple(range(40)),
        repetition_penalty=1.2,
    )
    requests = engine.make_requests([1, 2, 3, 4], params, request_id="r")
    read_at_the_door = bias.reads
    engine.add(requests)
    roster, held = engine._roster, [request.id for request in requests]
    stop_ids = {id(roster.outputs[name]._stop_ids) for name in held}
    tables = {id(roster.edits[name]._tables) for name in held}
    counts = {id(roster.edits[name]._counts) for name in held}
    while engine.has_work:
        engine.step()
    assert bias.reads == read_at_the_door > 0
    assert (len(stop_ids), len(tables), len(counts)) == (1, 1, 8)


@pytest.mark.parametrize("repetition", [1.0, 1.3])
def test_counts_that_were_copied_grow_apart(repetition: float) -> None:
    params = SamplingParams(n=2, repetition_penalty=repetition, frequency_penalty=0.5)
    tables = RowTables(params, [1, 2, 2], EOS)
    requests = [
        Request(id=f"{n}", prompt_ids=[1, 2, 2], params=params, eos_ids=EOS, prepared=tables)
        for n in range(2)
    ]
    edits = [edits_of(request, torch.device("cpu")) for request in requests]
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    for token in range(1, 80):
        for place, request in enumerate(requests):
            request.tokens.append(token + place)
            edit = edits[place]
            assert edit is not None
            assert torch.equal(edit.apply(logits, [5]), plain(request, logits, [5]))

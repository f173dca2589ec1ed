"""Losslessness by exact enumeration: every outcome of every random number, over several rounds.

The real drafting of tokens, the real rows, the real verifiers and the real keying of noise run over
a tiny random process; only the last step, from a key to a number, is replaced by one that walks
through all outcomes. A number
that is looked at again under the same key keeps what was learnt of it, so reuse shows as bias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from paceline.core import Request, SamplingParams
from paceline.drafters.draft_model import _Draft
from paceline.drafters.draw import DRAWS, draft_batch, draw_token
from paceline.engine import sampler
from paceline.engine.masks import RowMasks
from paceline.engine.verify import make_verifier
from paceline.kernels import ops
from tests.engine import oracle
from tests.engine.oracle import BIASED, EXACT, GAMMA, RULES, RULES_WITH_Q, Outcomes, error, logits


def law(
    outcomes: Outcomes,
    rule: str,
    draw: str,
    *,
    floor: float = 0.0,
    ends: tuple[int, ...] = (),
    judge: Callable = lambda drawn_from, soft: drawn_from,
    cut: Callable = lambda q, tokens: len(tokens),
    allowed: Callable[[tuple[int, ...]], int] | None = None,
    past_grammar: int = 1,
    verifier: Any = None,
) -> dict[tuple[int, ...], float]:
    """Distribution of the first oracle.LENGTH output tokens under speculation.

    `allowed` is a grammar: the tokens that may follow a context, as bits. A sampled draft is kept
    up to `past_grammar` tokens past the last one that the grammar allows.

    A draft stops below the survival `floor` and behind the tokens `ends`. These are EOS to the
    drafter; the stream goes on, so that an effect of the stop on what follows would show.
    """
    verifier = verifier or make_verifier(rule)

    def valid(request: Request, tokens: list[int]) -> int:
        said = list(request.output_ids)
        for count, token in enumerate(tokens):
            if not allowed((*said, *tokens[:count])) >> token & 1:
                return count
        return len(tokens)

    def program() -> tuple[int, ...]:
        request = Request(
            id="r", prompt_ids=[0], params=SamplingParams(temperature=1.0), seed=7,
            eos_ids=frozenset(ends),
        )  # fmt: skip
        while request.output_len < oracle.LENGTH:
            making, soft = _Draft(request, GAMMA), []
            while len(making.drawn) < making.wanted:
                row = logits(oracle.Q, (*request.output_ids, *making.tokens))
                soft.append(torch.softmax(row.double(), -1))
                drawn = draw_token(row, int(row.argmax()), request, len(making.drawn), draw)
                making.append(drawn, floor)
            keep = cut(soft, making.tokens)
            if allowed is not None:
                keep = min(keep, valid(request, making.tokens) + past_grammar)
            draft, q = making.tokens[:keep], judge(draft_batch([making.drawn]).q_rows(0), soft)
            contexts = [(*request.output_ids, *draft[:i]) for i in range(len(draft) + 1)]
            rows = torch.stack([logits(oracle.P, c) for c in contexts])
            masks = None
            if allowed is not None:
                bits = np.array([[allowed(c)] for c in contexts], dtype=np.uint32)
                masks = RowMasks(bits, oracle.VOCAB)
            argmax, finite = rows.argmax(-1).tolist(), [True] * len(rows)
            target = sampler.TargetRows(request, rows, argmax, finite, draft, masks=masks)
            verdict = verifier.verify(target, draft, None if q is None else q[:keep])
            request.tokens += [*draft[: verdict.accepted], verdict.next_token]
        return tuple(request.output_ids[: oracle.LENGTH])

    total: dict[tuple[int, ...], float] = {}
    for weight, tokens in outcomes.paths(program):
        total[tokens] = total.get(tokens, 0.0) + weight
    return total


STOPS = {
    "whole": {},
    "floor": {"floor": 0.75},  # of the confidence so far, which depends on the tokens so far
    "eos": {"ends": (1,)},
    "floor-and-eos": {"floor": 0.75, "ends": (0,)},
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("draw", DRAWS)
@RULES
def test_rule_keeps_the_targets_law(outcomes: Outcomes, rule: str, draw: str, stop: str) -> None:
    assert error(law(outcomes, rule, draw, **STOPS[stop])) < EXACT


@RULES_WITH_Q
def test_control_argmax_drafts_judged_with_a_soft_q(outcomes: Outcomes, rule: str) -> None:
    biased = law(outcomes, rule, "argmax", judge=lambda drawn_from, soft: soft)
    assert error(biased) > BIASED


def cut_on_drawn_token(q: list[torch.Tensor], tokens: list[int]) -> int:
    for i, (row, token) in enumerate(zip(q, tokens, strict=True)):
        if row[token] < 0.5:
            return i
    return len(tokens)


def cut_on_distribution(q: list[torch.Tensor], tokens: list[int]) -> int:
    for i, row in enumerate(q):
        if row.max() < 0.7:
            return i
    return len(tokens)


def cut_before_the_end(q: list[torch.Tensor], tokens: list[int]) -> int:
    return len(tokens) - (tokens[-1] == 1)


@RULES_WITH_Q
def test_control_a_cut_that_looks_at_the_drawn_token(outcomes: Outcomes, rule: str) -> None:
    assert error(law(outcomes, rule, "sample", cut=cut_on_drawn_token)) > BIASED
    assert error(law(outcomes, rule, "sample", cut=cut_on_distribution)) < EXACT


@RULES_WITH_Q
def test_control_a_stop_that_takes_its_token_back(outcomes: Outcomes, rule: str) -> None:
    """Why a draft stops behind the EOS it drew, not before it."""
    assert error(law(outcomes, rule, "sample", ends=(1,), cut=cut_before_the_end)) > BIASED


@pytest.mark.parametrize("cut", [cut_on_drawn_token, cut_before_the_end])
@pytest.mark.parametrize("draw", DRAWS)
def test_match_is_exact_whatever_the_cut_looks_at(
    outcomes: Outcomes, draw: str, cut: Callable
) -> None:
    assert error(law(outcomes, "match", draw, ends=(1,), cut=cut)) < EXACT


def not_twice(context: tuple[int, ...]) -> int:
    """A grammar in which no token follows itself."""
    everything = 2**oracle.VOCAB - 1
    return everything & ~(1 << context[-1]) if context else everything


@pytest.fixture
def three_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a grammar can forbid some and still leave a choice."""
    for name, value in {"VOCAB": 3, "LENGTH": 2}.items():
        monkeypatch.setattr(oracle, name, value)
    for name, seed in {"P": 1, "Q": 2}.items():
        monkeypatch.setattr(oracle, name, oracle.process(seed))


@pytest.mark.usefixtures("three_tokens")
@pytest.mark.parametrize("draw", DRAWS)
@RULES
def test_rule_keeps_the_law_that_a_grammar_leaves(outcomes: Outcomes, rule: str, draw: str) -> None:
    assert error(law(outcomes, rule, draw, allowed=not_twice), not_twice) < EXACT


@pytest.mark.usefixtures("three_tokens")
@RULES_WITH_Q
def test_control_a_grammar_that_takes_back_the_token_it_does_not_allow(
    outcomes: Outcomes, rule: str
) -> None:
    """Why a sampled draft keeps the first token that is not allowed: to drop it is a cut that has
    looked at the drawn token."""
    biased = law(outcomes, rule, "sample", allowed=not_twice, past_grammar=0)
    assert error(biased, not_twice) > BIASED
    exact = law(outcomes, "match", "sample", allowed=not_twice, past_grammar=0)
    assert error(exact, not_twice) < EXACT


def test_control_position_keyed_block(outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the noise of `block` is keyed by the round's start: without it, numbers come back."""

    def without_round(draw: Callable) -> Callable:
        return lambda *args, round_start, **keys: draw(*args, **keys)

    monkeypatch.setattr(ops, "uniform", without_round(outcomes.uniform))
    monkeypatch.setattr(ops, "gumbel_argmax", without_round(outcomes.gumbel_argmax))
    assert error(law(outcomes, "block", "sample")) > BIASED

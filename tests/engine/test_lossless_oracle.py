"""Losslessness by exact enumeration: every outcome of every random number, over several rounds.

The real drafting of tokens, the real rows, the real verifiers and the real keying of noise run over
a tiny random process; only the last step, from a key to a number, is replaced by one that walks
through all outcomes. A number
that is looked at again under the same key keeps what was learnt of it, so reuse shows as bias.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.core import Request, SamplingParams
from paceline.drafters.draft_model import _Draft
from paceline.drafters.draw import DRAWS, draw_token
from paceline.engine import sampler
from paceline.engine.verify import make_verifier
from paceline.kernels import ops
from tests.engine.oracle import (
    BIASED,
    EXACT,
    GAMMA,
    LENGTH,
    RULES,
    RULES_WITH_Q,
    Outcomes,
    P,
    Q,
    error,
    logits,
)


def law(
    outcomes: Outcomes,
    rule: str,
    draw: str,
    *,
    floor: float = 0.0,
    ends: tuple[int, ...] = (),
    judge: Callable = lambda drawn_from, soft: drawn_from,
    cut: Callable = lambda q, tokens: len(tokens),
) -> dict[tuple[int, ...], float]:
    """Distribution of the first LENGTH output tokens under speculation.

    A draft stops below the survival `floor` and behind the tokens `ends`. These are EOS to the
    drafter; the stream goes on, so that an effect of the stop on what follows would show.
    """
    verifier = make_verifier(rule)

    def program() -> tuple[int, ...]:
        request = Request(
            id="r", prompt_ids=[0], params=SamplingParams(temperature=1.0), seed=7,
            eos_ids=frozenset(ends),
        )  # fmt: skip
        while request.output_len < LENGTH:
            making, soft = _Draft(request, GAMMA), []
            while len(making.drawn) < making.wanted:
                row = logits(Q, (*request.output_ids, *making.tokens))
                soft.append(torch.softmax(row.double(), -1))
                drawn = draw_token(row, int(row.argmax()), request, len(making.drawn), draw)
                making.append(drawn, floor)
            keep = cut(soft, making.tokens)
            draft, q = making.tokens[:keep], judge(making.q_rows(), soft)
            contexts = [(*request.output_ids, *draft[:i]) for i in range(len(draft) + 1)]
            rows = torch.stack([logits(P, c) for c in contexts])
            target = sampler.TargetRows(request, rows, rows.argmax(-1).tolist(), draft)
            verdict = verifier.verify(target, draft, None if q is None else q[:keep])
            request.tokens += [*draft[: verdict.accepted], verdict.next_token]
        return tuple(request.output_ids[:LENGTH])

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


def test_control_position_keyed_block(outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the noise of `block` is keyed by the round's start: without it, numbers come back."""

    def without_round(draw: Callable) -> Callable:
        return lambda *args, round_start, **keys: draw(*args, **keys)

    monkeypatch.setattr(ops, "uniform", without_round(outcomes.uniform))
    monkeypatch.setattr(ops, "gumbel_argmax", without_round(outcomes.gumbel_argmax))
    assert error(law(outcomes, "block", "sample")) > BIASED

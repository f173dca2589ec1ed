"""Test the larger model's distribution along texts, as our engine serves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.core import Grammar
from paceline.distil.bound import Bounds
from paceline.distil.packs import labelled
from paceline.distil.teacher import Teacher
from paceline.engine.grammar import Compiler, GrammarState
from paceline.models.any_target import AnyTarget, read_target
from paceline.training.causal_model import load_causal_model
from paceline.training.packs import Text
from paceline.training.seen import Soft
from tests.training.twins import random_text

VOCABULARY = 256


def texts_with_one_start() -> tuple[Text, ...]:
    start = random_text(40, 0, VOCABULARY, 9).ids
    texts = []
    for number, tokens in enumerate((7, 20, 12)):
        ids = torch.cat([start, random_text(tokens, 0, VOCABULARY, number).ids])
        texts.append(Text(number, ids, torch.arange(len(ids)) >= len(start)))
    return tuple(texts)


def teacher_of(
    found: AnyTarget,
    count: int,
    vocabulary: int = VOCABULARY,
    quantize: str | None = None,
    grammars: dict[int, Grammar] | None = None,
) -> Teacher:
    compiler = Compiler(found.tokenizer, vocabulary, found.eos_ids)
    return Teacher(found, count, vocabulary, "cpu", quantize, Bounds(compiler, grammars or {}))


def distribution(soft_tokens: torch.Tensor, shares: torch.Tensor, size: int) -> torch.Tensor:
    return torch.zeros(len(soft_tokens), size).scatter_(-1, soft_tokens, shares)


def test_what_is_learnt_is_what_the_model_says_of_each_text_alone(teacher: Path) -> None:
    found = read_target(str(teacher))
    size = found.shape.vocab_size
    module = load_causal_model(found, torch.float32, "cpu")
    texts = texts_with_one_start()
    soft = teacher_of(found, size, size).soft(texts)
    here = distribution(soft.rows[0], soft.probabilities[0], size)
    with torch.no_grad():
        there = torch.cat(
            [module(text.ids[None]).logits[0, labelled(text) - 1].softmax(-1) for text in texts]
        )
    assert here.shape == there.shape
    assert float((here - there).abs().sum(-1).max()) < 0.05  # bfloat16 beside float32
    wrong = there.roll(1, 0)
    assert float((here - wrong).abs().sum(-1).max()) > 0.5


def test_a_text_is_read_once_and_has_its_place(teacher: Path) -> None:
    found = read_target(str(teacher))
    model = teacher_of(found, 8)
    first, second, third = texts_with_one_start()
    model.read((second, third))
    read = model._target.computed_tokens
    soft = model.soft((third, second))
    assert model._target.computed_tokens == read
    assert torch.equal(soft.rows[:, : len(labelled(third))], model.soft((third,)).rows)
    model.soft((first,))
    assert model._target.computed_tokens > read


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_tokens_that_the_student_lacks_count_as_never_said(teacher: Path, quantize: str) -> None:
    found: AnyTarget = read_target(str(teacher))
    soft = teacher_of(found, 64, 100, quantize).soft(texts_with_one_start())
    assert int(soft.rows.max()) < 100 and int(soft.rows.min()) == -1


def ids_of(found: AnyTarget, text: str) -> list[int]:
    ids: list[int] = found.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def bound_text(found: AnyTarget, answers: tuple[str, ...], number: int = 0) -> Text:
    """A conversation with these answers, each behind the user's "q" and up to its end."""
    ids, said = [], []
    (end,) = found.eos_ids
    for answer in answers:
        written, asked = [*ids_of(found, answer), end], ids_of(found, "q")
        ids += [*asked, *written]
        said += [False] * len(asked) + [True] * len(written)
    return Text(number, torch.tensor(ids), torch.tensor(said))


def likely(found: AnyTarget, soft: Soft) -> list[set[str]]:
    """The texts of the tokens that have a probability, place by place."""
    rows = zip(soft.rows[0].tolist(), soft.probabilities[0].tolist(), strict=True)
    return [
        {
            found.tokenizer.decode([token])
            for token, share in zip(tokens, shares, strict=True)
            if share
        }
        for tokens, shares in rows
    ]


def test_only_what_the_grammar_allowed_is_learnt_of_an_answer_that_it_bound(teacher: Path) -> None:
    found = read_target(str(teacher))
    grammar = Grammar("regex", "a[bc]d", "grammar")
    text = bound_text(found, ("abd", "acd"))  # the grammar begins anew with the second answer
    free = teacher_of(found, VOCABULARY).soft((text,))
    soft = teacher_of(found, VOCABULARY, grammars={0: grammar}).soft((text,))
    (end,) = (found.tokenizer.decode([token]) for token in found.eos_ids)
    assert likely(found, soft) == [{"a"}, {"b", "c"}, {"d"}, {end}] * 2
    assert torch.allclose(soft.probabilities.sum(-1), torch.ones(1, 8), atol=2e-3)
    # What is left keeps its proportions.
    before, after = (distribution(s.rows[0], s.probabilities[0], VOCABULARY) for s in (free, soft))
    b, c = (ids_of(found, word)[0] for word in "bc")
    assert float(before[1, b] / before[1, c]) == pytest.approx(
        float(after[1, b] / after[1, c]), rel=0.02
    )


def test_where_no_likely_token_is_allowed_the_answer_is_certain(teacher: Path) -> None:
    found = read_target(str(teacher))
    text = bound_text(found, ("abd",))
    free = teacher_of(found, 1).soft((text,))
    soft = teacher_of(found, 1, grammars={0: Grammar("regex", "a[bc]d", "grammar")}).soft((text,))
    assert not torch.equal(free.rows[0, :, 0], text.ids[text.said])
    assert torch.equal(soft.rows[0, :, 0], text.ids[text.said])
    assert torch.equal(soft.probabilities, torch.ones(1, 4, 1))


def test_answers_that_no_grammar_bound_stay_as_they_are(teacher: Path) -> None:
    found = read_target(str(teacher))
    texts = (bound_text(found, ("abd",)), bound_text(found, ("abd",), 1))
    grammars = {1: Grammar("regex", "a[bc]d", "grammar")}
    model = teacher_of(found, 8, grammars=grammars)
    assert torch.equal(
        model.soft(texts[:1]).probabilities, teacher_of(found, 8).soft(texts[:1]).probabilities
    )
    assert not torch.equal(model.soft(texts[1:]).rows, model.soft(texts[:1]).rows)


def test_where_a_grammar_gives_up_the_answer_is_certain(
    teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_target(str(teacher))
    fill = GrammarState.fill

    def giving_up(state: GrammarState, masks: np.ndarray, draft: list[int]) -> None:
        fill(state, masks, draft)
        state._gave_up = (1, "too heavy")

    monkeypatch.setattr(GrammarState, "fill", giving_up)
    model = teacher_of(found, VOCABULARY, grammars={0: Grammar("regex", "a[bc]d", "grammar")})
    soft = model.soft((bound_text(found, ("abd",)),))
    (end,) = (found.tokenizer.decode([token]) for token in found.eos_ids)
    assert likely(found, soft) == [{"a"}, {"b"}, {"d"}, {end}]

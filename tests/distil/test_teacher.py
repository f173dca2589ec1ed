"""Test the larger model's distribution along texts, as our engine serves it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.distil.packs import labelled
from paceline.distil.teacher import Teacher
from paceline.models.any_target import AnyTarget, read_target
from paceline.training.packs import Text
from paceline.training.transformers_target import load_causal_model
from tests.training.twins import random_text

VOCABULARY = 256


def texts_with_one_start() -> tuple[Text, ...]:
    start = random_text(40, 0, VOCABULARY, 9).ids
    texts = []
    for number, tokens in enumerate((7, 20, 12)):
        ids = torch.cat([start, random_text(tokens, 0, VOCABULARY, number).ids])
        texts.append(Text(number, ids, torch.arange(len(ids)) >= len(start)))
    return tuple(texts)


def distribution(soft_tokens: torch.Tensor, shares: torch.Tensor, size: int) -> torch.Tensor:
    return torch.zeros(len(soft_tokens), size).scatter_(-1, soft_tokens, shares)


def test_what_is_learnt_is_what_the_model_says_of_each_text_alone(teacher: Path) -> None:
    found = read_target(str(teacher))
    size = found.shape.vocab_size
    module = load_causal_model(found, torch.float32, "cpu")
    texts = texts_with_one_start()
    soft = Teacher(found, size, size, "cpu", None).soft(texts)
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
    model = Teacher(found, 8, found.shape.vocab_size, "cpu", None)
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
    soft = Teacher(found, 64, 100, "cpu", quantize).soft(texts_with_one_start())
    assert int(soft.rows.max()) < 100 and int(soft.rows.min()) == -1

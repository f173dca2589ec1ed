"""What the command line accepts, and what it refuses by name."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import paceline.__main__
from paceline import __version__
from paceline.cli import COMMANDS, JOBS, build_parser, help, main, options, parse, with_job
from paceline.cli.option import options_of, parse_bytes
from paceline.cli.serve import ServeCommand
from paceline.core import InvalidRequest
from paceline.engine.config import EngineConfig
from paceline.server.settings import ServerSettings
from tests.docs.blocks import ROOT


def engine_config(*arguments: str) -> EngineConfig:
    args = build_parser().parse_args(["generate", "hi", *arguments])
    return options.read_options(args, EngineConfig)


def test_with_no_option_the_engine_has_its_defaults() -> None:
    assert engine_config() == EngineConfig()


def test_every_engine_option_can_be_set() -> None:
    config = engine_config(
        *("--model", "m", "--drafter", "ngram", "--drafter", "x=suffix", "--dtype", "float32"),
        *("--device", "cuda", "--backend", "torch", "--max-model-len", "99", "--kv-memory", "2MiB"),
        *("--max-num-seqs", "3", "--max-waiting", "4", "--token-budget", "5"),
        *("--max-stretch", "2.5", "--ttft-goal", "1", "--tpot-goal", "0.05"),
        *("--rule", "synthetic", "--synthetic", "0.9,0.5"),
        *("--no-prefix-cache", "--engine-seed", "7", "--threads", "1", "--draft-policy", "fixed"),
        *("--draft-window", "512", "--holdback", "0.01", "--quantize", "int8"),
        *("--spare-drafter-memory", "3MiB"),
    )
    assert config.drafter_specs == ("ngram", "x=suffix")
    assert config.kv_memory == 2 * 2**20
    assert config.synthetic == (0.9, 0.5)
    defaults = dataclasses.asdict(EngineConfig())
    same = [name for name, value in dataclasses.asdict(config).items() if value == defaults[name]]
    assert same == ["draft_tree"], "which rule synthetic refuses"
    assert engine_config("--draft-tree", "7").draft_tree == 7


def test_every_server_option_can_be_set() -> None:
    command = parse(
        [
            *("serve", "--host", "::1", "--port", "1", "--api-key", "k"),
            *("--served-model-name", "m", "--spec-metrics", "none", "--drain-timeout", "2"),
            *("--max-body", "3KiB", "--keep-alive", "4", "--read-timeout", "5"),
            *("--write-timeout", "6", "--max-connections", "7", "--allow-host", "a.example"),
            *("--share-answers", "never", "--steady-stream", "50", "--api-key-file", "keys"),
            *("--allow-origin", "*", "--root-path", "/llm", "--uds", "s", "--ssl-certfile", "c"),
            *("--ssl-keyfile", "k", "--lenient", "--log-level", "error", "--log-format", "json"),
            *("--stored-responses", "9", "--stored-responses-memory", "1MiB"),
            *("--otlp-endpoint", "http://127.0.0.1:4318/v1/traces", "--admin-key", "a"),
            *("--traces", "t", "--traces-tokens", "--traces-ttl", "1", "--traces-keep", "2"),
            *("--traces-sample", "0.5", "--traces-redact", "privacy:redact"),
        ]
    )
    assert isinstance(command, ServeCommand)
    settings = command.server
    defaults = dataclasses.asdict(ServerSettings())
    same = [name for name, value in dataclasses.asdict(settings).items() if value == defaults[name]]
    assert same == []


@pytest.mark.parametrize("model", [EngineConfig, ServerSettings])
def test_every_field_says_what_it_means(model: type) -> None:
    assert [option.field for option in options_of(model).values() if not option.text] == []


def test_help_shows_the_defaults_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for command in ("generate", "chat", "serve"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown[command] = " ".join(capsys.readouterr().out.split())
    assert "most tokens of the answer (default: 256)" in shown["generate"]
    assert "most tokens of the answer (default: 512)" in shown["chat"]
    assert "0 is argmax (0 to 100; default: 0.7)" in shown["chat"]
    assert "longest request body (default: 4MiB)" in shown["serve"]
    assert "--no-prefix-cache" in shown["serve"] and "prefixes (default" not in shown["serve"]


def test_drafter_none_stands_alone() -> None:
    assert engine_config("--drafter", "none").drafter_specs == ()
    with pytest.raises(InvalidRequest, match="drafter"):
        engine_config("--drafter", "none", "--drafter", "ngram")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("1.5G", 1_500_000_000), ("2GiB", 2**31), ("512mib", 2**29), ("3 KB", 3000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["generate", "hi", "--kv-memory", "lots"], "--kv-memory"),
        (["generate", "hi", "--temperature", "-1"], "temperature"),
        (["generate", "hi", "--max-tokens", "0"], "max_tokens"),
        (["generate", "hi", "--logprobs", "3"], "logprobs"),
        (["generate", "hi", "--off", "--max-draft-len", "3"], "max_draft_len"),
        (["generate", "hi", "--max-draft-len", "1000"], "max_draft_len"),
        (["generate", "hi", "--threads", "0"], "threads"),
        (["generate", "hi", "--rule", "guess"], "--rule"),
        (["generate", "hi", "--draft-policy", "fixed:x"], "draft_policy"),
        (["generate", "hi", "--holdback", "2"], "holdback"),
        (["generate", "hi", "--synthetic", "0.5,x"], "--synthetic"),
        (["bench", "--runs", "0"], "runs"),
        (["bench", "--concurrency", "4"], "concurrency"),
        (["bench", "--api-key", "x"], "api_key"),
        (["bench", "--url", "http://127.0.0.1:9", "--threads", "1"], "threads"),
        (["bench", "--prompts", "no-such-set"], "prompts"),
        (["serve", "--read-timeout", "0"], "read_timeout"),
        (["serve", "--max-connections", "1000000"], "max_connections"),
        (["serve", "--allow-host", "http://a.example"], "allow_host"),
        (["ui", "--allow-host", "a.example:80"], "allow_host"),
        (["serve", "--allow-origin", "chat.example"], "allow_origin"),
        (["serve", "--root-path", "llm/"], "root_path"),
        (["serve", "--ssl-keyfile", "key.pem"], "ssl_keyfile"),
        (["serve", "--otlp-endpoint", "collector:4317"], "otlp_endpoint"),
        (["serve", "--port", "0", "--ssl-certfile", "/no/such.pem"], "ssl_certfile"),
        (["serve", "--api-key-file", "/no/such/keys"], "api_key_file"),
        (["serve", "--api-key", "a b c"], "api_key"),
        (["serve", "--config", "/no/such.toml"], "config"),
        (["unknown"], "COMMAND"),
        ([], "COMMAND"),
    ],
)
def test_bad_input_is_refused_by_name_with_code_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as leaving:  # argparse's own refusals
        code = leaving.code
    assert code == 2
    assert named in capsys.readouterr().err


def test_a_server_that_is_not_there_is_a_failure_not_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server at http://127.0.0.1:9" in capsys.readouterr().err


def test_ctrl_c_while_commands_are_imported_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "paceline.cli", Interrupted())
    assert paceline.__main__.main() == 130


def test_help_is_quick_because_it_imports_no_torch() -> None:
    script = (
        "import sys; from paceline.cli import build_parser; build_parser().format_help(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["serve", "--prt", "3"], ["paceline serve: error: unknown argument --prt; did you mean "
                                   "--port?", "Try: paceline serve --help"]),
        (["predict"], ["paceline predict: error: the following arguments are required: model, "
                                   "--hardware, --drafter", "Try: paceline predict --help"]),
        (["drafter", "doctr"], ["paceline drafter: error: argument JOB: got 'doctr'; did you mean "
                                "doctor? Expected one of find, inspect, doctor, convert, costs, "
                                "watch, push",
                                "Try: paceline drafter --help"]),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_answered_in_two_lines(
    arguments: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], ["set: got '/nope'", "the following arguments are required: --out, --steps, "
                                  "--epochs or --hours", "Try: paceline train --help"]),
        (["--out", "run", "--steps", "1"], ["set: got '/nope'"]),
        (["--out", "run", "--epochs", "1", "--init", "/gone", "--held-out", "a=/lost"],
         ["set: got '/nope'", "set: got '/lost'", "'/gone': no such drafter"]),
        (["--out", "run", "--epochs", "1", "--held-out", "a"],
         ["set: got '/nope'", "held_out: got 'a'; expected NAME=FOLDER"]),
        (["--out", "run", "--steps", "1", "--epochs", "1", "--micro", "3", "--model", "/gone"],
         ["'/gone': no such model", "set: got '/nope'", "steps: got 1; expected either",
          "micro: got 3"]),
    ],
)  # fmt: skip
def test_train_tells_at_once_what_is_not_there_what_is_missing_and_what_is_wrong(
    more: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["train", "/nope", *more])
    except SystemExit as leaving:
        code = leaving.code
    assert code == 2
    lines = capsys.readouterr().err.removeprefix("paceline train: error: ")
    lines = lines.removeprefix("paceline: error: ").splitlines()
    assert [line[: len(start)] for line, start in zip(lines, told, strict=True)] == told


def test_every_command_is_in_a_group_of_the_help() -> None:
    grouped = [name for names in help.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted([*COMMANDS, *JOBS])


def test_help_has_examples_that_work_and_pages_that_exist() -> None:
    jobs = [f"{name} {job}" for name, (_, kinds) in JOBS.items() for job in kinds]
    assert set(help.EXAMPLES) == {*COMMANDS, *jobs}
    for name, lines in help.EXAMPLES.items():
        for line in lines:
            (command,) = [part for part in re.split("[|>]", line) if "paceline" in part]
            program, *words = shlex.split(command)
            words = [*with_job(words)]
            assert [program, *words[: len(name.split())]] == ["paceline", *name.split()]
            build_parser().parse_args(words)
    assert [page for page in help.PAGES.values() if not (ROOT / "docs" / page).is_file()] == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("paceline dra", ["drafter", "drafters"]),
        ("paceline serve --dt", ["--dtype "]),
        ("paceline predict qwen3-8", ["qwen3-8b "]),
        ("paceline predict Qwen3-8B --hardware H20", ["H200 "]),
    ],
)
def test_shells_complete_commands_options_and_names(
    line: str, offered: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(out), "COMP_LINE": line,
             "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "|"}  # fmt: skip
    command = [sys.executable, "-m", "paceline.cli"]
    subprocess.run(command, env={**os.environ, **asked}, check=True, cwd=tmp_path)
    assert out.read_text().split("|") == offered


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"paceline {__version__}"


@pytest.mark.parametrize(
    ("words", "others"),
    [(["serve", "x"], {"paceline.cli.watch"}), (["traces", "show", "x"], set[str]())],
)
def test_a_command_starts_without_the_modules_of_others(words: list[str], others: set[str]) -> None:
    script = f"import sys; from paceline.cli import parse; parse({words}); print(*sys.modules)"
    env = {name: text for name, text in os.environ.items() if not name.startswith("PACELINE_")}
    started = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, env=env
    )
    imported = set(started.stdout.decode().split())
    paths = [*COMMANDS.values(), *(path for _, jobs in JOBS.values() for path in jobs.values())]
    modules = {path.partition(":")[0] for path in paths} | {"paceline.bench", "argcomplete"}
    assert imported & modules - others == {f"paceline.cli.{words[0]}"}

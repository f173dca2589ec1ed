"""Options out of the environment and a file: one name, one order, errors that name the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.cli import parse
from paceline.cli.bench import BenchCommand
from paceline.cli.chat import ChatCommand
from paceline.cli.serve import ServeCommand, UiCommand
from paceline.core import InvalidRequest

TOML = """
[serve]
model = "from-file"
port = 8101
drafter = ["ngram", "x=suffix"]
max_body = "3KiB"
no-prefix-cache = true
synthetic = [0.9, 0.5]
rule = "synthetic"

[drafter.convert]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "paceline.toml"
    path.write_text(TOML)
    return path


def serve(*arguments: str) -> ServeCommand:
    command = parse(["serve", *arguments])
    assert isinstance(command, ServeCommand)
    return command


def test_a_file_sets_options_of_every_kind(config: Path) -> None:
    command = serve("--config", str(config))
    assert (command.model, command.engine.model) == ("from-file", "from-file")
    assert command.server.port == 8101 and command.server.max_body_bytes == 3 * 2**10
    assert command.engine.drafter_specs == ("ngram", "x=suffix")
    assert command.engine.prefix_cache is False and command.engine.synthetic == (0.9, 0.5)
    yaml = config.with_suffix(".yaml")
    yaml.write_text("serve:\n  port: 8102\n  drafter: ngram\n")
    assert serve("--config", str(yaml)).server.port == 8102


def test_the_nearer_place_wins(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CONFIG", str(config))
    assert serve().server.port == 8101
    monkeypatch.setenv("PACELINE_PORT", "8201")
    monkeypatch.setenv("PACELINE_DRAFTER", "suffix")
    monkeypatch.setenv("PACELINE_NO_PREFIX_CACHE", "false")
    assert serve().server.port == 8201
    assert serve().engine.drafter_specs == ("suffix",) and serve().engine.prefix_cache
    command = serve("other", "--port", "8301", "--drafter", "none")
    assert command.server.port == 8301 and command.model == "other"
    assert command.engine.drafter_specs == ()
    monkeypatch.setenv("PACELINE_PORT", "")  # as a compose file leaves it
    assert serve().server.port == 8101


def test_a_servers_key_goes_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_API_KEY", "one")
    monkeypatch.setenv("PACELINE_URL", "http://a")
    bench = parse(["bench"])
    assert isinstance(bench, BenchCommand) and (bench.url, bench.api_key) == ("http://a", "one")


def test_what_is_set_for_a_server_does_not_hinder_those_who_ask_it(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"DEVICE": "cuda", "MODEL": "org/mine", "API_KEY": "team-a one\ntwo"}.items():
        monkeypatch.setenv(f"PACELINE_{name}", text)
    config.write_text("[chat]\nquantize = 'int8'\nmax-tokens = 7\n[bench]\nmodel = 'theirs'")
    chat = parse(["chat", "--url", "http://a", "--config", str(config)])
    assert isinstance(chat, ChatCommand)
    assert (chat.model, chat.engine.device, chat.engine.quantize) == (None, "cpu", None)
    assert chat.sampling.max_tokens == 7 and chat.api_key == "one"
    bench = parse(["bench", "--url", "http://a", "--config", str(config)])
    assert isinstance(bench, BenchCommand) and (bench.model, bench.api_key) == ("theirs", "one")
    with pytest.raises(InvalidRequest, match="device: got 'cuda'; expected no such option"):
        parse(["chat", "--url", "http://a", "--device", "cuda"])
    local = parse(["chat"])
    assert isinstance(local, ChatCommand) and local.engine.device == "cuda"


def test_yaml_and_toml_keep_what_is_written(tmp_path: Path) -> None:
    yaml, toml = tmp_path / "p.yaml", tmp_path / "p.toml"
    yaml.write_text("chat:\n  off: true\nserve:\n  served-model-name: 1.10\n  lenient: true")
    toml.write_text("[serve]\nserved-model-name = 1.10")
    chat = parse(["chat", "--config", str(yaml)])
    assert isinstance(chat, ChatCommand) and chat.speculation.off
    for path in (yaml, toml):
        assert serve("--config", str(path)).server.served_model_names == ("1.10",)
    yaml.write_text("serve:\n  lenient: yes")
    with pytest.raises(InvalidRequest, match="expected true or false"):
        serve("--config", str(yaml))


def test_switches_and_lists_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_LENIENT", "1")
    monkeypatch.setenv("PACELINE_API_KEY", "team-a one\n two")
    assert serve().server.lenient
    keys = serve().server.keys_by_name
    assert {name: key.key for name, key in keys.items()} == {"team-a": "one", "key-2": "two"}
    assert isinstance(parse(["ui"]), UiCommand)
    bench = parse(["bench"])  # asks no server: the key is none of its business
    assert isinstance(bench, BenchCommand) and bench.api_key is None
    keyed = parse(["bench", "--url", "http://a"])
    assert isinstance(keyed, BenchCommand) and keyed.api_key is not None


@pytest.mark.parametrize("command", [["tune"], ["engine", "status"], ["engine", "metrics"]])
def test_a_server_at_its_usual_address_gets_the_key_too(command, monkeypatch) -> None:
    monkeypatch.setenv("PACELINE_API_KEY", "team-a one\n two")
    asks: Any = parse(command)
    assert (asks.url, asks.api_key) == ("http://127.0.0.1:8000", "one")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[serve]\nprot = 1", r"paceline\.toml: serve\.prot: no such option.*did you mean port"),
        ("[serv]\nport = 1", r"paceline\.toml: serv: no such table.*did you mean serve"),
        ("[drafter]\nfoo = 1", r"paceline\.toml: drafter\.foo: no such table.*a job, as \["),
        ("[drafter.convrt]", r"drafter\.convrt: no such table.*did you mean convert"),
        ("port = 1", r"paceline\.toml: port: no such table"),
        ("[serve]\nport = 'x'", r"paceline\.toml: serve\.port: got 'x'; expected a whole number"),
        ("[serve]\nport = 70000", "port"),
        ("[serve]\nlenient = 'yes'", r"serve\.lenient: got 'yes'; expected true or false"),
        ("[serve]\nrule = 'guess'", r"serve\.rule: got 'guess'; expected one of match"),
        ("[serve]\nport = {a = 1}", r"serve\.port"),
        ("[serve\n", r"config: .*TOML"),
    ],
)
def test_errors_name_the_file_and_the_key(config: Path, text: str, named: str) -> None:
    config.write_text(text)
    with pytest.raises(InvalidRequest, match=named):
        serve("--config", str(config))


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("PACELINE_PORT", "tcp://10.0.0.1:80", "PACELINE_PORT: .*enableServiceLinks"),
        ("PACELINE_LENIENT", "perhaps", "PACELINE_LENIENT: got 'perhaps'"),
        ("PACELINE_MAX_NUM_SEQ", "4", "did you mean PACELINE_MAX_NUM_SEQS"),
        ("PACELINE_PROT", "1", r"did you mean PACELINE_PORT\?"),
        ("PACELINE_KV_MEMORY", "lots", "PACELINE_KV_MEMORY"),
    ],
)
def test_errors_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, named: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidRequest, match=named):
        serve()


def test_a_file_that_is_not_there_may_be_of_either_kind() -> None:
    with pytest.raises(InvalidRequest, match=r"^config: .*TOML or YAML file .*No such file"):
        serve("--config", "/nope")


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("PACELINE_CACHE", "/tmp")
    assert serve().server.port == 8000


def test_required_options_may_come_from_anywhere_but_must_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["roofline", "fit", "steps.csv", "--out", "x.json"])
    shown = capsys.readouterr().err
    assert "--model" in shown and "--hardware" in shown
    monkeypatch.setenv("PACELINE_MODEL", "Qwen3-8B")
    monkeypatch.setenv("PACELINE_HARDWARE", "h100")
    parse(["roofline", "fit", "steps.csv", "--out", "x.json"])

"""The settings of a run tell the command's options, its help, and the page on training."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from paceline.cli import build_parser, parse
from paceline.cli.option import options_of
from paceline.cli.train import TrainCommand
from paceline.core import InvalidRequest
from paceline.core.field_types import fields_of
from paceline.training.config import DEFAULTS, TrainConfig
from tests.docs.tables import check_page, field_table

NEEDED = {"model": "m", "sets": ("set",), "out": "run", "steps": 1}


def test_the_page_on_training_has_every_setting() -> None:
    check_page("training.md", field_table(TrainConfig, values=True))


def test_every_setting_is_an_option_with_the_same_default() -> None:
    given = parse(["train", "set", "--out", "run", "--steps", "1"])
    options = options_of(TrainCommand)
    for name, field in fields_of(TrainConfig).items():
        assert name in options
        written = ("held_out", "out_of_domain", "mix", "trackers", "target_options", *NEEDED)
        assert name in written or getattr(given, name) == field.get_default(), name


def test_options_of_vllm_are_read_from_the_command_line() -> None:
    named = ["--target-options", "quantization=fp8", "--target-options", 'hf_overrides={"a": 1}']
    given = parse(
        ["train", "set", "--out", "run", "--steps", "1", "--target-engine", "vllm", *named]
    )
    assert given.target_options == {"quantization": "fp8", "hf_overrides": '{"a": 1}'}


def test_help_tells_bounds_choices_and_defaults(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["train", "--help"])
    shown = capsys.readouterr().out
    for words in (
        "draft layers of a new drafter (1 to 8; default: 3)",
        "(dpace, exponential, uniform; default: dpace)",
        "(default: smollm2-135m)",
        "peak learning rate of AdamW (0 to 1; default: 0.001)",
        "separated by commas (tensorboard, wandb, trackio, mlflow)",
    ):
        assert words in shown


def test_the_schema_tells_the_bounds() -> None:
    schema = TypeAdapter(TrainConfig).json_schema()
    layers = next(part for part in schema["properties"]["layers"]["anyOf"] if "minimum" in part)
    assert (layers["minimum"], layers["maximum"]) == (1, 8)
    assert schema["additionalProperties"] is False
    assert sorted(schema["required"]) == ["model", "out", "sets"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 2}, "layer: unknown field; did you mean layers"),
        ({"mix": {"ce": 0.0}}, r"mix\.ce: got 0\.0; expected a number from 1e-09"),
        (
            {"mix": {"on_policy": 1.0}},
            "mix: got 'on_policy'; expected init beside it: a drafter to go on from",
        ),
        ({"mix": {"expected_matches": 1.0}, "soft_tokens": 8}, "soft_tokens: got 8; expected an"),
        (
            {"mix": {"expected_speedup": 1.0}},
            "round_costs: got null; expected what `paceline drafter costs` prints",
        ),
        ({"round_costs": (1.2,)}, "round_costs: got .*; expected expected_speedup in mix"),
        (
            {"mix": {"expected_speedup": 1.0}, "round_costs": [1.2, 0.0]},
            r"round_costs\[1\]: got 0\.0; expected a number from 0\.001",
        ),
        ({"sets": ()}, "sets: got .*; expected at least one folder"),
        ({"texts": 4.0}, r"texts: got 4\.0"),
        ({"shard_target": "yes"}, "shard_target: got 'yes'"),
        ({"device": "tpu"}, "device: got 'tpu'; expected 'cpu' or 'cuda'"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named(changes, message) -> None:
    with pytest.raises(InvalidRequest, match=message):
        TrainConfig(**{**NEEDED, **changes})


def test_a_setting_without_a_value_has_a_default_and_zero_is_a_value() -> None:
    assert TrainConfig(**NEEDED).value("matrix_lr") == DEFAULTS["matrix_lr"]
    assert TrainConfig(**NEEDED, matrix_lr=0.0).value("matrix_lr") == 0
    short = TrainConfig(**NEEDED, short_block=2)
    assert short.value("short_share") == DEFAULTS["short_share"]


def test_epochs_become_steps() -> None:
    config = TrainConfig(model="m", sets=("set",), out="run", epochs=1.5, texts=4, micro=4)
    assert config.total_steps(8) == 3 and config.total_steps(1) == 1
    assert not config.soft
    assert TrainConfig(**NEEDED, labels="target").soft

"""`paceline tune` against our own server, and its launch lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cli import main
from paceline.cli.tune import advice_lines, recommended
from paceline.core import InvalidRequest
from paceline.engines import KINDS
from paceline.engines.kind import LaunchPlan, Program
from paceline.engines.tune.advice import Advice, Gain, Setting
from tests.server.conftest import listening
from tests.server.test_real_engine import tiny_engine

SAME = Gain(1.0, 0.9, 1.1)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with listening(tiny_engine(max_num_seqs=8)) as running:
        yield running.url


def test_our_own_server_is_tuned(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", url, "--at-once", "2", "--seconds", "20", "--json"]) == 0
    said = capsys.readouterr()
    assert "up to 2 at once, for about 20 s at most" in said.err
    result = json.loads(said.out)
    assert result["engine"] == "paceline" and result["seconds"] < 40
    timed = [setting["requests"] for setting in result["settings"]]
    # two answers of so small a model may be over before they run side by side
    assert timed == [1, 2] or (timed == [1] and "2 at once" in result["notes"][0])
    for setting in result["settings"]:
        assert len(setting["speeds"]) == result["present_draft_len"] + 1
        low, high = setting["over_ar"][1:]
        assert low <= setting["over_ar"][0] <= high


def test_the_settings_are_shown_as_a_table(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", url, "--at-once", "2", "--seconds", "20", "--requests", "2"]) == 0
    out = capsys.readouterr().out
    assert "draft length" in out and "over AR" in out
    assert "rounds accepted positions 1 to" in out and "For 2 at once: " in out


def test_a_server_without_a_drafter_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(tiny_engine(drafter=())) as running:
        assert main(["tune", running.url]) == 2
    assert "an engine that runs with a drafter" in capsys.readouterr().err


def test_a_drafter_of_which_only_the_name_is_known_gets_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with listening(tiny_engine(drafter=("mine=suffix",))) as running:
        assert main(["tune", running.url, "--at-once", "1", "--seconds", "10"]) == 0
    said = capsys.readouterr().out
    assert "With --drafter FOLDER the launch line is printed too." in said
    assert "launch line:" not in said


def test_a_gain_over_today_that_is_not_certain_is_said() -> None:
    sure = Gain(1.2, 1.1, 1.3)
    unsure = advice(5, 3)
    certain = replace(
        unsure, settings=tuple(replace(each, over_present=sure) for each in unsure.settings)
    )
    hint = "Today's setting may be as good"
    assert any(hint in line for line in advice_lines(unsure, None))
    assert not any(hint in line for line in advice_lines(certain, None))


def advice(*lengths: int) -> Advice:
    """Advice with these draft lengths for 1, 2, 4, … requests."""
    settings = tuple(
        Setting(2**power, length, 2.0, SAME, SAME, SAME, (1.0,))
        for power, length in enumerate(lengths)
    )
    return Advice(7, (0.5,), 100, settings, (), None, None, 1.0, 1)


def line(plan: LaunchPlan, given: Advice, requests: int | None = None) -> tuple[Any, list[str]]:
    client: Any = SimpleNamespace(kind=KINDS["vllm"])
    launch, notes = recommended(client, plan, given, requests)
    words = list(launch.command)
    flag = "--speculative-config"
    return (json.loads(words[words.index(flag) + 1]) if flag in words else None), notes


PLAN = LaunchPlan("model", kind="ngram", draft_len=7, program=Program(("vllm", "serve"), "0.32.0"))


def test_vllm_gets_a_table_by_batch_size() -> None:
    config, _ = line(PLAN, advice(5, 3, 3, 0))
    assert config["num_speculative_tokens"] == 5
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 5], [2, 5, 3], [6, 8, 0]]


def test_a_stated_load_gets_one_draft_length() -> None:
    config, _ = line(PLAN, advice(5, 3, 3, 0), requests=4)
    assert config["num_speculative_tokens"] == 3
    assert "num_speculative_tokens_per_batch_size" not in config
    assert line(PLAN, advice(5, 3, 3, 0), requests=8)[0] is None
    assert line(PLAN, advice(0, 0), requests=None)[0] is None


def test_a_table_that_is_known_to_be_broken_is_left_out_by_the_issues_number() -> None:
    old = replace(PLAN, program=Program(("vllm", "serve"), "0.30.0", cpu=True))
    config, notes = line(old, advice(5, 3, 3, 0))
    assert config["num_speculative_tokens"] == 5
    assert "num_speculative_tokens_per_batch_size" not in config
    assert any("vllm#47014" in note for note in notes)
    gpu = replace(PLAN, program=Program(("vllm", "serve"), "0.32.0"))
    assert any("vllm#49548" in note for note in line(gpu, advice(5, 3, 3, 0))[1])


@pytest.mark.parametrize("name", ["paceline", "sglang"])
def test_engines_without_a_table_refuse_one(name: str) -> None:
    with pytest.raises(InvalidRequest, match="draft_lens"):
        KINDS[name].launch(replace(PLAN, program=None, draft_lens=((1, 1, 5), (2, 8, 0))))

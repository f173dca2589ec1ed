"""The one-line form of a drafter, split into its parts; lines that cannot be split."""

from __future__ import annotations

import pytest

from paceline.core import InvalidRequest
from paceline.core.spec_line import SpecLine, parse_options


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ngram", (None, "ngram", None, {})),
        ("fast=mtp:0.1", ("fast", "mtp", "0.1", {})),
        (" a = suffix , k=1 ", ("a", "suffix", None, {"k": ("1",)})),
        ("/models/a=b", (None, "/models/a=b", None, {})),
        ("replay:a=b.json,al=4", (None, "replay", "a=b.json", {"al": ("4",)})),
        ("x,rates=0.8, 0.7,k=2", (None, "x", None, {"rates": ("0.8", "0.7"), "k": ("2",)})),
        ("=ngram", ("", "ngram", None, {})),  # its reader refuses the name
    ],
)
def test_a_line_is_split(text: str, parts: tuple[object, ...]) -> None:
    line = SpecLine.parse(text, lists=("rates",))
    assert (line.name, line.kind, line.value, line.options) == parts


def test_the_head_is_written_back_without_the_name() -> None:
    assert SpecLine.parse("fast=mtp:0.1,k=1").head == "mtp:0.1"
    assert SpecLine.parse("Qwen/Qwen3-8B").head == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "drafter: got ''; expected [NAME=]KIND"),
        ("fast=", "expected [NAME=]KIND"),
        ("mtp:", "a value after 'mtp'"),
        ("mtp,", "'' is no key=value"),
        ("mtp,fast", "'fast' is no key=value"),
        ("mtp,k=1,2", "'2' is no key=value"),
        ("mtp,k=", "'k=' is no key=value"),
        ("mtp,k=1,k=2", "each option once; k is there twice"),
    ],
)
def test_a_line_that_cannot_be_split_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        SpecLine.parse(text)
    assert said in str(error.value)


def test_options_alone_are_refused_for_their_own_field() -> None:
    assert parse_options("precision", "kv=fp8,head=bf16") == {"kv": ("fp8",), "head": ("bf16",)}
    with pytest.raises(InvalidRequest, match="precision: got 'kv'; expected key=value"):
        parse_options("precision", "kv")

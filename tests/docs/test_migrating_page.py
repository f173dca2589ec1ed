"""The page for those who come from other servers names options and fields that exist."""

from __future__ import annotations

import re

import pytest

from paceline.cli import COMMANDS, all_options
from paceline.cli.options import offered_options
from paceline.cli.serve import ServeCommand
from paceline.server.idle_values import IDLE_VALUES
from paceline.server.protocol import ChatRequest
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "migrating.md").read_text("utf-8")


def section(name: str) -> str:
    return PAGE.split(f"## {name}\n")[1].split("\n## ")[0]


def rows(name: str) -> list[tuple[str, str]]:
    lines = [line for line in section(name).splitlines() if line.startswith("| ")][1:]
    return [(left.strip(), right.strip()) for left, right in
            (line.strip("| ").split(" | ", 1) for line in lines)]  # fmt: skip


@pytest.mark.parametrize("name", ["From vLLM", "From llama.cpp", "From Ollama"])
def test_every_option_on_the_right_exists(name: str) -> None:
    found = rows(name)
    assert len(found) > 10
    options = {flag for _, option in offered_options(ServeCommand) for flag in option.flags}
    if name == "From Ollama":  # its rows are about several commands
        options = {f"--{option}" for option in all_options()}
    options |= {"--config"}
    for left, right in found:
        if right.startswith("the same"):
            named = re.findall(r"`(--[a-z-]+)`", left)
        else:
            named = re.findall(r"(--[a-z-]+)", right)
        assert set(named) <= options, (left, right)
        variables = re.findall(r"PACELINE_[A-Z_]+", right)
        known = {f"PACELINE_{option.replace('-', '_').upper()}" for option in all_options()}
        assert set(variables) <= known | {"PACELINE_CACHE", "PACELINE_"}
        for command in re.findall(r"`paceline ([a-z]+)", right):
            assert command in COMMANDS


def test_every_field_that_is_said_to_be_the_same_exists() -> None:
    text = section("From vLLM").split("In requests, write")[1]
    same = re.findall(r"`([a-z_]+)`", text.partition("newer versions of vLLM;")[2])
    assert len(same) > 8 and set(same) <= set(ChatRequest.model_fields)


def test_samplers_that_are_off_pass() -> None:
    text = section("From llama.cpp")
    for name, value in re.findall(r"`([a-z_]+): ([a-z0-9]+)`", text):
        assert IDLE_VALUES[name] == {"true": True}.get(value, value if not value.isdigit()
                                                        else int(value))  # fmt: skip

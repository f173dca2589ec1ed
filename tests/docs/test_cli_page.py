"""The page on the command line leaves nothing out."""

from __future__ import annotations

import argparse
import re

import pytest

from paceline.cli import build_parser
from paceline.cli.option import options_of
from paceline.engine.config import EngineConfig
from paceline.server.settings import ServerSettings
from tests.docs.blocks import ROOT
from tests.docs.tables import option_row

# Pages that have a command's other options.
OTHER = {"train": "training.md", "distil": "distilling.md", "mock": "mocking.md"}


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {name: choice for action in found for name, choice in action.choices.items()}


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command and of its own subcommands."""
    own = {option for action in parser._actions for option in action.option_strings}
    return own.union(*(options(job) for job in subcommands(parser).values()))


def page_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def test_every_command_and_every_option_is_described() -> None:
    page = page_of("cli.md")
    missing = []
    for name, parser in subcommands(build_parser()).items():
        if f"## {name}\n" not in page:
            missing.append(name)
        missing += [f"{name} {job}" for job in subcommands(parser) if f"`{job}" not in page]
        named = options(parser) - {"-h", "--help"}
        others = re.findall(r"`(\w+)`|(--[\w-]+)", page_of(OTHER[name])) if name in OTHER else []
        elsewhere = {flag or f"--{field.replace('_', '-')}" for field, flag in others}
        missing += [f"{name} {option}" for option in named - elsewhere if f"`{option}`" not in page]
    assert missing == []


@pytest.mark.parametrize("model", [EngineConfig, ServerSettings])
def test_the_tables_have_the_rows_that_the_fields_make(model: type) -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    rows = set(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", page).splitlines())
    options = [option for option in options_of(model).values() if option.field != "model"]
    assert [option_row(option) for option in options if option_row(option) not in rows] == []

"""The page on the command line leaves nothing out."""

from __future__ import annotations

import argparse

from paceline.cli import build_parser
from tests.docs.blocks import ROOT


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(found.choices)


def test_every_command_and_every_option_is_described() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    missing = []
    for name, parser in subcommands().items():
        if f"## {name}\n" not in page:
            missing.append(name)
        for action in parser._actions:
            for option in action.option_strings:
                if option not in ("-h", "--help") and f"`{option}`" not in page:
                    missing.append(f"{name} {option}")
    assert missing == []

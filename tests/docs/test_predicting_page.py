"""The page on predictions shows what the commands print, and its prose has the same numbers."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.core.documents import Document
from paceline.roofline.acceptance import StatedAcceptance
from paceline.roofline.device import PRESETS, Calibration, Hardware
from paceline.roofline.scenario import StatedDrafter, StatedScenario
from paceline.roofline.scenario.evidence import GPU
from paceline.roofline.scenario.judging import cells
from paceline.roofline.traffic.log import LogLine
from tests.docs.blocks import ROOT, Block, blocks, commands
from tests.docs.tables import json_field_table

PAGE = ROOT / "docs" / "predicting.md"
HERE_DOCUMENT = re.compile(r"^cat > (\S+) <<'(\w+)'\n(.*?)^\2$", re.M | re.S)
SKIPPED = "…"  # a line of the page that stands for several


def examples() -> list[tuple[Block, Block]]:
    """Each block of commands that is followed by a block of what it prints."""
    found = [block for block in blocks(PAGE) if block.language in ("bash", "text")]
    return [(block, shown) for block, shown in pairwise(found) if shown.language == "text"]


def printed(block: Block, capsys: pytest.CaptureFixture[str]) -> list[str]:
    for name, _, text in HERE_DOCUMENT.findall(block.text):
        Path(name).write_text(text, encoding="utf-8")
    for line in commands(block, "paceline"):
        assert main(shlex.split(line)[1:]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("index", range(len(examples())))
def test_the_page_shows_what_is_printed(
    index: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    block, shown = examples()[index]
    lines = printed(block, capsys)
    place = 0
    for line in shown.text.splitlines():
        if line.strip() != SKIPPED and line.strip():
            assert line in lines[place:], f"not printed, or not in this order: {line!r}"
            place += lines[place:].index(line) + 1


def test_there_are_examples_of_a_dense_model_of_experts_of_fitting_and_of_traffic() -> None:
    asked = " ".join(block.text for block, _ in examples())
    for part in ("Qwen3.5-27B", "A3B", "roofline fit", "--traffic"):
        assert part in asked


def error_rows() -> list[str]:
    """The rows of the table of errors: what `benchmarks/published.py` computes."""
    found: dict[tuple[str, str], list[float]] = {}
    for cell in cells():
        name = f"{cell.table.name}, fitted" if cell.table.fitted else cell.table.name
        for what, error in cell.errors(PRESETS[GPU]).items():
            found.setdefault((name, what.replace("_", " ")), []).append(error)
    return [
        f"| {name} | {what} | {len(errors)} | {spread(errors)} |"
        for (name, what), errors in found.items()
    ]


def spread(errors: list[float]) -> str:
    ends = (f"{min(errors):+.0%}", f"{max(errors):+.0%}")
    return " to ".join(ends) if len(errors) > 1 else ends[0]


def test_the_table_of_published_errors_is_the_computed_one() -> None:
    _, _, after = PAGE.read_text("utf-8").partition("<!-- published: errors -->\n\n")
    assert after.partition("\n\n")[0].splitlines()[2:] == error_rows()


DOCUMENTS: tuple[type[Document], ...] = (
    StatedScenario, StatedDrafter, StatedAcceptance, Hardware, Calibration, LogLine,
)  # fmt: skip


@pytest.mark.parametrize("model", DOCUMENTS, ids=lambda model: model.__name__)
def test_the_tables_of_fields_are_those_of_the_documents(model: type[Document]) -> None:
    """Where this fails, paste what `core.documents.fields_table` writes."""
    mark = f"<!-- fields: {model.__name__} -->\n\n"
    _, found, after = PAGE.read_text("utf-8").partition(mark)
    assert found, f"no table of {model.__name__}"
    assert after.startswith(json_field_table(model) + "\n")

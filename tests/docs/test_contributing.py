"""CONTRIBUTING names files that exist and the order of rooms that import-linter checks."""

from __future__ import annotations

import re
import tomllib

from tests.docs.blocks import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PACKAGE = ROOT / "src" / "paceline"
MADE_LATER = ("KIND", "build/", ".venv")  # a newcomer's file, and what commands write


def named_files(text: str) -> list[str]:
    """Return the paths and Python files in backticks, without those that are made later."""
    names = re.findall(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|json|toml|svg)))`", text)
    return [name for name in names if not any(part in name for part in MADE_LATER)]


def exists(name: str) -> bool:
    """A path counts from the repository or the package, a bare file name from anywhere in them."""
    if any((base / name).exists() for base in (ROOT, PACKAGE)):
        return True
    bases = (PACKAGE, ROOT / "tests")
    return "/" not in name and any(True for base in bases for _ in base.rglob(name))


def rooms_in_order(text: str) -> list[set[str]]:
    """Return the rooms of `a < b | c < d`, from the lowest to the highest."""
    return [{room.strip() for room in step.split("|")} for step in text.split("<")]


def test_every_file_that_is_named_exists() -> None:
    names = named_files(TEXT)
    assert len(names) > 30
    assert sorted({name for name in names if not exists(name)}) == []


def test_a_missing_file_is_noticed() -> None:
    names = named_files("`server/app.py` and `server/no_such.py`, `no_such.py`, `tests/nowhere/`")
    missing = [name for name in names if not exists(name)]
    assert missing == ["server/no_such.py", "no_such.py", "tests/nowhere/"]


def test_the_order_of_rooms_is_that_of_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    block = re.search(r"\n\n((?:    .*\n)+)\n", TEXT)
    assert block is not None
    assert rooms_in_order(block[1]) == rooms_in_order(" < ".join(reversed(layers)))


def test_the_table_of_rooms_has_every_room() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("__")}
    rooms -= {"py", "version"}  # py.typed, and the version number
    table = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.M))
    assert table == rooms

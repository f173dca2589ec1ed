"""Print branch coverage by room, and hold it to the floors in pyproject.toml.

coverage json -o - | python -m tools.coverage_by_room

Coverage is coverage.py's own figure with branches on: (lines run + branches taken) / (lines +
branches). Exits with 1 where a room, or the package as a whole, is below its floor.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import TypedDict

from tools.lines import ROOT, TOP

PACKAGE = ("src", "paceline")


class Summary(TypedDict):
    """The counts of coverage.py for one file."""

    num_statements: int
    covered_lines: int
    num_branches: int
    covered_branches: int


class FileReport(TypedDict):
    """A file of coverage.py's JSON report."""

    summary: Summary


def main() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    floors: dict[str, int] = settings["tool"]["paceline"]["coverage"]
    files: dict[str, FileReport] = json.load(sys.stdin)["files"]
    run, total = Counter[str](), Counter[str]()
    for name, report in files.items():
        counts = report["summary"]
        for room in (room_of(Path(name)), "all"):
            run[room] += counts["covered_lines"] + counts["covered_branches"]
            total[room] += counts["num_statements"] + counts["num_branches"]
    print(f"{'room':<12}{'lines and branches':>20}{'covered':>10}{'floor':>8}")
    low = []
    for room in sorted(total, key=lambda room: (room == "all", room)):
        share = 100 * run[room] / total[room] if total[room] else 100.0
        floor = floors["all" if room == "all" else "room"]
        print(f"{room:<12}{total[room]:>20}{share:>9.1f}%{floor:>7}%")
        if share < floor:
            low.append(f"{room}: {share:.1f}% covered; expected at least {floor}%")
    print("\n".join(low))
    return 1 if low else 0


def room_of(path: Path) -> str:
    """The room that a file of the package lies in; TOP for the package's own files.

    Raises:
        ValueError: The path does not lie in src/paceline.
    """
    parts = path.parts
    start = parts.index(PACKAGE[1], parts.index(PACKAGE[0])) + 1
    return parts[start] if len(parts) > start + 1 else TOP


if __name__ == "__main__":
    sys.exit(main())

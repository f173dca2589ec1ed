"""Count the lines of Python by room, and hold each room to its budget in pyproject.toml.

python -m tools.lines

Prints a table of rooms with their lines, their budgets and the lines of their tests. Exits with 1
where a room has more lines than its budget, or no budget.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOP = "top"  # files of the package that lie in no room


def main() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    budgets: dict[str, int] = settings["tool"]["paceline"]["lines"]
    package = ROOT / "src" / "paceline"
    lines = rooms(package)
    tests = rooms(ROOT / "tests")
    print(f"{'room':<12}{'lines':>8}{'budget':>8}{'tests':>8}")
    for room in sorted(lines.keys() | budgets.keys()):
        count, budget = lines.get(room, 0), budgets.get(room)
        print(
            f"{room:<12}{count:>8}{budget if budget is not None else '-':>8}{tests.get(room, 0):>8}"
        )
    print(f"{'all':<12}{sum(lines.values()):>8}{sum(budgets.values()):>8}{sum(tests.values()):>8}")
    wrong = [room for room, count in lines.items() if count > budgets.get(room, 0)]
    for room in wrong:
        print(f"{room}: {lines[room]} lines; expected at most {budgets.get(room, 0)}")
    return 1 if wrong else 0


def rooms(folder: Path) -> dict[str, int]:
    """Lines of Python in each folder of `folder`, those of its own files under TOP."""
    counts: dict[str, int] = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        room = parts[0] if len(parts) > 1 else TOP
        counts[room] = counts.get(room, 0) + len(path.read_text("utf-8").splitlines())
    return counts


if __name__ == "__main__":
    sys.exit(main())

"""Mocked speedup against acceptance length, beside what the roofline predicts.

paceline mock MODEL --hardware MACHINE --calibration FILE --json RESULT ...
python benchmarks/mocked.py RESULT [RESULT ...] [--svg FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import machine, table

from paceline.bench.report.charts import Labels, lines
from paceline.core import InvalidRequest

TIERS = ("roofline", "calibrated")


def cells(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A model's name with each cell that was measured for it."""
    told = json.loads(Path(path).read_text("utf-8"))
    if told.get("format") != "paceline-mock/1" or any(
        set(cell["predicted"]) != set(TIERS) for cell in told["cells"]
    ):
        expected = "what `paceline mock --calibration FILE --json` wrote"
        raise InvalidRequest("result", path, expected)
    yield from ((told["model"], cell) for cell in told["cells"])


def row(name: str, cell: dict[str, Any]) -> tuple[Any, ...]:
    measured, predicted = cell["measured"], cell["predicted"]
    low, high = measured["speedup_interval"]
    ratios = [f"{predicted[tier]['predicted']['speedup']:.2f}" for tier in TIERS]
    return (name, cell["batch"], cell["draft_length"], f"{cell['acceptance_length']:.2f}",
            f"{measured['speedup']:.2f} ({low:.2f} to {high:.2f})", *ratios,
            f"{predicted['calibrated']['ratio']:.2f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", metavar="RESULT")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it")
    args = parser.parse_args()
    found = [each for path in args.results for each in cells(path)]
    table(
        f"mocked speedup by acceptance length incl. bonus ({machine()})",
        ["model", "batch", "draft length", "AL", "speedup measured (95%)", *TIERS,
         "measured ÷ calibrated"],
        [row(*each) for each in found],
    )  # fmt: skip
    if args.svg is not None:
        args.svg.write_text(drawing(found), encoding="utf-8")


def drawing(found: list[tuple[str, dict[str, Any]]]) -> str:
    """Of each batch of the first model a measured and a predicted line over AL."""
    drawn: dict[str, list[tuple[float, float]]] = {}
    for name, cell in found:
        if name != found[0][0]:
            continue
        what, al = f"batch {cell['batch']}", cell["acceptance_length"]
        drawn.setdefault(f"{what}, measured", []).append((al, cell["measured"]["speedup"]))
        predicted = cell["predicted"]["calibrated"]["predicted"]["speedup"]
        drawn.setdefault(f"{what}, predicted", []).append((al, predicted))
    title = f"Mocked speedup: {found[0][0]}"
    return lines(drawn, Labels(title, "acceptance length, incl. bonus", "speedup over AR"))


if __name__ == "__main__":
    main()

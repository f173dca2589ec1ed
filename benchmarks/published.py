"""Predictions against published measurements: errors by table, and wrong choices of a block.

    python benchmarks/published.py [--calibration PRESET] [--cells] [--fit]

--fit learns the preset `sglang-b200` again from the tables that it was fitted to; nothing runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from harness import table

from paceline.roofline.device import PRESETS, Calibration, preset
from paceline.roofline.fit import summary
from paceline.roofline.fit.least_squares import solve
from paceline.roofline.scenario.evidence import GPU
from paceline.roofline.scenario.judging import PublishedCell, cells, wrong_blocks

# unknowns of the fit with their typical values; attention has the efficiencies of matmuls
TYPICAL = {"memory_efficiency": 0.7, "compute_efficiency": 0.3, "overlap": 1.0,
           "step_overhead": 1e-3, "layer_overhead": 50e-6, "state_overhead": 100e-6}  # fmt: skip
LOW = (0.1, 0.1, 0.0, 0.0, 0.0, 0.0)
HIGH = (1.8, 4.0, 1.0, 10.0, 5.0, 10.0)
START = (1.0, 1.0, 0.03, 0.5, 1.0, 0.5)


def calibration_of(values: np.ndarray) -> Calibration:
    named = dict(zip(TYPICAL, (values * list(TYPICAL.values())).tolist(), strict=True))
    return Calibration(
        **named,
        attention_memory_efficiency=named["memory_efficiency"],
        attention_compute_efficiency=named["compute_efficiency"],
    )


def errors(judged: Sequence[PublishedCell], calibration: Calibration, name: str) -> list[float]:
    found = [cell.errors(calibration) for cell in judged]
    return [each[name] for each in found if name in each]


def fit() -> Calibration:
    """Least squares of relative errors: speedups and tokens per second alike."""
    judged = [cell for cell in cells() if cell.table.fitted]

    def residuals(values: np.ndarray) -> np.ndarray:
        calibration = calibration_of(values)
        both = [cell.errors(calibration).values() for cell in judged]
        return np.array([error for each in both for error in each])

    return calibration_of(solve(residuals, *map(np.array, (START, LOW, HIGH))).values)


def print_errors(calibration: Calibration) -> None:
    by_table: dict[str, list[PublishedCell]] = {}
    for cell in cells():
        by_table.setdefault(cell.table.name, []).append(cell)
    rows = []
    for name, judged in by_table.items():
        fitted = "yes" if judged[0].table.fitted else "no"
        for what in ("speedup", "tokens_per_second"):
            if found := errors(judged, calibration, what):
                middle, high = summary(found)
                rows.append((name, fitted, what.replace("_", " "), len(found), f"{middle:.0%}",
                             f"{high:.0%}", f"{min(found):+.0%} to {max(found):+.0%}"))  # fmt: skip
    headers = ["table", "fitted", "of", "points", "median", "nine of ten below", "errors"]
    table("predicted ÷ published − 1", headers, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibration", default=GPU, choices=list(PRESETS))
    parser.add_argument("--cells", action="store_true", help="print every cell")
    parser.add_argument("--fit", action="store_true", help="learn the preset again")
    args = parser.parse_args()
    calibration = fit() if args.fit else preset(args.calibration)
    if args.fit:
        print(calibration.model_dump(exclude_defaults=True))
    print_errors(calibration)
    if args.cells:
        for cell in cells():
            shown = {name: f"{error:+.0%}" for name, error in cell.errors(calibration).items()}
            print(f"{cell.name}: {shown}")
    wrong, pairs = wrong_blocks(calibration)
    print(f"wrong choices between two blocks: {len(wrong)} of {pairs}")


if __name__ == "__main__":
    main()

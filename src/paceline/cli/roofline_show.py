"""The output of `paceline roofline fit`: what it learned, its errors, what it could not tell."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from paceline.cli.show import plain_table
from paceline.roofline.fit import Judged, summary

SHOWN = 24  # points; of more, those that are furthest off
UNITS = {"step_overhead": (1e3, "ms"), "layer_overhead": (1e6, "µs"),
         "request_overhead": (1e6, "µs"), "row_overhead": (1e6, "µs")}  # fmt: skip


def title(judged: Judged) -> str:
    deployment = judged.case.deployment
    name = f"{deployment.architecture.name} on {deployment.hardware.name}"
    return f"{name}: fitted to {sum(judged.seen)} of {len(judged.points)} points"


def parameter_table(judged: Judged) -> Table:
    fit = judged.fit
    table = plain_table("learned", "value", "standard error", left=["learned"])
    values = {**fit.calibration.model_dump(), "draft_cost": fit.draft_cost}
    for name, deviation in fit.deviations.items():
        factor, unit = UNITS.get(name, (1.0, ""))
        value = values.get(name)
        shown = "" if value is None else f"{factor * value:.4g} {unit}".strip()
        table.add_row(name.replace("_", " "), shown, f"± {deviation:.1%}")
    if fit.calibration.row_tile > 1:
        table.add_row("row tile", str(fit.calibration.row_tile), "")
    return table


def residual_title(judged: Judged) -> str:
    if len(judged.points) <= SHOWN:
        return "Residuals"
    return f"Residuals: the {SHOWN} points that are furthest off"


def residual_table(judged: Judged) -> Table:
    """The points, by size; of many, those that are furthest off."""
    rows = list(zip(judged.points, judged.predicted, judged.errors, judged.seen, strict=True))
    if len(rows) > SHOWN:
        least = sorted(abs(row[2]) for row in rows)[-SHOWN]
        rows = [row for row in rows if abs(row[2]) >= least]
    table = plain_table("batch", "rows", "context", "measured ms", "predicted ms", "error", "")
    for point, seconds, error, seen in rows:
        table.add_row(
            str(point.batch),
            str(point.rows),
            str(point.context),
            f"{1e3 * point.seconds:.3f}",
            f"{1e3 * seconds:.3f}",
            f"{error:+.1%}",
            "" if seen else "held out",
        )
    return table


def lines(judged: Judged) -> Iterator[str]:
    fit = judged.fit
    yield (
        f"fitted points: median error {fit.median_error:.1%}, nine of ten within "
        f"{fit.high_error:.1%}"
    )
    held_out = judged.held_out_errors
    if held_out:
        median, high = summary(held_out)
        yield (
            f"[bold]held-out points ({len(held_out)}): median error {median:.1%}, nine of ten "
            f"within {high:.1%}[/]"
        )
    else:
        yield "held-out points: none; --fit-on 1/3 would say how it does on steps it has not seen"
    by_reason: dict[str, list[str]] = {}
    for name, reason in fit.not_identified.items():
        why, _, taken = reason.partition("; ")
        by_reason.setdefault(why, []).append(f"{name} ({taken})".replace("_", " "))
    for why, names in by_reason.items():
        yield f"[dim]not identified ({escape(why)}): {escape(', '.join(names))}[/]"

"""`paceline roofline`: time steps, and learn the engine's efficiency and overheads from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, InstanceOf, Strict
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.cli import options, show
from paceline.cli.option import Argument
from paceline.cli.predict import (
    DESCRIBED,
    Named,
    Spec,
    architecture_of,
    read_device,
    read_precision,
)
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Several

if TYPE_CHECKING:
    from paceline.roofline.fit import Judged

SHOWN = 24  # points; of more, those that are furthest off
UNITS = {"step_overhead": (1e3, "ms"), "layer_overhead": (1e6, "µs"),
         "request_overhead": (1e6, "µs"), "row_overhead": (1e6, "µs")}  # fmt: skip


def _share(value: str | Fraction) -> Fraction:
    try:
        share = Fraction(value)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise ValueError("a share of the points, written like 1/3")
    return share


@checked
class FitCommand:
    """Learn a calibration from measured steps.

    Fits efficiencies and overheads to measured (batch, rows, context, ms) steps, as few as the
    points can tell apart, and says how well they explain points that they were not fitted to.
    """

    points: Annotated[
        tuple[Annotated[Path, Strict(False)], ...],
        Several,
        Argument(positional=True, metavar="POINTS"),
    ] = about(
        "CSV or JSON with batch, rows, context, ms; or results of vLLM's `bench serve`, SGLang's "
        "bench_serving or bench_one_batch"
    )
    model: str = about(DESCRIBED)
    hardware: Named = about("a listed device, or your own (JSON)")
    out: options.OutputFile = about("the calibration (JSON)")
    fit_on: Annotated[InstanceOf[Fraction], BeforeValidator(_share)] = about(
        "fit to this share of the points, as 1/3, and judge by the others", Fraction(1)
    )
    precision: Spec | None = about("as for `paceline predict`", None)
    tensor_parallel: int = about("devices that share each layer", 1)

    def run(self) -> int:
        from paceline.models.described import describe
        from paceline.roofline.cost import Deployment, Options
        from paceline.roofline.fit import Case, fit_and_judge, read_points

        model = architecture_of(describe(self.model), read_precision(self.precision))
        parallel = Options(tensor_parallel=self.tensor_parallel)
        deployment = Deployment(model, read_device(self.hardware), parallel)
        points = [point for path in self.points for point in read_points(path)]
        judged = fit_and_judge(Case(points, deployment), self.fit_on)
        console = Console(highlight=False)
        for part in fit_report(judged):
            console.print(part, soft_wrap=isinstance(part, str))
        self.out.write_text(json.dumps(judged.as_json(), indent=2) + "\n", encoding="utf-8")
        console.print(str(self.out), markup=False, soft_wrap=True)
        return 0


@checked
class MeasureCommand:
    """Time a model's steps over batches, rows and contexts.

    Runs the engine on a model and times its steps, whole rounds of a running engine, over a grid of
    batch, rows per request and context. Writes the points that `fit` reads, and this machine's
    measured bandwidth and peak.
    """

    model: options.Positional = about(options.MODEL_HELP, options.DEFAULTS.model)
    out: options.OutputFile = about("points as JSON")
    machine: options.OutputFile | None = about("this machine as a device, for --hardware", None)
    batch: options.Counts | None = about("requests of a step", None, "1,2,4,8,16,32")
    rows: options.Counts | None = about("rows per request", None, "1,2,3,4,6,8,12,16")
    context: options.Counts | None = about("tokens of a request", None, "64,512,1024")
    rounds: int = about("rounds over the grid; medians count", 5)
    engine: options.Device = options.DEFAULTS

    def run(self) -> int:
        from paceline.bench.steps import grid as step_times
        from paceline.bench.steps.machine import this_machine
        from paceline.engine.build import build_engine
        from paceline.models.loader import load_model

        grid = step_times.StepGrid(
            batches=self.batch or step_times.BATCHES,
            rows=self.rows or step_times.ROWS,
            contexts=self.context or step_times.CONTEXTS,
            rounds=self.rounds,
        )
        settings = {name: getattr(self.engine, name) for name in options.DEVICE_OPTIONS}
        loaded = load_model(self.model)
        config = step_times.engine_config(grid, loaded.config, model=self.model, **settings)
        engine = build_engine(config, loaded)
        machine = this_machine(self.engine.device, engine)
        with show.stderr_console().status("measuring") as status:
            points = step_times.measure_steps(
                engine, grid, lambda done, of: status.update(f"measuring, {done} of {of}")
            )
        written = step_times.as_json(engine, machine, points)
        if self.machine is not None:
            self.machine.write_text(json.dumps(machine.model_dump(), indent=1) + "\n", "utf-8")
        self.out.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
        print(f"{self.out}: {len(points)} steps of {engine.model_name} ({engine.backend})")
        return 0


# -- output of fit --------------------------------------------------------------------------------


def fit_report(judged: Judged) -> Iterator[Table | str]:
    """Yield what was learned, how well it explains the points, and what they do not tell."""
    deployment = judged.case.deployment
    name = escape(f"{deployment.architecture.name} on {deployment.hardware.name}")
    yield f"[bold]{name}: fitted to {sum(judged.seen)} of {len(judged.points)} points[/]"
    yield parameter_table(judged)
    many = len(judged.points) > SHOWN
    yield f"[bold]Residuals{f': the {SHOWN} points that are furthest off' if many else ''}[/]"
    yield residual_table(judged)
    yield from _lines(judged)


def parameter_table(judged: Judged) -> Table:
    fit = judged.fit
    table = show.plain_table("learned", "value", "standard error", left=["learned"])
    values = {**fit.calibration.model_dump(), "draft_cost": fit.draft_cost}
    for name, deviation in fit.deviations.items():
        factor, unit = UNITS.get(name, (1.0, ""))
        value = values.get(name)
        shown = "" if value is None else f"{factor * value:.4g} {unit}".strip()
        table.add_row(name.replace("_", " "), shown, f"± {deviation:.1%}")
    if fit.calibration.row_tile > 1:
        table.add_row("row tile", str(fit.calibration.row_tile), "")
    return table


def residual_table(judged: Judged) -> Table:
    """The points, by size; of many, those that are furthest off."""
    rows = list(zip(judged.points, judged.predicted, judged.errors, judged.seen, strict=True))
    if len(rows) > SHOWN:
        least = sorted(abs(row[2]) for row in rows)[-SHOWN]
        rows = [row for row in rows if abs(row[2]) >= least]
    table = show.plain_table("batch", "rows", "context", "measured ms", "predicted ms", "error", "")
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


def _lines(judged: Judged) -> Iterator[str]:
    from paceline.roofline.fit import summary

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

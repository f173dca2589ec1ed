"""`paceline roofline`: time an engine's steps, and learn its efficiency and overheads of them."""

from __future__ import annotations

import argparse
import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from pydantic import InstanceOf, Strict
from rich.console import Console

from paceline.cli.options import (
    DEFAULTS,
    DEVICE_OPTIONS,
    Argument,
    Device,
    ModelArgument,
    OutputFile,
    model_field,
)
from paceline.cli.predict import Named, Spec, read_device, read_precision
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Several


def parse_share(text: str) -> Fraction:
    """Read 1/3 or 0.5."""
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; write it like 1/3")
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
    model: str = about("a listed name, a folder or a config.json")
    hardware: Named = about("a listed device, or your own (JSON)")
    out: OutputFile = about("the calibration (JSON)")
    fit_on: Annotated[InstanceOf[Fraction], Argument(metavar="SHARE", parse=parse_share)] = about(
        "fit to this share of the points, as 1/3, and judge by the others", Fraction(1)
    )
    precision: Spec | None = about("as for `paceline predict`", None)
    tensor_parallel: int = about("devices that share each layer", 1)

    def run(self) -> int:
        from paceline.cli import roofline_show
        from paceline.roofline.cost import Deployment, Options
        from paceline.roofline.fit import Case, fit_and_judge, read_points
        from paceline.roofline.scenario.lines import architecture_of_word

        model = architecture_of_word(self.model, read_precision(self.precision))
        options = Options(tensor_parallel=self.tensor_parallel)
        deployment = Deployment(model, read_device(self.hardware), options)
        points = [point for path in self.points for point in read_points(path)]
        judged = fit_and_judge(Case(points, deployment), self.fit_on)
        console = Console(highlight=False)
        console.print(roofline_show.title(judged), style="bold", markup=False)
        console.print(roofline_show.parameter_table(judged))
        console.print(roofline_show.residual_title(judged), style="bold")
        console.print(roofline_show.residual_table(judged))
        for line in roofline_show.lines(judged):
            console.print(line, soft_wrap=True)
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

    model: ModelArgument = model_field()
    out: OutputFile = about("points as JSON")
    machine: OutputFile | None = about("this machine as a device, for --hardware", None)
    batch: tuple[int, ...] | None = about("requests of a step", None, "1,2,4,8,16,32")
    rows: tuple[int, ...] | None = about("rows per request", None, "1,2,3,4,6,8,12,16")
    context: tuple[int, ...] | None = about("tokens of a request", None, "64,512,1024")
    rounds: int = about("rounds over the grid; medians count", 5)
    engine: Device = DEFAULTS

    def run(self) -> int:
        from paceline.bench.steps import grid as step_times
        from paceline.bench.steps.machine import this_machine
        from paceline.cli import show
        from paceline.engine.build import build_engine
        from paceline.models.loader import load_model

        grid = step_times.StepGrid(
            batches=self.batch or step_times.BATCHES,
            rows=self.rows or step_times.ROWS,
            contexts=self.context or step_times.CONTEXTS,
            rounds=self.rounds,
        )
        settings = {name: getattr(self.engine, name) for name in DEVICE_OPTIONS}
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

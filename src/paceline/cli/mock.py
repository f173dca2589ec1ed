"""`paceline mock`: what drafts of a given acceptance would buy, on the real engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from paceline.cli import options
from paceline.cli.option import Argument
from paceline.cli.predict import CALIBRATION, DESCRIBED, Named, read_device, read_named
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked, read_json_object
from paceline.core.field_types import OneOf

if TYPE_CHECKING:
    from paceline.bench.mock.plan import Goal, MockPlan
    from paceline.roofline.device import Calibration

DEFAULT_LENGTHS = (1.0, 2.0, 4.0, 8.0)
HERE_ONLY = (
    "steps", "seed", "drafter_cost", "drafter_block", "drafter_config", "hardware", "calibration",
    "json",
)  # fmt: skip


@checked
class MockCommand:
    """Measure what drafts of a given acceptance would buy, on random weights.

    Runs the real engine on random weights of a model's shape, accepts drafts by plan, and sets the
    measured speedup beside the predicted one. No weights are downloaded, and what is said means
    nothing. Or writes the lines that do the same on vLLM or SGLang.
    """

    model: Annotated[str, options.POSITIONAL] = about(
        f"{DESCRIBED}; with --launch whatever that engine takes"
    )
    acceptance_length: options.Numbers | None = about(
        "one or several AL incl. bonus", None, "1,2,4,8"
    )
    rates: options.Numbers | None = about("acceptance of each position, once reached", None)
    profile: options.File | None = about('JSON: {"conditional": [...]}, or another form', None)
    draft_lengths: options.Counts | None = about(
        "tokens of a draft", None, "1,3,7,15, or as many as there are rates"
    )
    batch: options.Counts = about("requests at once", (1,))
    context: int = about("tokens in the middle of a measurement", 512)
    steps: int = about("rounds that count", 32)
    seed: int = about("of the draws", 0)
    drafter_cost: float = about("share of the target's layers that a drafting pass runs", 0.0)
    drafter_block: int = about("drafted tokens per such pass", 1)
    drafter_config: Annotated[str, options.FILE] | None = about(
        "a drafter's config.json (DFlash, or a small model), its folder or hub id, run with random "
        "weights",
        None,
    )
    hardware: Named | None = about("device to predict with", None, "this machine, measured")
    calibration: Named | None = about(CALIBRATION, None)
    json: options.OutputFile | None = about("write everything as JSON", None)
    launch: Annotated[str, OneOf(("vllm", "sglang"))] | None = about(
        "print lines for it, run nothing", None
    )
    drafter: Annotated[str, Argument(metavar="KIND[:CHECKPOINT]")] | None = about(
        "with --launch: how it drafts: dflash:FOLDER, eagle3:FOLDER, draft_model:FOLDER or mtp",
        None,
    )
    tensor_parallel: int | None = about("with --launch: devices", None, "1")
    engine: options.Device = options.DEFAULTS

    def __post_init__(self) -> None:
        stated = [n for n in ("acceptance_length", "rates", "profile") if getattr(self, n)]
        if len(stated) > 1:
            expected = f"no value beside --{stated[0].replace('_', '-')}"
            raise InvalidRequest(stated[1], str(getattr(self, stated[1])), expected)
        if self.launch is None:
            for name in ("drafter", "tensor_parallel"):
                if getattr(self, name) is not None:
                    raise InvalidRequest(name, getattr(self, name), "no value without --launch")
        else:
            self._check_launch()

    def _check_launch(self) -> None:
        plain = MockCommand(model=self.model)
        stated = [(name, getattr(self, name), getattr(plain, name)) for name in HERE_ONLY]
        for name in ("device", "backend", "threads"):
            stated.append((name, getattr(self.engine, name), getattr(options.DEFAULTS, name)))
        for name, value, default in stated:
            if value != default:
                expected = "no value beside --launch, which runs nothing"
                raise InvalidRequest(name, str(value), expected)
        if self.drafter is None:
            expected = "KIND[:CHECKPOINT] beside --launch: these engines always draft with one"
            raise InvalidRequest("drafter", None, expected)

    def run(self) -> int:
        from paceline.bench.mock.plan import LENGTHS, MockPlan

        goals, depth = self._goals()
        plan = MockPlan(
            goals=goals,
            draft_lengths=self.draft_lengths or (LENGTHS if depth is None else (depth,)),
            batches=self.batch,
            context=self.context,
            steps=self.steps,
            seed=self.seed,
        )
        if self.launch is None or self.drafter is None:
            return self._measure(plan)
        return self._launch(plan, self.launch, self.drafter)

    def _goals(self) -> tuple[tuple[Goal, ...], int | None]:
        """Return the acceptances to mock, and the number of positions that have a rate."""
        from paceline.roofline.acceptance import Profile, acceptance_of

        if self.rates is not None:
            profile = Profile.of_conditional(self.rates)
            return (profile,), profile.depth
        if self.profile is None:
            return self.acceptance_length or DEFAULT_LENGTHS, None
        acceptance = acceptance_of(read_json_object(self.profile, "profile"))
        return (acceptance,), acceptance.depth

    def _launch(self, plan: MockPlan, engine: str, drafter: str) -> int:
        from paceline.bench.mock.launch import LaunchDrafter, launch_lines

        lines = launch_lines(
            engine,
            plan,
            self.model,
            LaunchDrafter.parse(drafter),
            dtype=self.engine.dtype,
            tensor_parallel=self.tensor_parallel or 1,
        )
        print("\n".join(lines))
        return 0

    def _measure(self, plan: MockPlan) -> int:
        from rich.console import Console

        from paceline.bench.mock import report
        from paceline.bench.mock.measure import measure
        from paceline.bench.mock.predict import predict
        from paceline.bench.mock.setup import MockDrafting, build, read_target
        from paceline.bench.steps.machine import this_machine
        from paceline.cli import show
        from paceline.models.described import find_config

        path = self.drafter_config
        config = None if path is None else find_config(path, "drafter_config")
        drafting = MockDrafting(self.drafter_cost, self.drafter_block, config)
        calibration = None if self.calibration is None else read_calibration(self.calibration)
        device = None if self.hardware is None else read_device(self.hardware)
        target = read_target(self.model)
        settings = {name: getattr(self.engine, name) for name in options.DEVICE_OPTIONS}
        engine = build(target, plan, drafting, **settings)
        machine = device or this_machine(self.engine.device, engine)
        with show.stderr_console().status("measuring"):
            measured = measure(engine, plan)
        predicted = predict(measured, target, drafting, engine, machine, calibration)
        console = Console(highlight=False)
        console.print(report.table(engine, plan, measured, predicted))
        for line in report.notes(predicted):
            console.print(line, style="dim")
        if self.json is not None:
            written = report.as_json(engine, plan, machine, measured, predicted)
            self.json.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
        return 0


def read_calibration(word: str) -> Calibration:
    """Return a preset by name, or what `paceline roofline fit` wrote."""
    from paceline.roofline.device import Calibration, preset

    stated = read_named(word, "calibration")
    return preset(stated) if isinstance(stated, str) else Calibration.read(stated, "calibration")

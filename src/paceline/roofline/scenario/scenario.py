"""A scenario, checked and read: the deployment, its calibration, and drafters with their prices."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.core import InvalidRequest
from paceline.core.errors import check_integer
from paceline.core.names import listed_model
from paceline.roofline.architecture import Architecture, read_architecture
from paceline.roofline.architecture.components import Component, Experts, State
from paceline.roofline.architecture.config import Precision
from paceline.roofline.architecture.work import MEASURED, UNIFORM, Workload
from paceline.roofline.cost import Deployment, Options
from paceline.roofline.cost.capacity import capacity
from paceline.roofline.device import IDEAL, Calibration, Hardware, hardware, preset
from paceline.roofline.scenario.answer import CALIBRATED, ROOFLINE
from paceline.roofline.scenario.documents import MOST_CONTEXT, StatedModel, StatedScenario
from paceline.roofline.scenario.drafters import PricedDrafter, price, reading_config
from paceline.roofline.scenario.evidence import FITTED, default_preset

BATCHES = tuple(2**power for power in range(11))
MOST_CHOSEN = (1, 2, 4, 8, 16)  # numbers of devices that are chosen where none is stated
CORRELATIONS = {"uniform": UNIFORM, "measured": MEASURED}
ONLY_WITH: tuple[tuple[str, type[Component], str], ...] = (
    ("expert_parallel", Experts, "experts"),
    ("correlation", Experts, "experts"),
    ("snapshots", State, "recurrent states"),
    ("state_precision", State, "recurrent states"),
)
DEFAULTS = {
    name: field.default
    for name, field in StatedScenario.model_fields.items()
    if not field.is_required()
}


@dataclass(frozen=True)
class Scenario:
    """A scenario with its parts read. `plain` is the JSON that it was read from, defaults filled
    in."""

    stated: StatedScenario
    deployment: Deployment
    drafters: tuple[PricedDrafter, ...]
    calibration_name: str
    calibration: Calibration
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    plain: dict[str, object]

    @property
    def tiers(self) -> dict[str, Calibration]:
        return {ROOFLINE: IDEAL, CALIBRATED: self.calibration}

    @classmethod
    def read(cls, value: object) -> Scenario:
        """Read a scenario of plain JSON (`StatedScenario`).

        Raises InvalidRequest that names the field, ModelError for a config of an unknown family.
        """
        plain = _plain_json(value)
        stated = StatedScenario.read(plain)
        architecture = read_model(stated.model, stated.precision)
        device = read_hardware(stated.hardware)
        name, calibration = _calibration(stated.calibration, architecture, device)
        reach = architecture.max_context or MOST_CONTEXT
        for context in [stated.context, *(stated.contexts or ())]:
            field = "context" if context == stated.context else "contexts"
            check_integer(field, context, 0, reach, f"a whole number from 0 to {reach}")
        drafters = _drafters(stated, architecture)
        _check_options(stated, architecture, drafters)
        tensor_parallel = stated.tensor_parallel or fewest_devices(stated, architecture, device)
        batches = BATCHES if stated.batches is None else stated.batches
        return cls(
            stated=stated,
            deployment=Deployment(architecture, device, _options(stated, tensor_parallel)),
            drafters=drafters,
            calibration_name=name,
            calibration=calibration,
            batches=tuple(sorted({*batches, stated.batch})),
            contexts=tuple(sorted(set(stated.contexts or ()))),
            plain={
                **DEFAULTS,
                **plain,
                "calibration": plain.get("calibration") or name,
                "tensor_parallel": tensor_parallel,
            },
        )


def read_model(model: str | StatedModel, precision: Precision | None) -> Architecture:
    """Read the architecture of a listed model, or of a config."""
    if isinstance(model, str):
        listed = listed_model(model)
        return read_architecture(listed.config, precision=precision, name=listed.name)
    return reading_config(
        "model.config",
        model.config,
        lambda: read_architecture(model.config, precision=precision, name=model.name),
    )


def read_hardware(stated: str | Hardware) -> Hardware:
    """Return the device itself, or the listed one of that name."""
    return hardware(stated) if isinstance(stated, str) else stated


def _plain_json(value: object) -> dict[str, object]:
    """The scenario as JSON has it: lists for tuples, no NaN, and the numbers of a calibration
    alone."""
    if not isinstance(value, dict):
        expected = "an object with model, hardware, drafters"
        raise InvalidRequest("scenario", value, expected)
    try:
        plain: dict[str, object] = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidRequest("scenario", str(error), "plain JSON, without NaN") from error
    fitted = plain.get("calibration")
    if isinstance(fitted, dict) and "calibration" in fitted:
        plain["calibration"] = fitted["calibration"]  # a file of `roofline fit` tells more
    return plain


def fewest_devices(stated: StatedScenario, model: Architecture, device: Hardware) -> int:
    """Return the fewest devices that hold the model and one request when they share each layer: a
    power of two; 1 where no number does, or where the devices have no link."""
    one = Workload(1, 1, stated.context)
    for count in MOST_CHOSEN if device.link_bandwidth else ():
        if count * stated.data_parallel % stated.expert_parallel == 0:
            fits = capacity(Deployment(model, device, _options(stated, count)), one)
            if fits.weights <= fits.usable and fits.max_batch:
                return count
    return 1


def _calibration(
    stated: str | Calibration | None, architecture: Architecture, device: Hardware
) -> tuple[str, Calibration]:
    """Name and numbers; the default is the preset that was measured nearest."""
    if isinstance(stated, Calibration):
        return FITTED, stated
    name = default_preset(device, architecture) if stated is None else stated
    return name, preset(name)


def _drafters(stated: StatedScenario, target: Architecture) -> tuple[PricedDrafter, ...]:
    drafters = tuple(
        price(f"drafters[{index}]", drafter, target, stated.max_draft)
        for index, drafter in enumerate(stated.drafters)
    )
    names = [drafter.name for drafter in drafters]
    if len(set(names)) < len(names):
        raise InvalidRequest("drafters", names, "a name of its own for each drafter")
    return drafters


def _check_options(
    stated: StatedScenario, target: Architecture, drafters: Iterable[PricedDrafter]
) -> None:
    """Refuse an option that would change nothing: it was meant for another model."""
    models = [target, *(drafter.cost.model for drafter in drafters if drafter.cost.model)]
    for name, part, plural in ONLY_WITH:
        value, default = getattr(stated, name), DEFAULTS[name]
        if value != default and not any(model.has(part) for model in models):
            expected = f"{default or 'none'}: {target.name} has no {plural}"
            raise InvalidRequest(name, value, expected)


def _options(stated: StatedScenario, tensor_parallel: int) -> Options:
    """Return the options of a forward."""
    return Options(
        tensor_parallel=tensor_parallel,
        data_parallel=stated.data_parallel,
        expert_parallel=stated.expert_parallel,
        correlation=CORRELATIONS[stated.correlation],
        snapshots=stated.snapshots,
        state_precision=stated.state_precision,
    )

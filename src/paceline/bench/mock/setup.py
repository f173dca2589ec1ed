"""What a mock is run with: a target's config, a drafter's cost, and an engine that holds both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paceline.bench.mock.measure import MockPlan, engine_config
from paceline.core import MAX_DRAFT_LEN, InvalidRequest, ModelError
from paceline.core.errors import check_integer, check_number
from paceline.engine.build import build_engine
from paceline.engine.engine import Engine
from paceline.engine.machine import available_memory
from paceline.models.catalog import CATALOGUE
from paceline.models.config import ModelConfig
from paceline.models.dflash.config import read_dflash_config
from paceline.models.families import config_from_hf
from paceline.models.loader import read_json
from paceline.models.mocked import (
    drafter_bytes,
    find_config,
    is_dflash,
    kv_bytes,
    mocked_model,
    needed_bytes,
    refuse_too_large,
)
from paceline.roofline.architecture import model_config, model_names, read_architecture


@contextmanager
def named_drafter() -> Iterator[None]:
    """What is wrong with a drafter's config is told from what is wrong with the target's."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"drafter_config: {error}") from error


@dataclass(frozen=True, slots=True)
class MockDrafting:
    """What a draft costs: nothing, `cost` of the target's forward for every `block` tokens, or what
    a drafter of random weights costs, read from its config.json. Raises InvalidRequest, and
    ModelError for a config that is none."""

    cost: float = 0.0
    block: int = 1
    config: Path | None = None

    def __post_init__(self) -> None:
        check_number("drafter_cost", self.cost, 0, 1, "a share of the target's forward, 0 to 1")
        check_integer("drafter_block", self.block, 1, MAX_DRAFT_LEN, f"1 to {MAX_DRAFT_LEN} tokens")
        if self.block != 1 and not self.cost and self.config is None:
            raise InvalidRequest("drafter_block", self.block, "a drafter_cost beside it")
        if self.config is not None and (self.cost or self.block != 1):
            value = self.cost or self.block
            expected = "no cost beside a drafter's config, which says what it costs"
            raise InvalidRequest("drafter_cost", value, expected)
        self.shape  # noqa: B018  (a config that cannot be run is refused before anything is built)

    @property
    def shape(self) -> ModelConfig | None:
        """Of the drafter's layers, where it is a network."""
        if self.config is None:
            return None
        with named_drafter():
            hf = read_json(self.config)
            read_architecture(hf)  # as for the target: what cannot be predicted is not run
            return read_dflash_config(hf).layers if is_dflash(hf) else config_from_hf(hf)

    def spec(self, longest: int) -> str:
        """As the engine's config takes it, for drafts of up to `longest` tokens."""
        if self.config is not None:
            return f"mock:{self.config},max_draft_len={longest}"
        cost = f",cost={self.cost},block={min(self.block, longest)}" if self.cost else ""
        return f"mock{cost},max_draft_len={longest}"


@dataclass(frozen=True, slots=True)
class MockTarget:
    """A model by its config.json alone."""

    name: str
    config_json: Mapping[str, Any] = field(repr=False)
    shape: ModelConfig


def read_target(name: str) -> MockTarget:
    """By the name of a config that comes with Paceline, by config.json or folder, or by a name of
    the catalogue. Raises InvalidRequest for what is none of these, and ModelError, naming field and
    family, for a config that the engine cannot run."""
    if name.lower() in map(str.lower, model_names()) and not Path(name).exists():
        return _target(name, model_config(name))
    try:
        path = find_config(name)
    except InvalidRequest as error:
        known = ", ".join([*CATALOGUE, *model_names()])
        expected = f"a config.json, a folder that holds one, or one of {known}"
        raise InvalidRequest("model", name, expected) from error
    return _target(path.parent.name if path.name == "config.json" else path.stem, read_json(path))


def _target(name: str, hf: Mapping[str, Any]) -> MockTarget:
    try:
        shape = config_from_hf(hf)
        read_architecture(hf)  # what the roofline cannot predict is refused before it is run
        return MockTarget(name, hf, shape)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error


def build(target: MockTarget, plan: MockPlan, drafting: MockDrafting, **options: Any) -> Engine:
    """The engine, with random weights in it. `options` are EngineConfig's.

    Raises InvalidRequest naming bytes needed and available where it does not fit memory.
    """
    dtype = options.get("dtype", "bfloat16")
    drafter = drafting.shape
    kv = kv_bytes(target.shape, dtype, plan.tokens)
    needed = needed_bytes(target.shape, dtype, plan.tokens)
    if drafting.config is not None and drafter is not None:
        own = kv_bytes(drafter, dtype, plan.tokens)
        needed += own + drafter_bytes(drafting.config, dtype)
        kv += own
    refuse_too_large(needed, _available(options.get("device", "cpu")), "model", target.name)
    config = engine_config(
        plan,
        target.shape,
        drafting.spec(max(plan.draft_lengths)),
        kv_memory=kv,
        model=target.name,
        **options,
    )
    return build_engine(config, mocked_model(target.shape, target.name, dtype=dtype))


def _available(device: str) -> int:
    if device == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    return available_memory()

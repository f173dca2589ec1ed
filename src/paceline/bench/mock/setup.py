"""The parts of a mock: a target's config, a drafter's cost, and an engine that holds both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.mock.plan import MockPlan
from paceline.core import MAX_DRAFT_LEN, InvalidRequest, ModelError
from paceline.core.errors import check_integer, check_number
from paceline.drafters.mock import mock_line
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.engine.machine import free_memory
from paceline.models.config import ModelConfig
from paceline.models.described import describe
from paceline.models.dflash.config import read_dflash_config
from paceline.models.families import config_from_hf
from paceline.models.json_files import read_json
from paceline.models.mocked import (
    drafter_bytes,
    is_dflash,
    kv_bytes,
    mocked_model,
    needed_bytes,
    refuse_too_large,
)
from paceline.models.networks import check_device
from paceline.roofline.architecture import read_architecture


@contextmanager
def named(name: str) -> Iterator[None]:
    """Put a name, as of a field or a file, before what is wrong with a config."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class MockDrafting:
    """The cost of a draft: none, a share `cost` of the target's forward for every `block` tokens,
    or that of a drafter of random weights with this config.json.

    Raises InvalidRequest, and ModelError for a config that cannot be run.
    """

    cost: float = 0.0
    block: int = 1
    config: Path | None = None

    def __post_init__(self) -> None:
        check_number("drafter_cost", self.cost, 0, 1, "a share of the target's forward, 0 to 1")
        check_integer("drafter_block", self.block, 1, MAX_DRAFT_LEN, f"1 to {MAX_DRAFT_LEN} tokens")
        if self.config is None and self.block != 1 and not self.cost:
            raise InvalidRequest("drafter_block", self.block, "a drafter_cost beside it")
        if self.config is not None and (self.cost or self.block != 1):
            expected = "no cost beside a drafter's config, which says what it costs"
            raise InvalidRequest("drafter_cost", self.cost or self.block, expected)
        self.bytes_of("bfloat16", 1)  # a config that cannot be run is refused before anything runs

    def bytes_of(self, dtype: str, tokens: int) -> tuple[int, int]:
        """Return the bytes of the drafter's weights and of the KV of `tokens` tokens."""
        if self.config is None:
            return 0, 0
        with named("drafter_config"):
            hf = read_json(self.config)
            read_architecture(hf)  # as for the target: what cannot be predicted is not run
            shape = read_dflash_config(hf).layers if is_dflash(hf) else config_from_hf(hf)
        return drafter_bytes(self.config, dtype), kv_bytes(shape, dtype, tokens)


@dataclass(frozen=True, slots=True)
class MockTarget:
    """A model by its config.json alone."""

    name: str
    config_json: Mapping[str, Any] = field(repr=False)
    shape: ModelConfig


def read_target(word: str) -> MockTarget:
    """Read a target as `describe` finds it: by path, by name or by hub id.

    Raises InvalidRequest and ModelError for what is no model, and ModelError, naming field and
    family, for a config that the engine cannot run.
    """
    model = describe(word)
    with named(model.name):
        shape = config_from_hf(model.config)
        read_architecture(model.config)  # what the roofline cannot predict is not run
    return MockTarget(model.name, model.config, shape)


def build(target: MockTarget, plan: MockPlan, drafting: MockDrafting, **options: Any) -> Engine:
    """Return the engine, with random weights in it and room for two groups of the plan's largest
    batch: AR and speculative. `options` are EngineConfig's.

    Raises InvalidRequest for a context that the model does not have, and naming bytes needed and
    available where it does not fit memory.
    """
    dtype, device = options.get("dtype", "bfloat16"), options.get("device", "cpu")
    check_device(device)
    weights, draft_kv = drafting.bytes_of(dtype, plan.tokens)
    needed = needed_bytes(target.shape, dtype, plan.tokens) + weights + draft_kv
    refuse_too_large(needed, free_memory(device), "model", target.name)
    if plan.longest > target.shape.max_context:
        over = plan.longest - target.shape.max_context
        expected = f"at most {plan.context - over}: the model has {target.shape.max_context} tokens"
        raise InvalidRequest("context", plan.context, expected)
    widest, longest_draft = max(plan.batches), max(plan.draft_lengths)
    config = EngineConfig(
        model=target.name,
        drafter=mock_line(longest_draft, **asdict(drafting)),
        rule="synthetic",
        synthetic=(1.0,),  # each cell brings its own
        draft_policy="fixed",
        max_model_len=plan.longest,
        max_num_seqs=2 * widest,
        token_budget=max(512, widest * (1 + longest_draft), 2 * widest),
        kv_memory=kv_bytes(target.shape, dtype, plan.tokens) + draft_kv,
        **options,
    )
    return build_engine(config, mocked_model(target.shape, target.name, dtype=dtype))

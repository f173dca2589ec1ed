"""The facts of a target and a drafter that decide how, and whether, an engine can serve them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.core.documents import read_json_object
from paceline.engines.kind import LaunchPlan
from paceline.models.dflash.config import DFlashConfig, read_dflash_config
from paceline.models.dflash.formats import ARCHITECTURES, from_speculators, is_speculators
from paceline.roofline.scenario.kinds import KINDS

Config = Mapping[str, object]
# Of kinds whose drafts have no block: the engines' own examples draft about so many.
USUAL_LENGTHS = {"mtp": 2, "eagle3": 3, "draft_model": 5, "ngram": 5, "suffix": 16}
CONFIG = "config.json"
RECURRENT = (  # fields that only targets with recurrent layers have
    "linear_num_value_heads",
    "mamba_num_heads",
    "mamba_d_state",
    "ssm_state_size",
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Pairing:
    """What a plan's target and drafter are, as far as their configs lie on this disk.

    kind        of drafting, one of roofline's KINDS; None without speculation
    draft_len   0 without speculation
    target      the target's config; empty where it is not here
    block       of a DFlash drafter, its config
    foreign     whether a DFlash drafter is in speculators' format
    """

    kind: str | None
    draft_len: int
    target: Config = field(default_factory=dict)
    block: DFlashConfig | None = None
    foreign: bool = False

    @property
    def family(self) -> str:
        """The target's `model_type`; "" where its config is not here."""
        return str(self._target("model_type") or "").removesuffix("_text")

    @property
    def recurrent(self) -> bool:
        """Whether layers of the target keep a state in place of keys and values."""
        kinds = self._target("layer_types")
        linear = isinstance(kinds, list) and "linear_attention" in kinds
        return linear or any(self._target(name) for name in RECURRENT)

    @property
    def latent(self) -> bool:
        """Whether the target has latent attention (MLA)."""
        return bool(self._target("kv_lora_rank"))

    @property
    def experts(self) -> bool:
        """Whether the target has experts."""
        return any(self._target(name) for name in EXPERTS)

    @property
    def windowed(self) -> bool:
        """Whether a layer of a DFlash drafter sees a window only."""
        return self.block is not None and any(kind.window for kind in self.block.attention)

    @property
    def max_context(self) -> int | None:
        length = self._target("max_position_embeddings")
        return length if isinstance(length, int) else None

    def _target(self, name: str) -> object:
        text = self.target.get("text_config")
        inner = text.get(name) if isinstance(text, Mapping) else None
        return self.target.get(name) if inner is None else inner


def pairing_of(plan: LaunchPlan) -> Pairing:
    """Read the configs of a plan. Raises InvalidRequest for parts that do not go together."""
    target = _config(Path(plan.target).expanduser()) or {}
    drafter = _drafter_config(plan.drafter)
    kind = plan.kind or (None if drafter is None else _kind_of(drafter))
    if kind is None:
        if plan.draft_len:
            raise InvalidRequest("draft_len", plan.draft_len, "a drafter beside it")
        return Pairing(None, 0, target)
    if kind not in KINDS or not (KINDS[kind].vllm or KINDS[kind].sglang or KINDS[kind].paceline):
        kinds = ", ".join(name for name, each in KINDS.items() if each.vllm)
        raise InvalidRequest("kind", kind, f"one of {kinds}")
    if KINDS[kind].checkpoint != (drafter is not None):
        needs = "a drafter's folder" if KINDS[kind].checkpoint else "none"
        raise InvalidRequest("drafter", plan.drafter, f"{needs} for {kind}")
    foreign = drafter is not None and is_speculators(drafter)
    block = None
    if kind == "dflash" and drafter is not None:
        block = read_dflash_config(from_speculators(drafter) if foreign else drafter)
    return Pairing(kind, _draft_len(plan, kind, block), target, block, foreign)


def _draft_len(plan: LaunchPlan, kind: str, block: DFlashConfig | None) -> int:
    if plan.draft_len is None:
        return USUAL_LENGTHS[kind] if block is None else block.max_draft_len
    most = None if block is None else block.max_draft_len
    if plan.draft_len < 1 or (most is not None and plan.draft_len > most):
        expected = "at least 1" if most is None else f"1 to {most}, the drafter's block"
        raise InvalidRequest("draft_len", plan.draft_len, expected)
    return plan.draft_len


def _kind_of(config: Config) -> str:
    names = config.get("architectures")
    words = [str(name) for name in names] if isinstance(names, list) else []
    if is_speculators(config):
        words.append(str(config["speculators_model_type"]))
    if set(words) & {*ARCHITECTURES, *ARCHITECTURES.values()}:
        return "dflash"
    return "eagle3" if any("eagle" in word.lower() for word in words) else "draft_model"


def _drafter_config(folder: Path | None) -> Config | None:
    if folder is None:
        return None
    config = _config(folder)
    if config is None:
        raise InvalidRequest("drafter", str(folder), f"a drafter's folder, with a {CONFIG}")
    return config


def _config(folder: Path) -> Config | None:
    """Return the config of a model's folder; None where there is none."""
    path = folder / CONFIG
    return read_json_object(path, CONFIG) if path.is_file() else None

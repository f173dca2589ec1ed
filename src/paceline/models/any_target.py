"""Targets of any family: the sizes, tokens and folder that training and `synth` need of one.

Our engine serves some families; `transformers` or another server computes the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from paceline.core import ModelError
from paceline.models.config import ModelConfig
from paceline.models.families import config_from_hf
from paceline.models.json_files import read_json
from paceline.models.loader import LoadedModel, end_ids, load_folder, model_folder
from paceline.models.tokenizer import Tokenizer, load_tokenizer

DENSE_WIDTH = 3  # times the hidden size: a drafter's MLP where the target has no dense one


@dataclass(frozen=True, slots=True)
class TargetShape:
    """The sizes of a target that a new drafter copies. `vocab_size` counts rows of the embedding,
    `rope_theta` is that of layers with full attention."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    @classmethod
    def of(cls, config: ModelConfig) -> TargetShape:
        """Return the sizes of a network that our engine serves."""
        shared = {each.name for each in fields(cls)} - {"rope_theta"}
        sizes = {name: getattr(config, name) for name in shared}
        return cls(**sizes, rope_theta=config.rope.theta)


@dataclass(frozen=True, slots=True)
class AnyTarget:
    """A target: its sizes, its tokens and where it lies.

    `loaded` is what our engine serves; None for a family it does not know, and `refusal` says why.
    `eos_ids` end an answer; `max_context` is the longest prompt plus answer, in tokens.
    """

    name: str
    path: Path
    shape: TargetShape
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    max_context: int
    loaded: LoadedModel | None = None
    refusal: str | None = None


def read_target(name: str, *, revision: str | None = None) -> AnyTarget:
    """Read a target by name, folder or hub id; its weights stay on disk.

    Raises ModelError for a model that is not there, that our engine knows but cannot load, or whose
    config `transformers` cannot read either.
    """
    folder, shown = model_folder(name, revision=revision)
    hf = read_json(folder / "config.json")
    try:
        config_from_hf(hf)
    except ModelError as error:
        return _foreign(folder, shown, hf, str(error))
    loaded = load_folder(folder, shown)
    return AnyTarget(
        name=loaded.name,
        path=loaded.path,
        shape=TargetShape.of(loaded.config),
        tokenizer=loaded.tokenizer,
        eos_ids=loaded.eos_ids,
        max_context=loaded.max_context,
        loaded=loaded,
    )


def _foreign(folder: Path, name: str, hf: Mapping[str, object], refusal: str) -> AnyTarget:
    config = text_config(folder, name, refusal)
    tokenizer = load_tokenizer(folder, name)
    shape = foreign_shape(config, name)
    return AnyTarget(
        name=name,
        path=folder,
        shape=shape,
        tokenizer=tokenizer,
        eos_ids=end_ids(folder, hf, tokenizer),
        max_context=shape.max_position_embeddings,
        refusal=refusal,
    )


def text_config(folder: Path, name: str, refusal: str) -> Any:
    """Return transformers' config of the part of a model that reads and writes text. Raises
    ModelError, with why our engine refuses it as well."""
    try:
        return transformers_config(folder).get_text_config()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{name}: this engine does not serve it ({refusal}), and transformers cannot read its "
            f"config ({error})"
        ) from error


def transformers_config(folder: Path) -> Any:
    """Return transformers' config of a checkpoint, whose own code never runs. Raises ValueError
    for one that needs it, and what transformers raises for others that it cannot read."""
    from transformers import CONFIG_MAPPING, AutoConfig

    stated = read_json(folder / "config.json")
    if "auto_map" in stated and (kind := stated.get("model_type")) not in CONFIG_MAPPING:
        raise ValueError(
            f"it has no model_type {kind}, and code that comes with a checkpoint (auto_map) "
            "never runs here"
        )
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def foreign_shape(config: Any, name: str) -> TargetShape:
    """Return the sizes in a transformers text config, of the first layer where layers differ (as in
    Gemma 4). Raises ModelError for one that is missing."""
    layers = getattr(config, "per_layer_config", None)
    of_layer = layers[0] if layers else config

    def size(field: str, default: int | None = None) -> int:
        value = getattr(of_layer, field, None)
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{name}: config.json has {field} {value!r}; expected a whole number")
        return value

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    return TargetShape(
        vocab_size=size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size", DENSE_WIDTH * hidden),
        num_layers=size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", hidden // heads),
        rms_norm_eps=float(getattr(config, "rms_norm_eps", None) or 1e-6),
        rope_theta=_theta(config),
        max_position_embeddings=size("max_position_embeddings"),
    )


def _theta(config: Any) -> float:
    """Return the base of the rotary embedding; some configs state one for each kind of layer."""
    stated = getattr(config, "rope_parameters", None) or {}
    stated = stated.get("full_attention", stated)
    theta = stated.get("rope_theta", getattr(config, "rope_theta", None))
    return float(theta or 10000.0)

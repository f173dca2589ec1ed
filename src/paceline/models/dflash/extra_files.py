"""The files of a drafter's folder beside config and weights: paceline.json and the mask embedding.

mask_embedding.pt      optional: the embedding of the mask slots, in place of the target's row
paceline.json          optional, ours: the ids that the head may be cut to, and what the drafter
                       was trained on. Other engines load the folder without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import torch
from pydantic import ConfigDict, Strict
from torch import Tensor

from paceline.core import InvalidRequest, ModelError
from paceline.core.documents import Document
from paceline.models.dflash.config import DFlashConfig

MASK_FILE, OWN_FILE = "mask_embedding.pt", "paceline.json"


class Provenance(Document):
    """The conditions that a drafter was trained under, as far as its folder says: None is unknown.

    `template` is a digest of the target's chat template (loader.template_digest), `context` the
    longest training sequence in tokens, `window` the most context that a draft saw in training,
    `target` a name, `dtype` that of the target whose features it learnt from.
    """

    model_config = ConfigDict(frozen=True)

    target: str | None = None
    target_layer_ids: Annotated[tuple[int, ...], Strict(False)] | None = None
    mask_token_id: int | None = None
    rope_theta: float | None = None
    template: str | None = None
    dtype: str | None = None
    context: int | None = None
    window: int | None = None


def read_head_ids(own_file: Mapping[str, object], config: DFlashConfig) -> Tensor | None:
    """Read the token ids that the head may be cut to. Raises ModelError."""
    ids = own_file.get("head_token_ids")
    if ids is None:
        return None
    vocabulary = config.layers.vocab_size
    if not (
        isinstance(ids, list)
        and ids
        and all(type(token) is int and 0 <= token < vocabulary for token in ids)
        and ids == sorted(set(ids))
    ):
        raise ModelError(
            f"{OWN_FILE}: head_token_ids must be token ids from 0 to {vocabulary - 1}, ascending, "
            "each once"
        )
    if config.second is not None and len(ids) < config.second.selector_top_k:
        raise ModelError(
            f"{OWN_FILE}: head_token_ids has {len(ids)} ids; expected at least "
            f"selector_top_k ({config.second.selector_top_k})"
        )
    return torch.tensor(ids, dtype=torch.int64)


def read_provenance(own_file: Mapping[str, object], config: DFlashConfig) -> Provenance:
    """Read the drafter's provenance. Raises ModelError where it contradicts the config."""
    try:
        provenance = Provenance.read(own_file.get("provenance", {}), "provenance")
    except InvalidRequest as error:
        raise ModelError(f"{OWN_FILE}: {error}") from error
    theta = config.layers.rope.theta
    if provenance.rope_theta is not None and provenance.rope_theta != theta:
        raise ModelError(
            f"config.json: rope_theta is {theta:g}; the drafter was trained with "
            f"{provenance.rope_theta:g}"
        )
    return provenance


def read_mask_embedding(folder: Path, config: DFlashConfig) -> Tensor | None:
    """Read the embedding of the mask slots, float32 [hidden]. Raises ModelError."""
    path = folder / MASK_FILE
    if not path.is_file():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever unpickling does
        raise ModelError(f"{MASK_FILE}: not readable ({error})") from error
    if isinstance(state, Mapping):
        if state.get("per_position"):
            raise ModelError(f"{MASK_FILE}: per_position embeddings are not supported")
        given = state.get("mask_token_id", config.mask_token_id)
        if given != config.mask_token_id:
            raise ModelError(
                f"{MASK_FILE}: mask_token_id is {given}; expected the config's "
                f"{config.mask_token_id}"
            )
        state = state.get("embedding")
    hidden = config.layers.hidden_size
    if not isinstance(state, Tensor) or state.numel() != hidden:
        shape = list(state.shape) if isinstance(state, Tensor) else type(state).__name__
        raise ModelError(f"{MASK_FILE}: embedding is {shape}; expected [{hidden}]")
    if not torch.isfinite(state).all():
        raise ModelError(f"{MASK_FILE}: embedding holds NaN or infinity: the file is damaged")
    return state.reshape(-1).float()

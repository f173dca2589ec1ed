"""A drafter's folder: read strictly, from either format, and written in z-lab's.

config.json            z-lab's, or speculators'
model.safetensors      the tensors of `tensors.dflash_tensors`, or an index and several files
mask_embedding.pt      optional: the embedding of the mask slots, in place of the target's row
paceline.json          optional, ours: the ids that the head may be cut to, and what the drafter
                       was trained on. Other engines load the folder without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline.core import ModelError
from paceline.models.catalog import pull
from paceline.models.dflash.config import KNOWN, DFlashConfig, read_dflash_config
from paceline.models.dflash.speculators import from_speculators, is_speculators
from paceline.models.dflash.tensors import dflash_tensors
from paceline.models.loader import read_json
from paceline.models.random_weights import RandomTensors
from paceline.models.rope import rope_frequencies
from paceline.models.weights import (
    INDEX,
    SafetensorWeights,
    check_dtypes,
    check_expected,
    weight_files,
)

MASK_FILE, OWN_FILE = "mask_embedding.pt", "paceline.json"
# Tensors of other drafters, by a part of their names.
FOREIGN_TENSORS = {
    "d2t": "EAGLE's map from a reduced vocabulary",
    "t2d": "EAGLE's map to a reduced vocabulary",
    "prefix_gru": "a Domino drafter's",
    "embed_proj": "a Domino drafter's",
    "markov": "a DSpark drafter's",
    "confidence_head": "a DSpark drafter's",
    "lm_head": "a head of the drafter's own; a DFlash drafter borrows the target's",
    "embed_tokens": "an embedding of the drafter's own; a DFlash drafter borrows the target's",
}
# What speculators writes beside the drafter itself, copies of the target's.
COPIES = ("embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight")


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a drafter was trained for, as far as its folder says: None is unknown.

    `template` is a digest of the target's chat template (identity.template_digest), `context` the
    longest training sequence in tokens, `window` the most context that a draft saw in training,
    `target` a name, `dtype` that of the target whose features it learnt from.
    """

    target: str | None = None
    target_layer_ids: tuple[int, ...] | None = None
    mask_token_id: int | None = None
    rope_theta: float | None = None
    template: str | None = None
    dtype: str | None = None
    context: int | None = None
    window: int | None = None


PROVENANCE_TYPES: dict[str, Any] = {
    "target": str,
    "target_layer_ids": tuple,
    "mask_token_id": int,
    "rope_theta": float,
    "template": str,
    "dtype": str,
    "context": int,
    "window": int,
}


@dataclass(frozen=True, slots=True)
class DFlashCheckpoint:
    """A drafter that passed every check of its own. Whether it fits a target, `attach` decides.

    `config_json` is the config in z-lab's form. `head_ids` are the token ids that the head may be
    cut to, ascending; None keeps the whole head. `version` is a digest of config and weights.
    """

    path: Path
    format: str
    config: DFlashConfig
    config_json: Mapping[str, Any]
    weights: SafetensorWeights | RandomTensors
    version: str
    mask_embedding: torch.Tensor | None = None
    head_ids: torch.Tensor | None = None
    provenance: Provenance = field(default_factory=Provenance)


def is_drafter(folder: Path) -> bool:
    """Whether a folder's config names some drafter of a block or speculators kind, ours or not."""
    path = folder / "config.json"
    if not path.is_file():
        return False
    hf = read_json(path)
    names = " ".join(map(str, hf.get("architectures") or []))
    draft = ("Draft", "DFlash", "DSpark", "Domino", "Eagle", "Speculator")
    return is_speculators(hf) or "dflash_config" in hf or any(part in names for part in draft)


def load_checkpoint(name: str | Path) -> DFlashCheckpoint:
    """Reads a drafter from a folder or hub id; every tensor is read once, and none is kept.

    Raises ModelError naming what is missing, unexpected, misshaped, damaged or of another kind of
    drafter.
    """
    folder = pull(str(name))
    try:
        hf = read_json(folder / "config.json")
        form = "speculators" if is_speculators(hf) else "z-lab"
        config_json = from_speculators(hf) if form == "speculators" else hf
        config = read_dflash_config(config_json)
        weights = SafetensorWeights(folder)
        _check_tensors(weights, config, form)
        own = _read_own(folder)
        digest = _digest(folder, config_json)
        _check_digest(own, digest)
        return DFlashCheckpoint(
            path=folder,
            format=form,
            config=config,
            config_json=config_json,
            weights=weights,
            version=digest[:12],
            mask_embedding=_read_mask_embedding(folder, config),
            head_ids=_read_head_ids(own, config),
            provenance=_read_provenance(own, config),
        )
    except ModelError as error:
        raise ModelError(f"drafter {folder.name}: {error}") from error


def save_checkpoint(
    folder: Path,
    config_json: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    *,
    mask_embedding: torch.Tensor | None = None,
    head_ids: Sequence[int] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Writes a drafter in z-lab's format, and reads it back as a check.

    `config_json` is what read_dflash_config reads. Raises ModelError where the parts do not fit
    together, and then leaves no config.json behind: a half-written folder never loads.
    """
    config = read_dflash_config(config_json)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in ("config.json", MASK_FILE, OWN_FILE, INDEX):  # of a drafter that was here before
        (folder / stale).unlink(missing_ok=True)
    tensors = {name: weights[name].detach().contiguous() for name in weights}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if mask_embedding is not None:
        state = {"embedding": mask_embedding, "mask_token_id": config.mask_token_id}
        torch.save(state, folder / MASK_FILE)
    text = json.dumps(dict(config_json), indent=2) + "\n"
    (folder / "config.json").write_text(text)
    own: dict[str, Any] = {"sha256": _digest(folder, config_json)}
    if head_ids is not None:
        own["head_token_ids"] = sorted(int(token) for token in head_ids)
    if provenance:
        own["provenance"] = dict(provenance)
    (folder / OWN_FILE).write_text(json.dumps(own) + "\n")
    try:
        load_checkpoint(folder)
    except ModelError:
        (folder / "config.json").unlink()
        raise


# -- checks ----------------------------------------------------------------------------------------


def _check_tensors(weights: SafetensorWeights, config: DFlashConfig, form: str) -> None:
    if form == "speculators":
        for name in [name for name in weights if name in COPIES]:
            weights.discard(name)
    for name in weights:
        for part, kind in FOREIGN_TENSORS.items():
            if part in name:
                raise ModelError(f"tensor {name} is {kind}; {KNOWN}")
    _check_frequencies(weights, config)
    use = f"a {config.generation} drafter with this config has no use for it"
    check_expected(weights.shapes, dflash_tensors(config), "model.safetensors", use)
    check_dtypes(weights, "model.safetensors")
    for name in weights:
        if not torch.isfinite(weights[name].bfloat16()).all():  # the narrowest that is served
            raise ModelError(f"tensor {name} holds NaN or infinity: the file is damaged")


def _check_frequencies(weights: SafetensorWeights, config: DFlashConfig) -> None:
    """Stored rotary frequencies must be those of the config; then they are not needed."""
    expected = rope_frequencies(config.layers.rope, config.layers.head_dim)
    for name in [name for name in weights if name.endswith("rotary_emb.inv_freq")]:
        stored = weights[name].float()
        if stored.shape != expected.shape or not torch.allclose(stored, expected, rtol=1e-2):
            theta = config.layers.rope.theta
            raise ModelError(
                f"tensor {name} is not the RoPE of the config; expected {len(expected)} "
                f"frequencies of rope_theta {theta:g}"
            )
        weights.discard(name)


def _digest(folder: Path, config_json: Mapping[str, Any]) -> str:
    """SHA-256 over config, weights and mask embedding."""
    digest = hashlib.sha256(json.dumps(config_json, sort_keys=True).encode())
    files = [*weight_files(folder), folder / MASK_FILE]
    for path in files:
        if path.is_file():
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _check_digest(own: Mapping[str, Any], digest: str) -> None:
    stored = own.get("sha256")
    if stored is not None and stored != digest:
        raise ModelError(
            f"config and weights have SHA-256 {digest}; {OWN_FILE} says {stored}: the folder was "
            "damaged or changed since it was written"
        )


# -- the files beside config and weights ---------------------------------------------------------


def _read_own(folder: Path) -> dict[str, Any]:
    path = folder / OWN_FILE
    return read_json(path) if path.is_file() else {}


def _read_head_ids(own: Mapping[str, Any], config: DFlashConfig) -> torch.Tensor | None:
    ids = own.get("head_token_ids")
    if ids is None:
        return None
    vocabulary = config.layers.vocab_size
    whole = isinstance(ids, list) and all(type(i) is int and 0 <= i < vocabulary for i in ids)
    if not ids or not whole or ids != sorted(set(ids)):
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


def _read_provenance(own: Mapping[str, Any], config: DFlashConfig) -> Provenance:
    given = own.get("provenance", {})
    known = set(Provenance.__dataclass_fields__)
    if not isinstance(given, Mapping) or set(given) - known:
        raise ModelError(f"{OWN_FILE}: provenance has other fields than {', '.join(sorted(known))}")
    for key, value in given.items():
        kind = PROVENANCE_TYPES[key]
        listed = isinstance(value, list) and all(type(layer) is int for layer in value)
        whole = kind is float and type(value) is int  # JSON writes 10000.0 as 10000, too
        if not (whole or (listed if kind is tuple else isinstance(value, kind))):
            raise ModelError(f"{OWN_FILE}: provenance.{key} is {value!r}; expected {kind.__name__}")
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    provenance = Provenance(**fields)
    theta = config.layers.rope.theta
    if provenance.rope_theta is not None and provenance.rope_theta != theta:
        raise ModelError(
            f"config.json: rope_theta is {theta:g}; the drafter was trained with "
            f"{provenance.rope_theta:g}"
        )
    return provenance


def _read_mask_embedding(folder: Path, config: DFlashConfig) -> torch.Tensor | None:
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
    if not isinstance(state, torch.Tensor) or state.numel() != hidden:
        shape = list(state.shape) if isinstance(state, torch.Tensor) else type(state).__name__
        raise ModelError(f"{MASK_FILE}: embedding is {shape}; expected [{hidden}]")
    if not torch.isfinite(state).all():
        raise ModelError(f"{MASK_FILE}: embedding holds NaN or infinity: the file is damaged")
    return state.reshape(-1).float()

"""A drafter's folder: read strictly, from either format, and written in z-lab's.

config.json            z-lab's, or speculators'
model.safetensors      the tensors of `tensors.dflash_tensors`, or an index and several files
mask_embedding.pt      optional: the embedding of the mask slots, in place of the target's row
paceline.json          optional, ours: a digest, the ids that the head may be cut to, and what the
                       drafter was trained on. Other engines load the folder without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from pydantic import ConfigDict, Strict
from torch import Tensor

from paceline.core import InvalidRequest, ModelError
from paceline.core.documents import Document
from paceline.models.catalog import pull
from paceline.models.dflash.config import DFlashConfig, read_dflash_config
from paceline.models.dflash.formats import from_speculators, is_speculators, refuse_foreign_tensors
from paceline.models.dflash.tensors import dflash_tensors
from paceline.models.json_files import read_json, read_optional_json
from paceline.models.rope import rope_frequencies
from paceline.models.tensor_files import save_tensors
from paceline.models.weights import (
    INDEX,
    RandomTensors,
    SafetensorWeights,
    check_expected,
    weight_files,
)

# Copies of the target's tensors, which speculators writes beside the drafter's.
COPIES = ("embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight")
MASK_FILE, OWN_FILE = "mask_embedding.pt", "paceline.json"


class Provenance(Document):
    """The conditions that a drafter was trained under, as far as its folder says: None is unknown.
    `target` is a name, `dtype` that of the target whose features it learnt from, `context` the
    longest training sequence in tokens, `window` the most context that a draft saw in training."""

    model_config = ConfigDict(frozen=True)

    target: str | None = None
    target_layer_ids: Annotated[tuple[int, ...], Strict(False)] | None = None
    mask_token_id: int | None = None
    rope_theta: float | None = None
    template: str | None = None
    dtype: str | None = None
    context: int | None = None
    window: int | None = None


class OwnFile(Document):
    """paceline.json. `sha256` is that of config, weights and mask embedding; `head_token_ids` are
    those that the head may be cut to, ascending. Other fields may be of a later release."""

    model_config = ConfigDict(extra="ignore")

    sha256: str | None = None
    head_token_ids: list[int] | None = None
    provenance: Provenance = Provenance()


@dataclass(frozen=True, slots=True)
class DFlashCheckpoint:
    """A drafter that passed every check of its own. Whether it fits a target, `attach` decides.
    `config_json` is in z-lab's form; `version` is a digest of config and weights."""

    path: Path
    format: str
    config: DFlashConfig
    config_json: Mapping[str, object]
    weights: SafetensorWeights | RandomTensors
    version: str
    mask_embedding: Tensor | None = None
    head_ids: Tensor | None = None
    provenance: Provenance = field(default_factory=Provenance)


def is_drafter(folder: Path) -> bool:
    """Return whether a folder's config names some drafter, of a kind that we read or not."""
    path = folder / "config.json"
    if not path.is_file():
        return False
    hf = read_json(path)
    names = str(hf.get("architectures"))
    draft = ("Draft", "DFlash", "DSpark", "Domino", "Eagle", "Speculator")
    return is_speculators(hf) or "dflash_config" in hf or any(part in names for part in draft)


def load_checkpoint(name: str | Path) -> DFlashCheckpoint:
    """Read a drafter from a folder or hub id; every tensor is read once, and none is kept. Raises
    ModelError for what is missing, unexpected, misshaped, damaged or of another kind of drafter."""
    folder = pull(str(name), what="drafter")
    try:
        hf = read_json(folder / "config.json")
        form = "speculators" if is_speculators(hf) else "z-lab"
        config_json = from_speculators(hf) if form == "speculators" else hf
        config = read_dflash_config(config_json)
        weights = SafetensorWeights(folder)
        _check_tensors(weights, config, form)
        digest = _digest(folder, config_json)
        own_file = _read_own_file(folder / OWN_FILE, config, digest)
        ids = own_file.head_token_ids
        return DFlashCheckpoint(
            path=folder,
            format=form,
            config=config,
            config_json=config_json,
            weights=weights,
            version=digest[:12],
            mask_embedding=_read_mask_embedding(folder, config),
            head_ids=None if ids is None else torch.tensor(ids, dtype=torch.int64),
            provenance=own_file.provenance,
        )
    except ModelError as error:
        raise ModelError(f"drafter {folder.name}: {error}") from error


def save_checkpoint(
    folder: Path,
    config_json: Mapping[str, object],
    weights: Mapping[str, Tensor],
    *,
    mask_embedding: Tensor | None = None,
    head_ids: Sequence[int] | None = None,
    provenance: Mapping[str, object] | None = None,
) -> None:
    """Write a drafter in z-lab's format, and read it back as a check. Raises ModelError where the
    parts do not fit together, and then leaves no config.json: a half-written folder never loads."""
    config = read_dflash_config(config_json)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in ("config.json", MASK_FILE, OWN_FILE, INDEX):  # of a drafter that was here before
        (folder / stale).unlink(missing_ok=True)
    tensors = {name: weights[name].detach().contiguous() for name in weights}
    save_tensors(tensors, folder / "model.safetensors")
    if mask_embedding is not None:
        state = {"embedding": mask_embedding, "mask_token_id": config.mask_token_id}
        torch.save(state, folder / MASK_FILE)
    (folder / "config.json").write_text(json.dumps(dict(config_json), indent=2) + "\n")
    own_file = {
        "sha256": _digest(folder, config_json),
        "head_token_ids": None if head_ids is None else sorted(int(token) for token in head_ids),
        "provenance": provenance and dict(provenance),
    }
    stated = {key: value for key, value in own_file.items() if value is not None}
    (folder / OWN_FILE).write_text(json.dumps(stated) + "\n")
    try:
        load_checkpoint(folder)
    except ModelError:
        (folder / "config.json").unlink()
        raise


# -- checks ----------------------------------------------------------------------------------------


def _check_tensors(weights: SafetensorWeights, config: DFlashConfig, form: str) -> None:
    for name in COPIES if form == "speculators" else ():
        weights.discard(name)
    refuse_foreign_tensors(weights)
    _check_frequencies(weights, config)
    use = f"a {config.generation} drafter with this config has no use for it"
    check_expected(weights.shapes, dflash_tensors(config), "model.safetensors", use)
    weights.check_dtypes("model.safetensors")
    for name in weights:
        if not torch.isfinite(weights[name].bfloat16()).all():  # the narrowest that is served
            raise ModelError(f"tensor {name} holds NaN or infinity: the file is damaged")


def _check_frequencies(weights: SafetensorWeights, config: DFlashConfig) -> None:
    """Check that stored rotary frequencies are those of the config, and drop them."""
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


def _digest(folder: Path, config_json: Mapping[str, object]) -> str:
    """Return SHA-256 over config, weights and mask embedding."""
    digest = hashlib.sha256(json.dumps(config_json, sort_keys=True).encode())
    for path in [*weight_files(folder), folder / MASK_FILE]:
        if path.is_file():
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _read_own_file(path: Path, config: DFlashConfig, digest: str) -> OwnFile:
    """Read paceline.json. Raises ModelError where it contradicts the config or the digest."""
    try:
        own = OwnFile.read(read_optional_json(path))
    except InvalidRequest as error:
        raise ModelError(f"{OWN_FILE}: {error}") from error
    if own.sha256 not in (None, digest):
        raise ModelError(
            f"config and weights have SHA-256 {digest}; {OWN_FILE} says {own.sha256}: the folder "
            "was damaged or changed since it was written"
        )
    theta, trained = config.layers.rope.theta, own.provenance.rope_theta
    if trained not in (None, theta):
        raise ModelError(
            f"config.json: rope_theta is {theta:g}; the drafter was trained with {trained:g}"
        )
    ids, vocabulary = own.head_token_ids, config.layers.vocab_size
    if ids is None:
        return own
    if not ids or ids != sorted(set(ids)) or not 0 <= ids[0] <= ids[-1] < vocabulary:
        raise ModelError(
            f"{OWN_FILE}: head_token_ids must be token ids from 0 to {vocabulary - 1}, ascending, "
            "each once"
        )
    if config.second is not None and len(ids) < config.second.selector_top_k:
        raise ModelError(
            f"{OWN_FILE}: head_token_ids has {len(ids)} ids; expected at least "
            f"selector_top_k ({config.second.selector_top_k})"
        )
    return own


def _read_mask_embedding(folder: Path, config: DFlashConfig) -> Tensor | None:
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
        given, mask = state.get("mask_token_id"), config.mask_token_id
        if given not in (None, mask):
            raise ModelError(f"{MASK_FILE}: mask_token_id is {given}; expected the config's {mask}")
        state = state.get("embedding")
    hidden = config.layers.hidden_size
    if not isinstance(state, Tensor) or state.numel() != hidden:
        shape = list(state.shape) if isinstance(state, Tensor) else type(state).__name__
        raise ModelError(f"{MASK_FILE}: embedding is {shape}; expected [{hidden}]")
    if not torch.isfinite(state).all():
        raise ModelError(f"{MASK_FILE}: embedding holds NaN or infinity: the file is damaged")
    return state.reshape(-1).float()

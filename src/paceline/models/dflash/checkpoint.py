"""A drafter's folder: read strictly, from either format, and written in z-lab's.

config.json            z-lab's, or speculators'
model.safetensors      the tensors of `tensors.dflash_tensors`, or an index and several files
mask_embedding.pt      optional: see `extra_files`
paceline.json          optional: see `extra_files`
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
from torch import Tensor

from paceline.core import ModelError
from paceline.models.catalog import pull
from paceline.models.dflash.config import DFlashConfig, read_dflash_config
from paceline.models.dflash.extra_files import (
    MASK_FILE,
    OWN_FILE,
    Provenance,
    read_head_ids,
    read_mask_embedding,
    read_provenance,
)
from paceline.models.dflash.foreign import refuse_foreign_tensors
from paceline.models.dflash.speculators import from_speculators, is_speculators
from paceline.models.dflash.tensors import dflash_tensors
from paceline.models.loader import read_json
from paceline.models.rope import rope_frequencies
from paceline.models.weights import (
    INDEX,
    RandomTensors,
    SafetensorWeights,
    check_expected,
    weight_files,
)

# Copies of the target's tensors, which speculators writes beside the drafter's.
COPIES = ("embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight")


@dataclass(frozen=True, slots=True)
class DFlashCheckpoint:
    """A drafter that passed every check of its own. Whether it fits a target, `attach` decides.

    `config_json` is the config in z-lab's form. `head_ids` are the token ids that the head may be
    cut to, ascending; None keeps the whole head. `version` is a digest of config and weights.
    """

    path: Path
    format: str
    config: DFlashConfig
    config_json: Mapping[str, Any]  # JSON
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
    names = " ".join(map(str, hf.get("architectures") or []))
    draft = ("Draft", "DFlash", "DSpark", "Domino", "Eagle", "Speculator")
    return is_speculators(hf) or "dflash_config" in hf or any(part in names for part in draft)


def load_checkpoint(name: str | Path) -> DFlashCheckpoint:
    """Read a drafter from a folder or hub id; every tensor is read once, and none is kept.

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
        own_file = read_json(folder / OWN_FILE) if (folder / OWN_FILE).is_file() else {}
        digest = _digest(folder, config_json)
        _check_digest(own_file.get("sha256"), digest)
        return DFlashCheckpoint(
            path=folder,
            format=form,
            config=config,
            config_json=config_json,
            weights=weights,
            version=digest[:12],
            mask_embedding=read_mask_embedding(folder, config),
            head_ids=read_head_ids(own_file, config),
            provenance=read_provenance(own_file, config),
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
    """Write a drafter in z-lab's format, and reads it back as a check.

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
    own_file: dict[str, object] = {"sha256": _digest(folder, config_json)}
    if head_ids is not None:
        own_file["head_token_ids"] = sorted(int(token) for token in head_ids)
    if provenance:
        own_file["provenance"] = dict(provenance)
    (folder / OWN_FILE).write_text(json.dumps(own_file) + "\n")
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
    files = [*weight_files(folder), folder / MASK_FILE]
    for path in files:
        if path.is_file():
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _check_digest(stored: object, digest: str) -> None:
    if stored is not None and stored != digest:
        raise ModelError(
            f"config and weights have SHA-256 {digest}; {OWN_FILE} says {stored}: the folder was "
            "damaged or changed since it was written"
        )

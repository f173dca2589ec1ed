"""The drafter that a run leaves: z-lab's format, with what it was made from and what it scored.

config.json, model.safetensors   what SGLang, vLLM and the authors' package read
paceline.json                    what `paceline drafter doctor` checks, and the frequent tokens
provenance.json                  target, data, settings, scores: all that made it
README.md                        the model card
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.core import InvalidRequest
from paceline.dataset.training_set import Manifest
from paceline.models.dflash.checkpoint import save_checkpoint
from paceline.training import card
from paceline.training.config import TrainConfig
from paceline.training.form import TrainingForm
from paceline.training.progress import Progress
from paceline.training.state import DRAFTER, replace_folder
from paceline.version import __version__


@dataclass(frozen=True, slots=True)
class Made:
    """What a run knows of its drafter before the first step: `target` is loader.identity's, `hf`
    the drafter's config.json, `before` the history of the one it goes on from, `head_ids` int64
    [n], or None for the whole head, `longest` the longest text in tokens."""

    config: TrainConfig
    hf: Mapping[str, Any]
    target: Mapping[str, Any]
    manifests: Mapping[str, Manifest]
    before: Mapping[str, Any] | None
    head_ids: torch.Tensor | None
    longest: int


def write(made: Made, form: TrainingForm, progress: Progress, step: int) -> None:
    """Replaces the run's drafter folder by the drafter as it is now."""
    config, about = made.config, provenance(made, form, progress, step)

    def fill(folder: Path) -> None:
        save_checkpoint(
            folder,
            made.hf,
            plain_weights(form),
            mask_embedding=form.mask_embedding,
            head_ids=None if made.head_ids is None else made.head_ids.tolist(),
            provenance={
                "target": made.target["name"],
                "target_layer_ids": list(form.config.target_layer_ids),
                "mask_token_id": form.config.mask_token_id,
                "rope_theta": form.config.layers.rope.theta,
                "dtype": config.dtype,
                "template": made.target["template"],
                "context": max(made.longest, form.config.block_size),
            },
        )
        (folder / card.PROVENANCE).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        (folder / card.CARD).write_text(card.card(about), "utf-8")

    replace_folder(config.folder / DRAFTER, fill)


def plain_weights(form: TrainingForm) -> dict[str, torch.Tensor]:
    """The drafter's tensors as the format has them, in bfloat16."""
    state = form.drafter.state_dict()
    return {name: value.detach().bfloat16().cpu() for name, value in state.items()}


def provenance(made: Made, form: TrainingForm, progress: Progress, step: int) -> dict[str, Any]:
    """Everything that made a drafter, without paths: sets by name and digest."""
    config = made.config
    settings = config.as_json()
    for name in ("sets", "held_out", "out_of_domain", "out", "init", "model", "trackers"):
        settings.pop(name)
    trained = [Path(folder).name for folder in config.sets]
    return {
        "format": "paceline-drafter/1",
        "paceline": __version__,
        "target": dict(made.target),
        "generation": form.config.generation,
        "weights": sum(p.numel() for p in form.drafter.parameters()),
        "shape": {
            "layers": form.config.layers.num_layers,
            "block": form.config.block_size,
            "target_layer_ids": list(form.config.target_layer_ids),
            "head_tokens": len(form.head.weight),
        },
        "init": None if made.before is None else dict(made.before),
        "data": {
            name: {
                "digest": manifest.digest,
                "trained_on": name in trained,
                "user_data": manifest.user_data,
                "app": manifest.app.get("description", {}).get("name"),
                "tokens": sum(shard.answer_tokens for shard in manifest.of("train")),
                "sources": manifest.app.get("sources", []),
            }
            for name, manifest in made.manifests.items()
        },
        "settings": settings,
        "step": step,
        "scores": progress.history[-1],
        "before": progress.history[0] if config.init is not None else None,
        "regressions": progress.regressions,
    }


def history(folder: Path) -> dict[str, Any]:
    """What a drafter was before: its folder's name, and how it was made, where that is known. Its
    scores are no longer those of any drafter here.

    Raises InvalidRequest (field `init`) for a provenance that cannot be read.
    """
    path, made = folder / card.PROVENANCE, None
    if path.is_file():
        try:
            found = json.loads(path.read_text("utf-8"))
            made = {name: found[name] for name in ("init", "data", "settings", "step")}
        except (ValueError, TypeError, KeyError) as error:
            expected = (
                f"a drafter whose {card.PROVENANCE} is as `paceline train` wrote it ({error})"
            )
            raise InvalidRequest("init", str(folder), expected) from error
    return {"name": folder.name, "made": made}

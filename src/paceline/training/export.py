"""The drafter that a run leaves: z-lab's format, with its provenance and its scores.

config.json, model.safetensors   what SGLang, vLLM and the authors' package read
paceline.json                    what `paceline drafter doctor` checks, and the frequent tokens
provenance.json                  what made it: see training.provenance
README.md                        the model card
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from paceline.bench.report.pages import render
from paceline.dataset.overlap import OVERLAP, read_overlap
from paceline.dataset.training_set import write_whole
from paceline.models.catalog import CATALOGUE
from paceline.models.dflash.checkpoint import save_checkpoint
from paceline.models.dflash.tensors import PREDECESSORS
from paceline.training.config import TrainConfig
from paceline.training.data import Data
from paceline.training.evaluation import Progress, production_gaps
from paceline.training.form import TrainingForm
from paceline.training.provenance import (
    FORMAT,
    MADE,
    PROVENANCE,
    Provenance,
    as_text,
    read,
    shortened,
)
from paceline.training.state import DRAFTER, replace_folder
from paceline.version import __version__

CARD = "README.md"


@dataclass(frozen=True, slots=True)
class Made:
    """The facts about a drafter that are known before the first step: `target` is
    loader.identity's, `hf` the drafter's config.json, `before` the history of the drafter it
    goes on from, `origin` what a distilled target was made from, `head_ids` int64 [n], or None for
    the whole head, `predecessors` float [vocabulary, rank] the codebook of a selector that began at
    random, as it began."""

    config: TrainConfig
    hf: Mapping[str, object]
    target: Mapping[str, str]
    data: Data
    before: Mapping[str, object] | None
    head_ids: torch.Tensor | None
    predecessors: torch.Tensor | None = None
    origin: Mapping[str, object] | None = None

    def context(self, form: TrainingForm) -> int:
        """Return the most tokens of context that a draft saw in training."""
        return max(*map(len, self.data.train), form.config.block_size)


def write(made: Made, form: TrainingForm, progress: Progress, step: int) -> None:
    """Replace the run's drafter folder by the drafter as it is now."""
    config, record = made.config, provenance(made, form, progress, step)

    def fill(folder: Path) -> None:
        save_checkpoint(
            folder,
            made.hf,
            {name: value.bfloat16().cpu() for name, value in weights(made, form).items()},
            mask_embedding=form.mask_embedding,
            head_ids=None if made.head_ids is None else made.head_ids.tolist(),
            provenance={
                "target": made.target["name"],
                "target_layer_ids": list(form.config.target_layer_ids),
                "mask_token_id": form.config.mask_token_id,
                "rope_theta": form.config.layers.rope.theta,
                "dtype": config.dtype,
                "template": made.target["template"],
                "context": made.context(form),
            },
        )
        (folder / PROVENANCE).write_text(as_text(record), "utf-8")
        (folder / CARD).write_text(card(record), "utf-8")

    replace_folder(config.folder / DRAFTER, fill)


def weights(made: Made, form: TrainingForm) -> dict[str, torch.Tensor]:
    """Return the drafter's tensors as they are served.

    Rows of the predecessors' codebook that never moved from their random start are zero: behind a
    token that no text held, the selector then leaves the choice to the logits instead of adding
    noise. (With weight decay all rows move, and those shrink to zero by themselves.)
    """
    tensors = form.drafter.state_dict()
    start = made.predecessors
    if start is not None:
        codebook = tensors[PREDECESSORS]
        moved = (codebook != start.to(codebook.device)).any(dim=1, keepdim=True)
        tensors[PREDECESSORS] = codebook * moved
    return tensors


def provenance(made: Made, form: TrainingForm, progress: Progress, step: int) -> dict[str, object]:
    """Return everything that made a drafter, without paths: sets by name and digest."""
    config = made.config
    settings = asdict(config)
    for name in ("sets", "held_out", "out_of_domain", "out", "init", "model", "trackers"):
        settings.pop(name)
    trained = [Path(folder).name for folder in config.sets]
    record = {
        "format": FORMAT,
        "paceline": __version__,
        "target": dict(made.target),
        "generation": form.config.generation,
        "context": made.context(form),
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
                "overlap": manifest.app.get(OVERLAP, {}),
                "left_out": made.data.left_out[name],
            }
            for name, manifest in made.data.manifests.items()
        },
        "settings": settings,
        "step": step,
        "scores": progress.history[-1],
        "before": progress.history[0] if config.init is not None else None,
        "regressions": progress.regressions,
    }
    if made.origin:
        record["origin"] = dict(made.origin)
    return shortened(record)


def history(folder: Path) -> dict[str, object]:
    """Return the past of a drafter: its folder's name, and its making, where that is known. Its
    scores are left out, because training changes them.

    Raises InvalidRequest (field `init`) for a provenance that cannot be read.
    """
    making = None
    if (folder / PROVENANCE).is_file():
        expected = f"a drafter whose {PROVENANCE} is as `paceline train` wrote it"
        record = read(folder, "init", expected)
        making = {name: record[name] for name in (*MADE, "origin") if name in record}
    return {"name": folder.name, "made": making}


def card(provenance: Provenance, evaluation: str | None = None) -> str:
    """Return the Markdown of a provenance; `evaluation` is `paceline evaluate`'s table."""
    begun = provenance["init"]
    while begun is not None and begun["made"] is not None:
        begun = begun["made"]["init"]
    stages = _stages(provenance)
    rows = [(name, data) for stage in stages for name, data in stage["data"].items()]
    learnt = {data["digest"] for _, data in rows if data["trained_on"]}
    sets = {data["digest"]: (name, data, data["digest"] in learnt) for name, data in rows}
    shared = [
        f"{split} of {name}: {overlap.text}"
        for name, data, learnt in sets.values()
        if learnt
        for split, overlap in read_overlap(data).items()
    ]
    target = provenance["target"]["name"]
    values = {
        # The hub knows no other names than its own.
        "base_model": (CATALOGUE[target].hub_id or target) if target in CATALOGUE else target,
        "shared": shared,
        "gaps": production_gaps(provenance["scores"]),
        "begun": None if begun is None else begun["name"],
        "stages": stages,
        "sets": list(sets.values()),
        "served": evaluation,
    }
    return render("card.md", {**provenance, **values}, "paceline.training").rstrip() + "\n"


def _stages(provenance: Provenance) -> list[Provenance]:
    """Return the runs that made a drafter, the first one first, as far back as is recorded."""
    before = provenance["init"]
    recorded = before is not None and before["made"] is not None
    return [*(_stages(before["made"]) if recorded else ()), provenance]


def add_evaluation(folder: Path, table: str, summary: Mapping[str, object]) -> None:
    """Put an evaluation into the card and the provenance of a drafter that `paceline train` wrote:
    `table` is Markdown, `summary` what evaluate() returned.

    Raises InvalidRequest (field `card`) for a folder without a provenance.
    """
    before = read(folder, "card", f"a drafter's folder with a readable {PROVENANCE}")
    provenance = shortened({**before, "evaluation": dict(summary)})
    write_whole(folder / PROVENANCE, as_text(provenance).encode())
    write_whole(folder / CARD, card(provenance, table).encode())

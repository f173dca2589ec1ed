"""A training run from its settings: what may be wrong is looked at before time is spent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline.core import InvalidRequest
from paceline.dataset.training_set import Manifest, read_manifest
from paceline.models.dflash.checkpoint import DFlashCheckpoint, load_checkpoint
from paceline.models.dflash.config import DFlashConfig, read_dflash_config
from paceline.models.dflash.module import DFlashModule
from paceline.models.loader import LoadedModel, identity, load_model
from paceline.models.networks import DTYPES, build_network
from paceline.models.tensors import EMBEDDING
from paceline.training import export
from paceline.training.allocator import keep_freed_memory
from paceline.training.anchors import Text
from paceline.training.config import TrainConfig
from paceline.training.data import (
    check_target,
    frequent_tokens,
    read_texts,
    token_counts,
    without_token,
)
from paceline.training.form import TrainingForm
from paceline.training.head import Head, Objective
from paceline.training.shape import check_fit, drafter_json, mask_token, reshaped
from paceline.training.sharded import ShardedTarget
from paceline.training.state import DRAFTER, STATE, restore_folder
from paceline.training.target import LocalTarget, Target
from paceline.training.trackers import Tracker, open_trackers, tracker_package
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers

GIB = 1 << 30
# Share of the texts that may hold the mask token of the drafter gone on from, which was chosen when
# none did: they are left out. More of them is another kind of text, and refused.
FEW = 0.01


@dataclass(slots=True)
class Data:
    """Texts of a run, numbered through so that what the target saw of each is kept once."""

    train: list[Text]
    held_out: dict[str, list[Text]]
    out_of_domain: dict[str, list[Text]]
    manifests: dict[str, Manifest]


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended. `drafter` is the folder of the best drafter, None where no evaluation was
    better than before the first step; `why` says so, or what ended the run early."""

    drafter: Path | None
    why: str | None


def train(config: TrainConfig, show: Callable[[str], None]) -> Result:
    """Trains to the end; `show` gets a line now and then.

    Raises InvalidRequest or ModelError for what cannot be, before anything is computed.
    """
    check_place(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.device == "cpu":
        keep_freed_memory()
    workers = Workers(config.device)
    try:
        workers.check(config.texts, config.micro, config.shard_target)
        trainer = prepare(config, workers, show if workers.first else None)
        _run(trainer, show)
    finally:
        workers.close()
    if trainer.progress.best:
        return Result(config.folder / DRAFTER, trainer.finished)
    why = trainer.finished or "the run came to its end"
    return Result(None, f"no evaluation was better than before the first step; {why}")


def check_place(config: TrainConfig) -> None:
    """Raises InvalidRequest for a device, a tracker or a folder that is not to be had."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device", config.device, "cpu: torch sees no CUDA device here")
    for name in config.trackers:
        tracker_package(name)
    folder = config.folder
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest("out", config.out, "a folder, new or of the same run")
    if (folder / DRAFTER).exists() and not (folder / STATE).exists():
        expected = f"a folder without a {DRAFTER}/ of another run in it"
        raise InvalidRequest("out", config.out, expected)


def _run(trainer: Trainer, show: Callable[[str], None]) -> None:
    config, workers = trainer.config, trainer.workers
    resumed = trainer.resume()
    trackers: list[Tracker] = []
    if workers.first:
        config.folder.mkdir(parents=True, exist_ok=True)
        restore_folder(config.folder / DRAFTER)
        _check_room(trainer)
        show(describe(trainer, resumed))
        trackers = open_trackers(
            config.trackers, config.folder, config.as_json(), trainer.step + (1 if resumed else 0)
        )
    workers.wait()
    try:
        trainer.run(trackers, lambda numbers: show(line(numbers)))
    finally:
        for tracker in trackers:
            tracker.close()


def prepare(
    config: TrainConfig, workers: Workers, show: Callable[[str], None] | None = None
) -> Trainer:
    """Reads and checks sets, target and drafter, and puts the trainer together. `show` is told
    which texts are left out."""
    loaded = load_model(config.model)
    named = identity(loaded)
    data = read_data(config, named, min(config.max_tokens, loaded.max_context))
    checkpoint = None if config.init is None else load_checkpoint(config.init)
    if checkpoint is not None:
        data = _without_mask(data, checkpoint.config.mask_token_id, show)
    seen = torch.cat([text.ids for text in data.train]).unique().tolist()
    hf = _drafter_config(config, loaded, checkpoint, seen)
    shape = read_dflash_config(hf)
    check_fit(shape, loaded.config, loaded.eos_ids, seen)
    _check_shape(config, shape)
    ids = _head_ids(config, shape, token_counts(data.train, loaded.config.vocab_size), checkpoint)
    target = _target(config, loaded, shape, workers)
    form = TrainingForm(
        _drafter(config, shape, checkpoint).to(workers.device),
        target.embedding.to(workers.device),
        Head.of(target.head[ids].to(workers.device), ids, loaded.config.vocab_size),
        Objective(config.mix, config.weights, config.value("selector_share")),
        mask_embedding=None if checkpoint is None else checkpoint.mask_embedding,
        autocast=config.dtype == "bfloat16",
    )
    longest = max(len(text) for text in data.train)
    cut = None if len(ids) == len(target.head) else ids
    before = None if config.init is None else export.history(Path(config.init))
    made = export.Made(config, hf, named, data.manifests, before, cut, longest)
    inputs = {
        "model": named["weights_sha256"],
        "sets": [data.manifests[Path(folder).name].digest for folder in config.sets],
        "held_out": {name: data.manifests[name].digest for name in config.held_out},
        "out_of_domain": {name: data.manifests[name].digest for name in config.out_of_domain},
        "init": None if checkpoint is None else checkpoint.version,
    }
    return Trainer(
        config, form, target, data.train, data.held_out, data.out_of_domain, workers,
        partial(export.write, made, form), inputs,
    )  # fmt: skip


def _target(
    config: TrainConfig, loaded: LoadedModel, shape: DFlashConfig, workers: Workers
) -> Target:
    layers, soft = shape.target_layer_ids, int(config.value("soft_tokens")) * config.soft
    if config.shard_target:
        return ShardedTarget(loaded, layers, workers, DTYPES[config.dtype], soft)
    network, _ = build_network(loaded, dtype=config.dtype, device=config.device)
    return LocalTarget(network, loaded.config, layers, int(config.value("features_gb") * GIB), soft)


def read_data(config: TrainConfig, named: Mapping[str, str], most: int) -> Data:
    """Sets as the settings name them: `held_out` of the training sets and of those named so, and
    out of domain their `neighbour` split and what is named so."""
    folders = {Path(folder).name: folder for folder in config.sets}
    names = [Path(folder).name for folder in config.sets]
    names += [*config.held_out, *config.out_of_domain]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest("sets", name, "a name of its own for every set")
    others = {**config.held_out, **config.out_of_domain}
    manifests = {name: read_manifest(Path(folder)) for name, folder in (folders | others).items()}
    for field, named_sets in (
        ("held_out", config.held_out),
        ("out_of_domain", config.out_of_domain),
    ):
        for name, folder in named_sets.items():
            if not manifests[name].of("held_out"):
                raise InvalidRequest(field, folder, "a set with a held_out split")
    check_target(manifests, named)
    texts = read_texts([Path(folder) for folder in config.sets], "train", most)
    count = len(texts)
    held: dict[str, list[Text]] = {}
    other: dict[str, list[Text]] = {}
    for found, split, where in (
        (held, "held_out", folders | dict(config.held_out)),
        (other, "neighbour", folders),
        (other, "held_out", dict(config.out_of_domain)),
    ):
        for name, folder in where.items():
            if manifests[name].of(split):
                some = read_texts([Path(folder)], split, most, count)
                found[name] = _spread(some, config.eval_texts)
                count += len(some)
    if config.on_regression == "stop" and not other:
        raise InvalidRequest("on_regression", "stop", "a set out of domain to watch")
    if not held:
        expected = "a set with a held_out split, or NAME=FOLDER of another one that has it"
        raise InvalidRequest("held_out", dict(config.held_out), expected)
    return Data(texts, held, other, manifests)


def _spread(texts: list[Text], most: int) -> list[Text]:
    """At most `most` of them, evenly."""
    if len(texts) <= most:
        return texts
    return [texts[int(i)] for i in torch.linspace(0, len(texts) - 1, most)]


def _without_mask(data: Data, mask: int, show: Callable[[str], None] | None) -> Data:
    """`data` without its few texts that hold the drafter's mask token. Where there are many, all of
    them stay, and check_fit() refuses the drafter."""
    kept = without_token(data.train, mask)
    left_out = len(data.train) - len(kept)
    if not 0 < left_out <= FEW * len(data.train):
        return data
    if show is not None:
        texts = "1 text that holds" if left_out == 1 else f"{left_out} texts that hold"
        show(f"left out {texts} token {mask}, the drafter's mask token")
    return replace(data, train=kept)


def _drafter_config(
    config: TrainConfig,
    loaded: LoadedModel,
    checkpoint: DFlashCheckpoint | None,
    seen: list[int],
) -> dict[str, Any]:
    if checkpoint is not None:
        return reshaped(config, checkpoint)
    if config.mask_token is not None:
        return drafter_json(config, loaded.config, config.mask_token)
    return drafter_json(
        config,
        loaded.config,
        mask_token(loaded.tokenizer, loaded.weights[EMBEDDING], loaded.eos_ids, seen),
    )


def _drafter(
    config: TrainConfig,
    shape: DFlashConfig,
    checkpoint: DFlashCheckpoint | None,
) -> DFlashModule:
    torch.manual_seed(config.seed)
    module = DFlashModule(shape)
    if checkpoint is not None:
        module.load_state_dict({name: checkpoint.weights[name] for name in checkpoint.weights})
    return module


def _check_shape(config: TrainConfig, shape: DFlashConfig) -> None:
    """Raises InvalidRequest for what the drafter's shape leaves without effect."""
    short = config.short_block
    if short is not None and short >= shape.block_size:
        raise InvalidRequest("short_block", short, f"less than the block's {shape.block_size}")
    for name in ("selector_share", "selector_rank"):
        if getattr(config, name) is not None and shape.second is None:
            raise InvalidRequest(name, getattr(config, name), "generation dflash2")


def _head_ids(
    config: TrainConfig,
    shape: DFlashConfig,
    counts: torch.Tensor,
    checkpoint: DFlashCheckpoint | None,
) -> torch.Tensor:
    """Rows of the head that are trained over, and served: those of the drafter before stay."""
    if config.head_tokens == 0 or (checkpoint is not None and checkpoint.head_ids is None):
        return torch.arange(len(counts))
    ids = frequent_tokens(counts, config.head_tokens)
    if checkpoint is not None and checkpoint.head_ids is not None:
        ids = torch.cat((ids, checkpoint.head_ids)).unique()
    least = 1 if shape.second is None else shape.second.selector_top_k
    if len(ids) < least:
        expected = f"at least {least}, the selector's candidates"
        raise InvalidRequest("head_tokens", len(ids), expected)
    return ids


def _check_room(trainer: Trainer) -> None:
    """Raises InvalidRequest (field `out`) where the disk cannot hold what the run will save."""
    weights = sum(p.nbytes for p in trainer.form.drafter.parameters())
    needed = 2 * 3 * weights + 3 * weights // 2  # two states while one replaces the other; drafters
    free = shutil.disk_usage(trainer.config.folder).free
    if free < needed:
        expected = f"a folder on a disk with {needed >> 20} MiB free; it has {free >> 20} MiB"
        raise InvalidRequest("out", trainer.config.out, expected)


def describe(trainer: Trainer, resumed: bool) -> str:
    """What is about to happen, in one line."""
    config, shape = trainer.config, trainer.form.config
    weights = sum(p.numel() for p in trainer.form.drafter.parameters()) / 1e6
    said = sum(int(text.said.sum()) for text in trainer.texts)
    start = f"going on at step {trainer.step} of" if resumed else "training"
    return (
        f"{start} {trainer.total} steps: {shape.generation}, {shape.layers.num_layers} layers, "
        f"block {shape.block_size}, {weights:.1f} M weights, head of "
        f"{len(trainer.form.head.weight)} tokens; {len(trainer.texts)} texts with {said} tokens "
        f"said, {config.texts} texts x {config.anchors} blocks a step"
    )


def line(numbers: Mapping[str, float]) -> str:
    """A line for people out of what goes to the log."""
    step = f"step {int(numbers['step'])}"
    lengths = [f"{k[: -len('/al')]} AL {v:.3f}" for k, v in numbers.items() if k.endswith("/al")]
    fallen = [f"REGRESSION {k} -{100 * v:.0f}%" for k, v in numbers.items() if "regression" in k]
    if "loss" not in numbers:
        return ", ".join([step, *lengths, *fallen])
    return (
        f"{step}: loss {numbers['loss']:.3f}, {', '.join(lengths)}, "
        f"{numbers['slots_per_second']:.0f} slots/s, "
        f"{100 * numbers.get('peak_share/all', 0):.0f}% of the matmul peak"
    )

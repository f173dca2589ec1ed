"""A training run from its settings, which are checked before time is spent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from paceline.core import InvalidRequest
from paceline.core.signals import ending_on_signals
from paceline.dataset.distilled import ORIGIN
from paceline.dataset.folder_lock import locked
from paceline.drafters.shipped import drafter_folder
from paceline.engine.peak import product_speeds
from paceline.kernels import build
from paceline.models.any_target import AnyTarget, read_target
from paceline.models.dflash.checkpoint import DFlashCheckpoint, load_checkpoint
from paceline.models.dflash.config import DFlashConfig, read_dflash_config
from paceline.models.json_files import read_optional_json
from paceline.models.loader import identity
from paceline.models.networks import DTYPES, check_device
from paceline.models.tensors import EMBEDDING
from paceline.training import export
from paceline.training.config import TrainConfig
from paceline.training.data import (
    frequent_tokens,
    read_data,
    seen_tokens,
    token_counts,
    without_mask,
)
from paceline.training.form import TrainingForm
from paceline.training.losses import Head, Objective
from paceline.training.passing import Passing, write_asked
from paceline.training.shape import (
    check_fit,
    check_shape,
    drafter_json,
    first_weights,
    mask_token,
    reshaped,
)
from paceline.training.state import DRAFTER, STATE, restore_folder
from paceline.training.target_engines import (
    OtherModel,
    build_target,
    check_engine,
    feature_folder,
    other_model,
    soft_tokens,
)
from paceline.training.telling import line
from paceline.training.trackers import Tracker, open_trackers, tracker_package
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers, keep_freed_memory


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The end of a run. `drafter` is the folder of the best drafter, None where no evaluation was
    better than before the first step; `why` says so, or why the run ended early. `regressed` says
    that a fall of a set that is watched ended it, or is why no drafter was kept."""

    drafter: Path | None
    why: str | None
    regressed: bool = False


def train(config: TrainConfig, show: Callable[[str], None]) -> TrainingResult:
    """Train to the end; `show` gets a line now and then.

    Raises InvalidRequest or ModelError before anything is computed.
    """
    with _workers(config) as workers:
        if workers.first and config.folder.is_dir():
            with locked(config.folder):
                pass  # a folder that is taken is refused before anything is loaded
        trainer = prepare(config, workers, show if workers.first else None)
        with closing(trainer.target), _held(config) if workers.first else nullcontext():
            try:
                _run(trainer, show)
            finally:
                if trainer.passing is not None:
                    trainer.passing.close()
    return _result(trainer)


@contextmanager
def _held(config: TrainConfig) -> Iterator[None]:
    """Hold what no other run may write to at the same time."""
    with locked(config.folder):
        if config.features_passing and config.features_folder is not None:
            with locked(Path(config.features_folder), "features_folder"):
                yield
        else:
            yield


def write_features(config: TrainConfig, show: Callable[[str], None]) -> None:
    """Fill `config.features_folder` with the features of every text that a run of these settings
    reads, in the order in which it does; what is there already stays. Trains nothing, and does not
    touch the run's folder: the run may go on beside it. With `config.features_passing` those that
    the run asks for are written, until it asks for nothing more.

    Raises InvalidRequest or ModelError before anything is computed, and InvalidRequest (field
    `features_folder_gb`, or `features_folder` with features_passing) where the folder, or the disk,
    has no room for a text.
    """
    if not config.shard_target:  # which keeps none
        config = replace(config, features_gb=0.0)
    with _workers(config) as workers:
        trainer = prepare(config, workers, show if workers.first else None)
        texts, folder = trainer.texts_to_read(), trainer.target.folder
        assert folder is not None, "the settings say so"
        with closing(trainer.target):
            if config.features_passing:
                minutes = config.value("features_wait_minutes")
                texts = [*trainer.data.judged(), *trainer.data.train]
                write_asked(trainer.target, texts, config.texts, minutes, workers, show)
                return
            for at in range(0, len(texts), config.texts):
                share = workers.mine(texts[at : at + config.texts])
                trainer.target.fetch(share)
                trainer.target.read_all(share)
                if folder.full:
                    size = config.value("features_folder_gb")
                    expected = f"room for {len(texts)} texts; {at} are there or in other processes"
                    raise InvalidRequest("features_folder_gb", size, expected)
                done = min(at + config.texts, len(texts))
                if workers.first:
                    show(f"features of {done} of {len(texts)} texts")


@contextmanager
def _workers(config: TrainConfig) -> Iterator[Workers]:
    """Begin a run of these settings, in one process or as one of several."""
    check_place(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.device == "cpu":
        keep_freed_memory()
    workers = Workers(config.device, patient=config.features_wait)
    try:
        workers.check(config.texts, config.micro, config.shard_target)
        yield workers
    finally:
        workers.close()


def _result(trainer: Trainer) -> TrainingResult:
    progress, why = trainer.progress, trainer.finished
    best = progress.best
    drafter = trainer.config.folder / DRAFTER if best else None
    if trainer.regressed:
        kept = f"the drafter of step {best} is kept" if best else "no drafter is kept"
        return TrainingResult(drafter, f"{why}; {kept}", True)
    if drafter is None:
        why = why or "the run came to its end"
        if (refused := progress.refused) is not None:
            fell, allowing = progress.told_fall(refused), progress.allowing(refused)
            hint = f"--regression {allowing:g} would allow it, in a run with another --out"
            return TrainingResult(None, f"no drafter is kept: {fell}; {hint}; {why}", True)
        why = f"no evaluation was better than before the first step; {why}"
    return TrainingResult(drafter, why)


def check_place(config: TrainConfig) -> None:
    """Raise InvalidRequest for a device, a tracker or a folder that is not available."""
    check_device(config.device)
    for name in config.trackers:
        tracker_package(name)
    check_compiler(config)
    folder = config.folder
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest("out", config.out, "a folder, new or of the same run")
    if (folder / DRAFTER).exists() and not (folder / STATE).exists():
        expected = f"a folder without a {DRAFTER}/ of another run in it"
        raise InvalidRequest("out", config.out, expected)


def check_compiler(config: TrainConfig) -> None:
    """Raise InvalidRequest where torch.compile lacks what it compiles with."""
    if config.device == "cuda" and find_spec("triton") is None:
        installed = "or the package triton installed"
        if config.compile:
            raise InvalidRequest("compile", True, f"false, {installed}")
        if config.attention == "flex":
            raise InvalidRequest("attention", "flex", f"auto or padded, {installed}")
    if config.device == "cpu" and config.compile:
        try:
            build.find_compiler()
        except build.BuildError as error:
            raise InvalidRequest("compile", True, f"false, or a C++ compiler: {error}") from error


def _run(trainer: Trainer, show: Callable[[str], None]) -> None:
    config, workers = trainer.config, trainer.workers
    resumed = trainer.resume()
    trackers: list[Tracker] = []
    if workers.first:
        config.folder.mkdir(parents=True, exist_ok=True)
        restore_folder(config.folder / DRAFTER)
        _check_room(trainer)
        _ask_others(trainer)
        show(describe(trainer, resumed))
        begin = trainer.step + (1 if resumed else 0)
        trackers = open_trackers(config.trackers, config.folder, asdict(config), begin)
    workers.wait()

    def log(step: int, numbers: Mapping[str, float]) -> None:
        if workers.first:
            for tracker in trackers:
                tracker.log(step, numbers)
            show(line(step, numbers))

    try:
        with ending_on_signals(trainer.stop):
            trainer.run(log)
        if trainer.passing is not None:
            trainer.passing.end()
    finally:
        for tracker in trackers:
            tracker.close()


def _ask_others(trainer: Trainer) -> None:
    """Have those who write the features know what this run waits for: all of it, or its beginning
    where features are passed on."""
    config, folder = trainer.config, trainer.target.folder
    if not config.features_wait or folder is None:
        return
    if not config.features_passing:
        folder.ask_for(trainer.texts_to_read())
        return
    most_gb = config.value("features_folder_gb")
    data, steps = trainer.data, config.total_steps(len(trainer.data.train))
    trainer.passing = Passing(folder, most_gb, data, trainer.order, steps)
    trainer.ask()


def prepare(
    config: TrainConfig, workers: Workers, show: Callable[[str], None] | None = None
) -> Trainer:
    """Read and check sets, target and drafter, and build the trainer. `show` is told which texts
    are left out."""
    found = read_target(config.model)
    check_engine(config, found)
    target_identity = identity(found)
    data = read_data(config, target_identity, min(config.max_tokens, found.max_context), show)
    begun = None if config.init is None else drafter_folder(config.init)
    checkpoint = None if begun is None else load_checkpoint(begun)
    if checkpoint is not None:
        data = without_mask(data, checkpoint.config.mask_token_id, show)
    seen = seen_tokens(data.train)
    model = other_model(config, found, workers, show)
    hf = _drafter_config(config, found, model, checkpoint, seen)
    shape = read_dflash_config(hf)
    check_fit(shape, found.shape, found.eos_ids, seen)
    check_shape(config, shape)
    ids = _head_ids(config, shape, token_counts(data.train, found.shape.vocab_size), checkpoint)
    soft = soft_tokens(config, data.train)
    target = build_target(config, found, model, shape, soft)
    target.folder = folder = feature_folder(config, found, shape, soft, workers, show)
    if folder is not None and show is not None:
        show(f"{folder.path} has features of {folder.found} texts")
    computed = computed_in(config)
    drafter = first_weights(config.seed, shape, checkpoint).to(workers.device)
    form = TrainingForm(
        drafter,
        target.embedding.to(workers.device),
        Head.of(shape, target.head[ids].to(workers.device, computed), ids),
        Objective(
            config.mix, config.weights, config.value("selector_share"), config.round_costs or ()
        ),
        mask_embedding=None if checkpoint is None else checkpoint.mask_embedding,
        autocast=computed is torch.bfloat16,
        start=deepcopy(drafter) if config.on_policy else None,
        attention=config.attention,
    )
    if config.compile:
        for layer in drafter.layers:
            layer.compile(dynamic=True)
    cut = None if len(ids) == len(target.head) else ids
    before = None if begun is None else export.history(begun)
    start = None
    if checkpoint is None and shape.second is not None:
        start = form.drafter.candidate_selector.predecessor_codebook.detach().clone()
    origin = read_optional_json(found.path / ORIGIN)
    made = export.Made(config, hf, target_identity, data, before, cut, start, origin)
    inputs = _inputs(config, made, checkpoint)
    return Trainer(config, form, target, data, workers, partial(export.write, made, form), inputs)


def computed_in(config: TrainConfig) -> torch.dtype:
    """Return the numbers that matrices are multiplied in. Features are those of `config.dtype`; but
    not every CPU multiplies bfloat16 faster than float32, and one without instructions for it does
    so some 80 times slower."""
    if config.device != "cpu" or config.dtype == "float32":
        return DTYPES[config.dtype]
    return product_speeds().faster


def _inputs(
    config: TrainConfig, made: export.Made, checkpoint: DFlashCheckpoint | None
) -> dict[str, object]:
    """Return digests of everything that a run reads, by the name of its setting."""
    digests = {name: manifest.digest for name, manifest in made.data.manifests.items()}
    return {
        "model": made.target["weights_sha256"],
        "sets": [digests[Path(folder).name] for folder in config.sets],
        "held_out": {name: digests[name] for name in config.held_out},
        "out_of_domain": {name: digests[name] for name in config.out_of_domain},
        "init": None if checkpoint is None else checkpoint.version,
    }


def _drafter_config(
    config: TrainConfig,
    found: AnyTarget,
    model: OtherModel | None,
    checkpoint: DFlashCheckpoint | None,
    seen: list[int],
) -> dict[str, object]:
    if checkpoint is not None:
        return reshaped(config, checkpoint)
    mask = config.mask_token
    if mask is None:
        if model is not None:
            embedding = model.embedding
        else:
            assert found.loaded is not None, "else transformers computes it"
            embedding = found.loaded.weights[EMBEDDING]
        mask = mask_token(found.tokenizer, embedding, found.eos_ids, seen)
    return drafter_json(config, found.shape, mask)


def _head_ids(
    config: TrainConfig,
    shape: DFlashConfig,
    counts: torch.Tensor,
    checkpoint: DFlashCheckpoint | None,
) -> torch.Tensor:
    """Return the rows of the head that are trained over, and served: rows of the drafter that the
    run goes on from stay."""
    if config.head_tokens == 0 or (checkpoint is not None and checkpoint.head_ids is None):
        return torch.arange(len(counts))
    ids = frequent_tokens(counts, config.head_tokens)
    if checkpoint is not None and checkpoint.head_ids is not None:
        ids = torch.tensor(sorted({*ids.tolist(), *checkpoint.head_ids.tolist()}))
    least = 1 if shape.second is None else shape.second.selector_top_k
    if len(ids) < least:
        expected = f"at least {least}, the selector's candidates"
        raise InvalidRequest("head_tokens", len(ids), expected)
    return ids


def _check_room(trainer: Trainer) -> None:
    """Raise InvalidRequest (field `out`) where the disk cannot hold what the run will save."""
    weights = sum(p.nbytes for p in trainer.form.drafter.parameters())
    # Weights, their average and at most two numbers of the optimizer each, in the state, in the one
    # that replaces it and in the one before the decay; and drafters in bfloat16.
    needed = 3 * 4 * weights + 3 * weights // 2
    free = shutil.disk_usage(trainer.config.folder).free
    if free < needed:
        expected = f"a folder on a disk with {needed >> 20} MiB free; it has {free >> 20} MiB"
        raise InvalidRequest("out", trainer.config.out, expected)


def describe(trainer: Trainer, resumed: bool) -> str:
    """Return one line about the run that begins."""
    config, shape = trainer.config, trainer.form.config
    weights = sum(p.numel() for p in trainer.form.drafter.parameters()) / 1e6
    texts = trainer.data.train
    answer_tokens = sum(int(text.said.sum()) for text in texts)
    start = f"going on at step {trainer.step} of" if resumed else "training"
    return (
        f"{start} {trainer.schedule.ends}: {shape.generation}, {shape.layers.num_layers} layers, "
        f"block {shape.block_size}, {weights:.1f} M weights, head of "
        f"{len(trainer.form.head.weight)} tokens; {len(texts)} texts with {answer_tokens} "
        f"tokens said, {config.texts} texts x {config.anchors} blocks a step{_slow_numbers(config)}"
    )


def _slow_numbers(config: TrainConfig) -> str:
    if computed_in(config) is DTYPES[config.dtype]:
        return ""
    speeds = product_speeds()
    times = speeds.float32 / speeds.bfloat16
    return f"; computed in float32, which this CPU multiplies {times:.1f} times as fast as bfloat16"

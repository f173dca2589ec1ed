"""Build the target of a run, which our engine, transformers, vLLM or SGLang computes, and the
folder that keeps its features on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.models.any_target import AnyTarget
from paceline.models.dflash.config import DFlashConfig
from paceline.models.loader import identity
from paceline.models.networks import DTYPES, build_network
from paceline.training.config import GIB, TargetEngine, TrainConfig
from paceline.training.feature_folder import FeatureFolder, FeatureSource
from paceline.training.packs import Text
from paceline.training.sglang_target import SGLangModel
from paceline.training.target import LocalTarget, TrainingTarget
from paceline.training.transformers_target import (
    ShardedTarget,
    TransformersModel,
    TransformersTarget,
)
from paceline.training.vllm_target import VLLMModel
from paceline.training.waiting import Waiting
from paceline.training.workers import Workers
from paceline.training.written_target import ShownTarget, WrittenModel, WrittenTarget

log = logging.getLogger(__name__)
# A target that another engine than ours computes, or another process.
OtherModel = TransformersModel | VLLMModel | SGLangModel | WrittenModel


def check_engine(config: TrainConfig, found: AnyTarget) -> None:
    """Raise InvalidRequest for settings that only a target of our own engine can have."""
    if found.loaded is not None:
        return
    others = f"transformers, vllm or sglang, since {found.refusal}"
    for name, own, expected in (
        ("target_engine", "paceline", others),
        ("quantize", "int8", "none"),
    ):
        if getattr(config, name) == own:
            raise InvalidRequest(name, own, expected)


def other_model(
    config: TrainConfig, found: AnyTarget, workers: Workers, show: Callable[[str], None] | None
) -> OtherModel | None:
    """Return the target for another engine or process, where that computes it; `show` is told
    which, and why. transformers loads it at once, vLLM and SGLang are asked with the first text."""
    if config.features_wait and config.quantize is None:  # int8 heads are made by our engine
        engine = _engine(config, found)
        if show is not None:
            show(f"the features of {found.name} are those that others write, with {engine}")
        return WrittenModel(found, DTYPES[config.dtype], workers.device, engine)
    longest, alone = min(config.max_tokens, found.max_context), workers.count == 1
    if config.target_engine == "sglang":
        if show is not None:
            show(f"SGLang computes {found.name}; it is asked when the first text is needed")
        return SGLangModel(found, config.dtype, config.target_url, longest, show)
    if config.with_vllm:
        if show is not None:
            show(f"vLLM computes {found.name}; it starts when the first text is needed")
        return VLLMModel(
            found,
            config.dtype,
            config.target_python,
            longest,
            alone,
            config.target_devices or 1,
            config.target_options,
        )
    if _engine(config, found) == "paceline":
        return None
    if show is not None:
        why = "" if found.refusal is None else f", since this engine does not: {found.refusal}"
        show(f"transformers computes {found.name}{why}")
    spread = workers if config.shard_target else None
    return TransformersModel(found, DTYPES[config.dtype], workers.device, spread)


def _engine(config: TrainConfig, found: AnyTarget) -> TargetEngine:
    """Return the name of what computes the target."""
    if config.target_engine is not None:
        return config.target_engine
    return "transformers" if found.loaded is None or config.shard_target else "paceline"


def soft_tokens(config: TrainConfig, texts: Sequence[Text]) -> int:
    """Return how many of the target's likely tokens a run over `texts` keeps at each place; 0 where
    it needs no distribution. Raises InvalidRequest where vLLM or SGLang would have to show it, and
    where the settings name a number that changes nothing."""
    judged = config.on_policy and any(text.temperature > 0 for text in texts)
    if judged and config.features_alone:
        expected = (
            "paceline or transformers: on_policy asks for the distribution along sampled text"
        )
        raise InvalidRequest("target_engine", config.target_engine, expected)
    if config.soft or judged:
        return int(config.value("soft_tokens"))
    if config.soft_tokens is not None:
        expected = "none of it: on_policy judges the texts of these sets by their own tokens alone"
        raise InvalidRequest("soft_tokens", config.soft_tokens, expected)
    return 0


def build_target(
    config: TrainConfig, found: AnyTarget, model: OtherModel | None, shape: DFlashConfig, soft: int
) -> TrainingTarget:
    """Return what reads the texts for a drafter of this shape, with `soft` likely tokens; our
    engine does without `model`."""
    target = _reader(config, found, model, shape, soft)
    target.window = shape.window
    # A folder is there for other runs, too.
    target.along_all = config.soft or config.features_folder is not None
    return target


def _reader(
    config: TrainConfig, found: AnyTarget, model: OtherModel | None, shape: DFlashConfig, soft: int
) -> TrainingTarget:
    layers = shape.target_layer_ids
    budget, on_cuda = int(config.value("features_gb") * GIB), config.device == "cuda"
    if isinstance(model, VLLMModel | SGLangModel):
        return ShownTarget(model, found, layers, budget)
    if isinstance(model, WrittenModel):
        return WrittenTarget(model, found, layers, budget, soft)
    if model is not None:
        if config.shard_target:
            return ShardedTarget(model, found, layers, soft)
        return TransformersTarget(model, found, layers, budget, soft)
    assert found.loaded is not None, "else transformers computes it"
    network, _ = build_network(
        found.loaded, dtype=config.dtype, device=config.device, quantize=config.quantize
    )
    return LocalTarget(network, found.shape, layers, budget, soft, on_cuda)


def feature_folder(
    config: TrainConfig,
    found: AnyTarget,
    shape: DFlashConfig,
    soft: int,
    workers: Workers,
    show: Callable[[str], None] | None,
) -> FeatureFolder | None:
    """Open the folder of features that the settings name; `show` is told what the run waits for
    there. Raises InvalidRequest for one that is of something else."""
    if config.features_folder is None:
        return None
    source = FeatureSource(
        weights_sha256=identity(found)["weights_sha256"],
        engine=_engine(config, found),
        options=config.target_options,
        numbers=config.dtype,
        quantize=config.quantize,
        layers=list(shape.target_layer_ids),
        soft_tokens=soft,
    )
    most = int(config.value("features_folder_gb") * GIB)
    path, pinned = Path(config.features_folder), config.device == "cuda"
    waiting = None
    if config.features_wait:
        # A process that shows nothing may be the only one that waits.
        waiting = Waiting(path, config.value("features_wait_minutes"), show or log.warning)
    width = len(source.layers) * found.shape.hidden_size
    passing = config.features_passing
    return FeatureFolder(path, source, most, workers.count, pinned, waiting, width, passing)

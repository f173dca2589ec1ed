"""The quality that quantising costs a model, measured on real text against the unquantised one.

It is measured when somebody asks, because that takes longer than a start; starts show what is
known.

Perplexity is exp of the mean negative log-likelihood of each token, given up to 511 before it;
greedy agreement is the share of positions with the same argmax. The text is our own and shipped, so
that no network is needed and no model has learnt it.
"""

from __future__ import annotations

import gc
import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import torch

from paceline.core import InvalidRequest, ModelError
from paceline.engine.config import EngineConfig
from paceline.engine.kept import Kept
from paceline.engine.machine import free_memory, use_threads
from paceline.engine.needs import size_text
from paceline.engine.runner import even_batch
from paceline.models.batch import BLOCK_SIZE, Network
from paceline.models.loader import LoadedModel, load_model
from paceline.models.networks import build_network, check_device
from paceline.models.quantized import VERSION, recipe_of
from paceline.models.tokenizer import Tokenizer
from paceline.models.weights import SafetensorWeights, stored_bytes

WINDOW, MOST_WINDOWS = 512, 4  # tokens; of each passage
CHUNK = 64  # rows of a forward: every row's logits are wanted, and a vocabulary is wide


@dataclass(frozen=True, slots=True)
class Quality:
    """Perplexities of the quantised model and of `reference`, the unquantised one."""

    tokens: int
    perplexity: float
    reference: float
    agreement: float

    @property
    def change(self) -> float:
        """The increase of perplexity, as a share."""
        return self.perplexity / self.reference - 1

    def describe(self, dtype: str) -> str:
        short = {"bfloat16": "bf16", "float32": "fp32"}[dtype]
        return (
            f"perplexity {self.perplexity:.2f} ({short} {self.reference:.2f}, "
            f"{100 * self.change:+.1f} %), greedy agreement {100 * self.agreement:.1f} %"
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """A network's results over the text, by predicted token: the negative log-likelihood, and the
    most likely token."""

    losses: torch.Tensor  # float64 [tokens]
    argmax: torch.Tensor  # int64 [tokens]

    def against(self, reference: Reading) -> Quality:
        return Quality(
            tokens=len(self.losses),
            perplexity=math.exp(self.losses.mean()),
            reference=math.exp(reference.losses.mean()),
            agreement=float((self.argmax == reference.argmax).double().mean()),
        )


def passages() -> list[str]:
    """The shipped text: prose, and code."""
    folder = resources.files("paceline.engine") / "quality_text"
    return [(folder / name).read_text("utf-8") for name in ("prose.txt", "code.txt")]


def windows(
    tokenizer: Tokenizer, texts: Sequence[str], longest: int = WINDOW, most: int = MOST_WINDOWS
) -> list[list[int]]:
    """Token ids of the texts, of each in up to `most` windows of at most `longest`."""
    found = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        starts = range(0, min(len(ids), most * longest), longest)
        found += [ids[start : start + longest] for start in starts]
    return [window for window in found if len(window) > 1]


@torch.inference_mode()
def read(network: Network, texts: Sequence[Sequence[int]]) -> Reading:
    """Runs the network over each window. Its KV is allocated for that, in place of any before."""
    network.allocate_kv(-(-max(map(len, texts)) // BLOCK_SIZE))
    losses, argmax = [], []
    for ids in texts:
        for start in range(0, len(ids) - 1, CHUNK):
            end = min(start + CHUNK, len(ids) - 1)
            output = network.forward(even_batch(ids[start:end], start=start))
            targets = torch.tensor(ids[start + 1 : end + 1], device=output.logits.device)
            chosen = output.logits.gather(1, targets[:, None])[:, 0]
            losses.append((output.logits.logsumexp(-1) - chosen).double().cpu())
            argmax.append(output.argmax.cpu().clone())
    return Reading(torch.cat(losses), torch.cat(argmax))


def examine(config: EngineConfig, texts: Sequence[str] | None = None) -> Quality:
    """Measure anew, on `texts`, all of them; by default on the shipped ones, and later starts know
    the result. The two networks are in memory one after the other.

    Raises ModelError when the model cannot be loaded or is too large for this machine unquantised,
    and InvalidRequest for text of no two tokens.
    """
    check_device(config.device)
    use_threads(config.threads)
    loaded = load_model(config.model)
    _check_fits(config, loaded)
    given, most = (passages(), MOST_WINDOWS) if texts is None else (texts, sys.maxsize)
    ids = windows(loaded.tokenizer, given, _longest(loaded), most)
    if not ids:
        raise InvalidRequest("text", given[0][:20], "at least two tokens")
    readings = []
    for quantize in (config.quantize, None):
        network, _ = build_network(
            loaded,
            dtype=config.dtype,
            device=config.device,
            backend=config.backend,
            quantize=quantize,
            max_positions=WINDOW,
        )
        readings.append(read(network, ids))
        del network
        gc.collect()
    ours, reference = readings
    quality = ours.against(reference)
    kept = _kept(config, loaded) if texts is None else None
    return kept.write(quality) if kept else quality


def known_quality(config: EngineConfig, loaded: LoadedModel) -> Quality | None:
    """What examine() has found on the shipped text. None where it was never asked."""
    kept = _kept(config, loaded)
    return kept.read() if kept else None


def _check_fits(config: EngineConfig, loaded: LoadedModel) -> None:
    needed, free = stored_bytes(loaded.weights), free_memory(config.device)
    if needed >= free:
        raise ModelError(
            f"{loaded.name}: its quality cannot be measured here: unquantised it needs "
            f"{size_text(needed)}, and {size_text(free)} are free"
        )


def _longest(loaded: LoadedModel) -> int:
    return min(WINDOW, loaded.max_context)


def _kept(config: EngineConfig, loaded: LoadedModel) -> Kept[Quality] | None:
    """The place of the measurement of this model, recipe and text; None for weights that lie in no
    file: nothing cheap would say that they are the same."""
    if not isinstance(loaded.weights, SafetensorWeights):
        return None
    recipe = recipe_of(config.quantize, config.device, config.dtype)
    text = hashlib.sha256("".join(passages()).encode()).hexdigest()
    key: dict[str, object] = {
        "version": VERSION,
        "recipe": [recipe.number, *sorted(recipe.linears)],
        "dtype": config.dtype,
        "backend": config.backend,
        "model": repr(loaded.config),
        "weights": loaded.weights.identity(),
        "text": [text, _longest(loaded), MOST_WINDOWS],
    }
    return Kept("quality", key, Quality)

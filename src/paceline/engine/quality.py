"""The quality that quantising costs a model, measured on real text against the unquantised one.

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

from paceline.core import InvalidRequest
from paceline.engine.config import EngineConfig
from paceline.engine.kept import Kept
from paceline.engine.machine import available_memory, use_threads
from paceline.engine.runner import even_batch
from paceline.models.batch import BLOCK_SIZE, Network
from paceline.models.loader import LoadedModel, load_model
from paceline.models.networks import build_network
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
    """Measures anew, on `texts` (default: the shipped ones), all of them.

    Raises ModelError when the model cannot be loaded, and InvalidRequest for text of no two tokens.
    """
    use_threads(config.threads)
    loaded = load_model(config.model)
    own = None
    if texts is not None:
        own = windows(loaded.tokenizer, texts, _longest(config, loaded), most=sys.maxsize)
        if not own:
            raise InvalidRequest("text", texts[0][:20], "at least two tokens")
    return measure(config, loaded, _build(config, loaded, config.quantize), own)


def measure(
    config: EngineConfig,
    loaded: LoadedModel,
    network: Network,
    texts: Sequence[Sequence[int]] | None = None,
) -> Quality:
    """The quality of `network`, quantised as `config` says, on `texts` (default: the shipped ones)
    as token ids. Loads the unquantised network beside it."""
    if texts is None:
        texts = windows(loaded.tokenizer, passages(), _longest(config, loaded))
    ours = read(network, texts)
    reference = _build(config, loaded, None)
    quality = ours.against(read(reference, texts))
    del reference
    gc.collect()  # before anybody plans with the memory that is free
    return quality


def _longest(config: EngineConfig, loaded: LoadedModel) -> int:
    return min(WINDOW, loaded.max_context, config.max_model_len or WINDOW)


def _build(config: EngineConfig, loaded: LoadedModel, quantize: str | None) -> Network:
    network, _ = build_network(
        loaded,
        dtype=config.dtype,
        device=config.device,
        backend=config.backend,
        quantize=quantize,
        max_positions=WINDOW,
    )
    return network


def quality_of(config: EngineConfig, loaded: LoadedModel, network: Network) -> Quality | None:
    """The same, remembered for the next start. None where the unquantised weights do not fit."""
    kept = _kept(config, loaded)
    quality = kept.read() if kept else None
    if quality is not None:
        return quality
    free = available_memory()
    if network.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(network.device)
    if stored_bytes(loaded.weights) >= free:
        return None
    quality = measure(config, loaded, network)
    return kept.write(quality) if kept else quality


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
        "text": [text, _longest(config, loaded), MOST_WINDOWS],
    }
    return Kept("quality", key, Quality)

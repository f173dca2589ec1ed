"""The student: a causal model as transformers loads it, of which LoRA's matrices or all weights
learn, and which is written as a folder that serves."""

from __future__ import annotations

import importlib
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import nn

from paceline.core import InvalidRequest
from paceline.core.checksums import MANIFEST
from paceline.core.packages import MissingPackage
from paceline.distil.packs import TextPack
from paceline.models.any_target import AnyTarget
from paceline.training.causal_model import load_causal_model

ADAPTER = "default"
ALPHA = 2  # LoRA's alpha as a multiple of its rank
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf", ".safetensors.index.json")


def peft_module() -> Any:
    """Import PEFT, when adapters are needed. Raises MissingPackage."""
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise MissingPackage("LoRA needs", "peft") from error


class Student:
    """A model that learns. `rank` is that of LoRA's matrices beside every linear layer (Hu et al.
    2021, arXiv 2106.09685), which begin without an effect; the head has none. 0 lets all weights
    learn.

    The constructor raises ModelError for what transformers cannot load, and MissingPackage.
    """

    def __init__(
        self, found: AnyTarget, rank: int, dtype: torch.dtype, device: str, seed: int = 0
    ) -> None:
        self._path, self.device = found.path, device
        module = load_causal_model(found, dtype, device)
        if rank:
            torch.manual_seed(seed)
            module = _with_adapters(module, rank)
        else:
            module.requires_grad_(True)
        self.module: Any = module

    def learning(self) -> dict[str, nn.Parameter]:
        """Return what learns, by its name."""
        return {
            name: weight for name, weight in self.module.named_parameters() if weight.requires_grad
        }

    def logits(self, pack: TextPack) -> torch.Tensor:
        """Return the logits at the pack's rows, [m, vocabulary]."""
        return pack_logits(self.module, pack, self.device)

    def save(self, folder: Path) -> None:
        """Write the student with what it has learnt into `folder`, as a model's folder that serves:
        weights in bfloat16, and all else as the model's own folder has it.
        Raises OSError for a full disk."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._path.iterdir()):
            if path.is_file() and not path.name.endswith(WEIGHTS) and path.name != MANIFEST:
                shutil.copyfile(path, folder / path.name)
        save_torch_state_dict(dict(self._merged()), folder)

    @torch.no_grad()
    def _merged(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the model's weights by the names that transformers gives them, with the products of
        LoRA's matrices added."""
        base = self.module.get_base_model() if hasattr(self.module, "peft_config") else self.module
        layers = dict(base.named_modules())
        written = set()
        for name, weight in base.state_dict(keep_vars=True).items():
            if ".lora_" in name or id(weight) in written:  # a head may be the embedding again
                continue
            written.add(id(weight))
            owner, _, kind = name.rpartition(".")
            plain = f"{owner.removesuffix('.base_layer')}.{kind}" if owner else name
            layer = layers.get(owner.removesuffix(".base_layer"))
            value = weight.detach()
            if owner.endswith(".base_layer") and kind == "weight" and layer is not None:
                value = (value.float() + layer.get_delta_weight(ADAPTER).float()).to(value.dtype)
            yield plain, value.to(torch.bfloat16).cpu()


def _with_adapters(module: Any, rank: int) -> Any:
    peft = peft_module()
    linear = peft.LoraConfig(
        r=rank, lora_alpha=ALPHA * rank, target_modules="all-linear", bias="none"
    )
    with warnings.catch_warnings():  # PEFT asks transformers by an older name
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(module, linear)


def pack_logits(module: Any, pack: TextPack, device: str) -> torch.Tensor:
    """Compute a pack with a causal model of transformers: the logits at its rows, [m,
    vocabulary]."""
    rows = pack.rows.to(device)
    output = module(
        input_ids=pack.ids[None].to(device),
        position_ids=pack.positions[None].to(device),
        attention_mask=pack.sees[None, None].to(device),
        logits_to_keep=rows,
        use_cache=False,
    )
    logits: torch.Tensor = output.logits[0]
    return logits


def check_attention(found: AnyTarget, field: str) -> None:
    """Raise InvalidRequest for a model that our engine does not serve: a pack is right where every
    layer attends to all that came before, which is known of the families that it does serve."""
    if found.loaded is None:
        raise InvalidRequest(
            field, found.name, f"a model that this engine serves ({found.refusal})"
        )

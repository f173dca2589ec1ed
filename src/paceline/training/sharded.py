"""A target that fits no single device: its layers lie spread over all processes (FSDP2).

Each layer is gathered for the moment it computes (`torch.distributed.fsdp.fully_shard`), so every
process must read a text whenever one does. Nothing is kept therefore, and no process takes more
texts than another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.loader import LoadedModel, read_json
from paceline.training.anchors import Text
from paceline.training.target import Seen, TrainingTarget, likely_tokens
from paceline.training.workers import Workers


class ShardedTarget(TrainingTarget):
    """A target that transformers computes, in layers spread over all processes."""

    together = True

    def __init__(
        self,
        loaded: LoadedModel,
        layers: Sequence[int],
        workers: Workers,
        dtype: torch.dtype,
        soft_tokens: int = 0,
    ) -> None:
        super().__init__(loaded.config, layers, 0, soft_tokens)
        self._device = workers.device
        model = _load(loaded, dtype)
        self.embedding = model.get_input_embeddings().weight.detach().clone()
        self.head = model.get_output_embeddings().weight.detach().clone()
        kind = torch.device(workers.device).type
        mesh = init_device_mesh(kind, (workers.count,))
        decoder = model.model.layers
        for layer in decoder:
            fully_shard(layer, mesh=mesh)
        self._model = fully_shard(model, mesh=mesh)
        self._taps: dict[int, torch.Tensor] = {}
        for index in set(layers):
            decoder[index].register_forward_hook(self._keep(index))

    def _keep(self, index: int) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            self._taps[index] = output[0] if isinstance(output, tuple) else output

        return hook

    @torch.no_grad()
    def _compute(self, text: Text) -> Seen:
        ids = text.ids[None].to(self._device)
        kept = 0 if self._soft else 1  # of the logits; 0 means all
        logits = self._model(ids, use_cache=False, logits_to_keep=kept).logits[0]
        rows = [self._taps[layer].view(len(text), -1) for layer in self._layers]
        features = torch.cat(rows, dim=-1).cpu()
        if not self._soft:
            return Seen(features)
        return Seen(features, *likely_tokens(logits, self._soft))


def _load(loaded: LoadedModel, dtype: torch.dtype) -> Any:
    import transformers

    names = ConfigFields(read_json(loaded.path / "config.json")).words("architectures")
    architecture = names[0] if names else "none named"
    kind = getattr(transformers, architecture, None)
    if kind is None:
        raise ModelError(f"{loaded.name}: transformers knows no architecture {architecture}")
    try:
        model = kind.from_pretrained(loaded.path, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"{loaded.name}: transformers cannot load it ({error})") from error
    return model.eval().requires_grad_(False)

"""The drafter, loss and optimisers of `speculators`, one step at a time on batches from files.

Its own Trainer needs an accelerator, so the loop around a step is ours: forward, backward, clip,
step, as `speculators.train.trainer` has it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Speculators:
    """`draft` is the drafter's config.json, `batches` a folder of `peer_batches` in
    `training_peers.py`, `anchors` the blocks of a step, `dtype` what is computed in, and
    `optimizer` muon or adamw."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch
        from safetensors.torch import load_file
        from speculators.models.dflash.core import DFlashDraftModel
        from speculators.train.optimizers import build_optimizers
        from speculators.train.trainer import TrainerConfig
        from transformers.models.qwen3 import Qwen3Config

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.manual_seed(0)
        draft = options["draft"]
        self._model = DFlashDraftModel.from_training_args(
            Qwen3Config(**{key: value for key, value in draft.items() if key != "dflash_config"}),
            draft_vocab_size=draft["vocab_size"],
            block_size=draft["block_size"],
            mask_token_id=draft["dflash_config"]["mask_token_id"],
            target_layer_ids=draft["dflash_config"]["target_layer_ids"],
            verifier_name_or_path=model,
            draft_attn_impl="sdpa",
        ).float()
        self._model.train()
        self._call, _ = self._model.get_trainer_kwargs(
            loss_fn="ce", loss_implementation="eager", max_anchors=options["anchors"],
            per_position_loss_weight="dpace",
        )  # fmt: skip
        config = TrainerConfig(lr=6e-4, num_epochs=1, save_path="", optimizer=options["optimizer"])
        self._optimizers = build_optimizers(self._model, config)
        self._dtype = getattr(torch, options["dtype"])
        files = sorted(Path(options["batches"]).glob("*.safetensors"))
        self._batches, self._next = [load_file(path) for path in files], 0

    def parameters(self) -> dict[str, int]:
        return {"trained": sum(p.numel() for p in self._model.parameters() if p.requires_grad)}

    def train(self, steps: int) -> dict[str, float]:
        """Take steps; return how many slots were learnt, and the last loss."""
        import torch

        slots, loss = 0.0, 0.0
        for _ in range(steps):
            batch = self._batches[self._next % len(self._batches)]
            self._next += 1
            is_half = self._dtype is not torch.float32
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
                _, outcome, numbers = self._model(**batch, **self._call)
            for optimizer in self._optimizers:
                optimizer.zero_grad()
            outcome.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            for optimizer in self._optimizers:
                optimizer.step()
            slots += float(numbers["full_acc_total"])
            loss = float(outcome.detach())
        return {"slots": slots, "loss": loss}

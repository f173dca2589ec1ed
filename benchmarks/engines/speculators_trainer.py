"""The drafter, loss and optimisers of `speculators`, one step at a time on batches from files.

Its own Trainer needs an accelerator, so the loop around a step is ours: forward, backward, clip,
step, as `speculators.train.trainer` has it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CLIP = 1.0


class Speculators:
    """`draft` is the drafter's config.json, `batches` a folder of `peer_batches` in
    `training_peers.py`, `anchors` the blocks of a step, `dtype` what is computed in, `optimizer`
    settings of its TrainerConfig, and `betas` those of AdamW."""

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
        config = TrainerConfig(num_epochs=1, save_path="", **options["optimizer"])
        self._optimizers = build_optimizers(self._model, config)
        self._groups = [group for part in self._optimizers for group in part.param_groups]
        for group in self._groups:
            if "betas" in group:
                group["betas"] = tuple(options["betas"])
        self._peaks = [group["lr"] for group in self._groups]
        self._dtype = getattr(torch, options["dtype"])
        files = sorted(Path(options["batches"]).glob("*.safetensors"))
        self._batches, self._next = [load_file(path) for path in files], 0

    def parameters(self) -> dict[str, int]:
        return {"trained": sum(p.numel() for p in self._trained().values())}

    def begin(self, weights: str) -> dict[str, int]:
        """Take the weights of a file, which must be those that are trained, by their names."""
        from safetensors.torch import load_file

        given, own = load_file(weights), self._trained()
        assert given.keys() == own.keys(), given.keys() ^ own.keys()
        self._model.load_state_dict(given, strict=False)
        assert all(bool((own[name] == given[name]).all()) for name in own)
        return {"tensors": len(own)}

    def end(self, weights: str) -> dict[str, int]:
        """Write the weights to a file."""
        from safetensors.torch import save_file

        save_file({name: part.detach() for name, part in self._trained().items()}, weights)
        return {}

    def train(self, steps: int) -> dict[str, float]:
        """Take steps; return how many slots were learnt, and the last loss."""
        slots, loss = 0.0, 0.0
        for _ in range(steps):
            batch = self._batches[self._next % len(self._batches)]
            self._next += 1
            outcome, numbers = self._forward(batch, self._call)
            self._learn(outcome)
            slots += float(numbers["full_acc_total"])
            loss = float(outcome.detach())
        return {"slots": slots, "loss": loss}

    def learn(self, shares: list[float]) -> dict[str, list[dict[str, float]]]:
        """Take a step on each batch, with these shares of the peak learning rates, on the blocks
        and slots that the batch names. Return of each step the loss, summed and divided by blocks,
        the cross entropy of a slot, how many slots there were, and how many of them had another
        label than the batch says."""
        from speculators.losses.eager import ce_loss
        from speculators.models.dflash import core

        steps = []
        for batch, share in zip(self._batches, shares, strict=True):
            batch = dict(batch)
            anchors, labels = batch.pop("anchors"), batch.pop("labels")
            counts = batch.pop("counts").bool()
            seen: dict[str, Any] = {}

            def noted(logits: Any, targets: Any, seen: dict[str, Any] = seen) -> Any:
                seen |= {"logits": logits.detach().float(), "targets": targets}
                return ce_loss(logits, targets)

            def chosen(*_: Any, anchors: Any = anchors) -> Any:
                return anchors, anchors >= 0

            core.select_anchors = chosen
            call = {"max_anchors": len(anchors), "loss_config": {"ce": (noted, 1.0)}}
            loss, numbers = self._forward(batch, self._call | call)
            plain, own = ce_loss(**seen), seen["targets"].argmax(-1)
            plain, own = (part.view(len(anchors), -1)[:, 1:][counts] for part in (plain, own))
            # Its loss is a mean over slots, ours one over blocks: clipping must see the same.
            loss = loss * numbers["full_acc_total"] / len(anchors)
            for group, peak in zip(self._groups, self._peaks, strict=True):
                group["lr"] = peak * share
            self._learn(loss)
            steps.append({
                "objective": float(loss.detach()),
                "loss": float(plain.double().mean()),
                "slots": int(numbers["full_acc_total"]),
                "other_labels": int((own != labels[counts]).sum()),
            })  # fmt: skip
        return {"steps": steps}

    def _trained(self) -> dict[str, Any]:
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}

    def _forward(self, batch: Mapping[str, Any], call: Mapping[str, Any]) -> tuple[Any, Any]:
        import torch

        is_half = self._dtype is not torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            _, loss, numbers = self._model(**batch, **call)
        return loss, numbers

    def _learn(self, loss: Any) -> None:
        import torch

        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        for optimizer in self._optimizers:
            optimizer.step()

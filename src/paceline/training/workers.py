"""One process or several: what each takes of a step, and how sums come together.

Several are started by `torchrun`; gradients are averaged by torch's DistributedDataParallel.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.core import InvalidRequest

T = TypeVar("T")


class Workers:
    """This process among `count`. One alone needs no process group."""

    def __init__(self, device: str) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = device
        if device == "cuda":
            self.device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
            torch.cuda.set_device(self.device)
        if self.count > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device == "cuda" else "gloo")

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def check(self, texts: int, micro: int, shard_target: bool) -> None:
        """Raises InvalidRequest where a step's texts cannot be shared out evenly, and where there
        is nobody to spread a target over."""
        if shard_target and self.count == 1:
            raise InvalidRequest("shard_target", True, "several processes, started by torchrun")
        if texts % (self.count * micro):
            expected = f"a multiple of {self.count} processes times micro ({micro})"
            raise InvalidRequest("texts", texts, expected)

    def mine(self, items: Sequence[T]) -> list[T]:
        return list(items[self.rank :: self.count])

    def wrap(self, form: nn.Module) -> nn.Module:
        """The form whose backward averages gradients over all processes."""
        return form if self.count == 1 else DistributedDataParallel(form)

    def together(self, form: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Around one backward: gradients travel only after a step's last."""
        if isinstance(form, DistributedDataParallel) and not last:
            return form.no_sync()
        return nullcontext()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in each of them."""
        if self.count > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
            values = values.cpu()
        return values

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()

    def close(self) -> None:
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()

"""The processes of a run: the share of each in a step, sums over all, and the memory of one.

Several are started by `torchrun`; gradients are averaged by torch's DistributedDataParallel.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.core import InvalidRequest

T = TypeVar("T")
PATIENCE = timedelta(days=7)
# Parameters of mallopt(), from glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


class Workers:
    """This process among `count` processes. One process needs no process group. With `patient` a
    process may let the others wait for hours, where torch would end them after some minutes."""

    def __init__(self, device: str, patient: bool = False) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = device
        if device == "cuda":
            self.device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
            torch.cuda.set_device(self.device)
        if self.count > 1 and not dist.is_initialized():
            longest = PATIENCE if patient else None
            dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=longest)

    @property
    def first(self) -> bool:
        """True in the process that writes files and prints."""
        return self.rank == 0

    def check(self, texts: int, micro: int, shard_target: bool) -> None:
        """Raise InvalidRequest where the texts of a step cannot be shared out evenly, in groups of
        `micro` where a share is larger, and where one process is to spread a target."""
        if shard_target and self.count == 1:
            raise InvalidRequest("shard_target", True, "several processes, started by torchrun")
        share, rest = divmod(texts, self.count)
        if rest or share % min(micro, share):
            shares = f"shares of at most micro ({micro}), or of multiples of it"
            expected = f"a multiple of {self.count} processes: {shares}"
            raise InvalidRequest("texts", texts, expected)

    def mine(self, items: Sequence[T]) -> list[T]:
        """Return the share of this process."""
        return list(items[self.rank :: self.count])

    def wrap(self, form: nn.Module) -> nn.Module:
        """Return the form whose backward pass averages gradients over all processes."""
        return form if self.count == 1 else DistributedDataParallel(form)

    def together(self, form: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Return a context for one backward pass: only the last of a step sends gradients."""
        if isinstance(form, DistributedDataParallel) and not last:
            return form.no_sync()
        return nullcontext()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over all processes, in each of them."""
        if self.count > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
            values = values.cpu()
        return values

    def most(self, count: int) -> int:
        """Return the largest of the counts of all processes, in each of them."""
        if self.count == 1:
            return count
        counts = torch.tensor(count, device=self.device)
        dist.all_reduce(counts, dist.ReduceOp.MAX)
        return int(counts)

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()

    def close(self) -> None:
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


def keep_freed_memory() -> bool:
    """Make glibc keep freed large blocks for the life of this process; return whether it did.

    Otherwise every large tensor is mapped anew, and the kernel clears each of its pages: most of a
    training step's system time on a CPU. Other C libraries have no such switch.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, 64 << 20))
    return all([mallopt(name, value) == 1 for name, value in settings])

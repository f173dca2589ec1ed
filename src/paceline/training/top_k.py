"""The largest numbers of long rows, in two stages."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 64  # neighbouring numbers that are looked at through their largest one first


class Top(NamedTuple):
    """The largest numbers of each row, [..., k], the largest first, and their places, int64."""

    values: Tensor
    places: Tensor


def top_k(numbers: Tensor, count: int) -> Top:
    """Return the `count` largest of each row of `numbers` [..., n], as torch.topk does but for the
    order of equal ones.

    torch.topk on a CPU writes down and searches every number. The `count` largest all lie in the
    `count` groups with the largest maxima, so that only those are searched here.
    """
    *rows, length = numbers.shape
    whole = length // GROUP * GROUP
    if numbers.is_cuda or whole <= 2 * count * GROUP:
        return Top(*numbers.topk(count, dim=-1))
    groups = numbers[..., :whole].view(*rows, -1, GROUP)  # no copy
    first = groups.amax(-1).topk(count, dim=-1).indices
    chosen = groups.gather(-2, first[..., None].expand(*first.shape, GROUP)).flatten(-2)
    places = (first[..., None] * GROUP + torch.arange(GROUP)).flatten(-2)
    rest = torch.arange(whole, length).expand(*rows, -1)
    chosen = torch.cat((chosen, numbers[..., whole:]), dim=-1)
    places = torch.cat((places, rest), dim=-1)
    values, index = chosen.topk(count, dim=-1)
    return Top(values, places.gather(-1, index))

"""Slow twins of what training computes, written as loops over single tokens."""

from __future__ import annotations

import math

import torch

from paceline.training.packs import Text

SIZE = 6  # tokens of a block


def text_of(ids: list[int], said: str, number: int = 0) -> Text:
    """`said` has an x for each token that the target said."""
    return Text(number, torch.tensor(ids), torch.tensor([mark == "x" for mark in said]))


def random_text(tokens: int, prompt: int, vocabulary: int, number: int = 0) -> Text:
    generator = torch.Generator().manual_seed(number + 17)
    ids = torch.randint(4, vocabulary - 10, (tokens,), generator=generator)
    return Text(number, ids, torch.arange(tokens) >= prompt)


def slow_labels(text: Text, anchor: int, size: int) -> list[int | None]:
    """What each slot should say, None from the end of what the target said in one go."""
    labels: list[int | None] = []
    for place in range(anchor + 1, anchor + size):
        ended = place >= len(text) or not bool(text.said[place]) or None in labels
        labels.append(None if ended else int(text.ids[place]))
    return labels


def slow_weights(kind: str, losses: list[float | None], known: list[bool]) -> list[float]:
    """Position weights of one block, from its slots' cross entropies (None: there is no slot)."""
    size = len(losses) + 1
    gamma = {16: 7.0, 10: 5.0, 8: 4.0}.get(size, size / 2)
    weights = []
    for j, loss in enumerate(losses):
        if loss is None:
            weights.append(0.0)
        elif kind == "uniform":
            weights.append(1.0)
        elif kind == "exponential":
            weights.append(math.exp(-j / gamma))
        else:
            total = 0.0
            for m in range(j, len(losses)):
                if losses[m] is None:
                    break
                product = 1.0
                for k in range(m + 1):
                    own = losses[k]
                    assert own is not None
                    product *= 0.5 * (math.exp(-own) if known[k] else 0.0) + 0.5
                total += product
            weights.append(total)
    return weights


def slow_objective(name: str, p: list[float], q: list[float], label: int | None) -> float:
    """One objective at one slot, over a whole vocabulary; p may sum to less than one."""
    accepted = sum(min(a, b) for a, b in zip(p, q, strict=True))
    kl = -sum(a * math.log(b) for a, b in zip(p, q, strict=True) if a)
    if name == "ce":
        return 0.0 if label is None else -math.log(q[label])
    if name == "kl":
        return kl
    if name == "tv":
        return 1 - accepted
    if name == "nla":
        return -math.log(accepted)
    mixing = math.exp(-3 * accepted)
    return mixing * kl + (1 - mixing) * (1 - accepted)


def slow_expected(chances: list[float]) -> float:
    """The negative of the expected number of accepted tokens of a block whose slots are right with
    these chances."""
    return -sum(math.prod(chances[: slot + 1]) for slot in range(len(chances)))

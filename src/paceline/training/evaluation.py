"""The number of tokens that a drafter would have had accepted, on texts that the target wrote, and
how it changes over a run.

Every block is judged by the text itself, and blocks follow one another as in serving: the next one
starts where the one before was rejected. So this is what serving accepts where the text was greedy
and every round drafts a whole block; `paceline evaluate` asks the engine. Tokens that a grammar
forced are guessed and counted here as all others are, where serving commits them by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import fmean
from typing import Any

import torch

from paceline.training.forecast import Forecast, forecast
from paceline.training.packs import Pack, Pick, Text, make_pack, side_by_side, window_of
from paceline.training.seen import Seen


@dataclass(frozen=True, slots=True)
class Score:
    """The score of `blocks` rounds. `length` is the mean acceptance length incl. bonus, taken block
    by block: a product of averages would hide that easy blocks are easy all along. `positions[k]`
    is the share of rounds that would have accepted k + 1 tokens or more."""

    blocks: int
    length: float
    positions: tuple[float, ...]


def mean_length(scores: Mapping[str, Score]) -> float:
    """Return the mean acceptance length of several sets."""
    return fmean(score.length for score in scores.values())


class BlockTally:
    """Adds up blocks; tallies of several processes may be summed."""

    def __init__(self, slots: int) -> None:
        self.sums = torch.zeros(slots + 1, dtype=torch.float64)

    def add(self, right: torch.Tensor, pack: Pack) -> None:
        """Add packs of packs_of(), whose anchors of a text are neighbours; blocks that serving
        would start from count. right bool [blocks, slots] marks the drafted tokens that are the
        text's."""
        reached = right.cumprod(1).cpu()
        for first, last in pack.blocks:
            visited = walk(reached[first:last].sum(1))
            self.sums[0] += len(visited)
            self.sums[1:] += reached[first:last][visited].sum(0).double()

    def score(self) -> Score:
        blocks = int(self.sums[0])
        positions = tuple((self.sums[1:] / max(1, blocks)).tolist())
        return Score(blocks, 1 + sum(positions), positions)


def walk(accepted: torch.Tensor) -> list[int]:
    """Return the blocks that rounds would start with, out of blocks at neighbouring anchors of
    which `accepted` int [blocks] tokens would be accepted."""
    place, visited = 0, []
    while place < len(accepted):
        visited.append(place)
        place += int(accepted[place]) + 1
    return visited


def packs_of(
    texts: Sequence[Text],
    anchors: int,
    read: Callable[[Sequence[Text]], list[Seen]],
    size: int,
    mask: int,
    window: int | None,
    micro: int,
    micro_tokens: int | None,
    padded: bool,
) -> Iterator[Pack]:
    """Yield packs of neighbouring anchors, at most `anchors` of each text, whose blocks see at most
    `window` tokens of context. `micro` texts and `micro_tokens` tokens, if `padded` with padding,
    are the most of a pack."""
    picks = [Pick(text, window_of(text, anchors, size)) for text in texts]
    for group in side_by_side(picks, micro, micro_tokens, window, padded):
        yield make_pack(group, read([pick.text for pick in group]), size, mask, window)


@dataclass(slots=True)
class Progress:
    """The evaluations of a run. A run that starts from a drafter (`judged`) is compared with the
    score of that drafter before the first step: the sets that are watched, `out_of_domain` and the
    replay of the training sets, must not fall by more than the share `regression`, and a step must
    be better to be the best. Random weights are no standard.

    `best` is the step of the drafter that is kept, whose mean held-out acceptance length is the
    best of those without regression, and `best_length` is that length. In a run that was made
    longer that drafter may have seen the learning rate fall, which `history` then does not tell.
    """

    regression: float
    judged: bool
    history: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None
    best_length: float = 0.0

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Progress:
        """Return a progress as asdict() saved it, here or in an earlier release."""
        return cls(**{item.name: saved[item.name] for item in fields(cls)})

    def add(
        self,
        step: int,
        held: Mapping[str, Score],
        other: Mapping[str, Score],
        foreign: Mapping[str, Score] | None = None,
        slots: float = 0.0,
        averaged: bool = False,
    ) -> bool:
        """Add an evaluation after `slots` learnt slots; return whether it is the best so far. In an
        `averaged` one it was the average of the weights that was evaluated. Foreign prompts of the
        task are reported, and decide nothing."""
        kinds = (("held_out", held), ("out_of_domain", other), ("foreign", foreign or {}))
        scores = {
            kind: {name: asdict(score) for name, score in sets.items()} for kind, sets in kinds
        }
        self.history.append({"step": step, "slots": slots, "averaged": averaged, **scores})
        length = mean_length(held)
        if not self.judged and len(self.history) == 1:
            return False
        better = not self.regressions and (self.best is None or length > self.best_length)
        if better:
            self.best, self.best_length = step, length
        return better

    @property
    def waited(self) -> int:
        """The number of evaluations since the best one of `history`, whichever drafter is kept. A
        run that starts from random weights has to get better out of domain, too."""
        entries = self.history if self.judged else self.history[1:]
        lengths = [0.0 if self._fallen(entry) else _held_out(entry) for entry in entries]
        waited = _since_best(lengths)
        if self.judged or not all(entry["out_of_domain"] for entry in entries):
            return waited
        return max(waited, _since_best([_mean(entry, "out_of_domain") for entry in entries]))

    def forecast(self, slots: float) -> Forecast | None:
        """Forecast the mean held-out acceptance length after `slots` slots; None while that cannot
        be said, and for a run that goes on from a drafter, whose earlier slots are not counted."""
        if self.judged:
            return None
        points = [(entry["slots"], _held_out(entry)) for entry in self.history]
        return forecast(points, slots)

    @property
    def regressions(self) -> dict[str, float]:
        """The sets that are watched whose acceptance length fell by more than allowed since the
        start, and the share by which it fell."""
        return self._fallen(self.history[-1]) if self.history else {}

    @property
    def refused(self) -> dict[str, Any] | None:
        """The evaluation with the best held-out score of a run whose every better evaluation was
        a regression; None where none was better, or one is kept."""
        if self.best or not self.history:
            return None
        top = max(self.history, key=_held_out)
        return top if self._fallen(top) else None

    def _fallen(self, entry: Mapping[str, Any]) -> dict[str, float]:
        if not self.judged:
            return {}
        first, then = self.history[0]["out_of_domain"], entry["out_of_domain"]
        fallen = {name: 1 - then[name]["length"] / first[name]["length"] for name in first}
        return {name: share for name, share in fallen.items() if share > self.regression}

    def told_fall(self, entry: Mapping[str, Any]) -> str:
        """Say which sets fell by how much at an evaluation, and what was learnt by then."""
        fallen = self._fallen(entry).items()
        fell = " and ".join(f"{name} by {share:.1%}" for name, share in fallen)
        return (
            f"acceptance length fell on {fell}, more than the allowed {self.regression:.1%}, at "
            f"step {entry['step']} (held out: {_held_out(self.history[0]):.2f} before the first "
            f"step, {_held_out(entry):.2f} then)"
        )

    def allowing(self, entry: Mapping[str, Any]) -> float:
        """Return the least `regression`, in whole percents, that allows the falls of an
        evaluation."""
        return math.ceil(100 * max(self._fallen(entry).values())) / 100

    def numbers(self) -> dict[str, float]:
        """Return the last evaluation for the log: AL incl. bonus, the acceptance of the first slot,
        and the share of blocks whose draft is accepted up to each later one."""
        last, entries = self.history[-1], {}
        for kind in ("held_out", "foreign", "out_of_domain"):
            for name, score in last[kind].items():
                entries[f"{kind}/{name}/al"] = score["length"]
                entries[f"{kind}/{name}/first"] = score["positions"][0]
                for place, share in enumerate(score["positions"][1:], 2):
                    entries[f"{kind}/{name}/position_{place}"] = share
        for name, gap in production_gaps(last).items():
            entries[f"gap/{name}"] = gap
        for name, share in self.regressions.items():
            entries[f"regression/{name}"] = share
        return entries


def _since_best(lengths: Sequence[float]) -> int:
    """Return how many lengths come behind the largest, of equal ones behind the first."""
    return len(lengths) - 1 - lengths.index(max(lengths)) if lengths else 0


def _held_out(entry: Mapping[str, Any]) -> float:
    """Return the mean held-out acceptance length of an entry of a history."""
    return _mean(entry, "held_out")


def _mean(entry: Mapping[str, Any], kind: str) -> float:
    """Return the mean acceptance length of a kind of sets in an entry of a history."""
    return fmean(score["length"] for score in entry[kind].values())


def production_gaps(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the production gap of each set in an entry of a history: AL on its held-out prompts,
    or the mean of all sets' where it holds out none, minus AL on its foreign ones. Entries of older
    runs have none."""
    held, foreign = scores["held_out"], scores.get("foreign", {})
    return {
        name: (held[name]["length"] if name in held else _held_out(scores)) - score["length"]
        for name, score in foreign.items()
    }

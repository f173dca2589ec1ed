"""The roofline beside the spans: the least time of each, and the largest gap.

A part's bound is the longer of reading and of multiplying, at the bandwidth of a pure read loop
over the same weights and the speed of a large product. Whatever goes beyond it is a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline.drafters.base import Recorded
from paceline.models.batch import Network, Part
from paceline.profiling.tree import SpanNode, Steps

FORWARD, UNACCOUNTED = "forward", "unaccounted"
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The result of read loops: `streamed` bytes in `seconds`, the median of `reads` loops."""

    streamed: int
    seconds: float
    reads: int

    def time(self, count: float) -> float:
        """Return the seconds to read so many bytes."""
        return self.seconds * count / self.streamed


@dataclass(frozen=True, slots=True)
class Roof:
    """The limits of this machine. `peak` is in operations per second, None where that of the
    target's kind of number is not measured; then only reading counts. `itemsize` is that of a
    weight in bytes."""

    bandwidth: Bandwidth
    peak: float | None
    itemsize: int

    def product(self, size: int, rows: int) -> float:
        """Return the seconds to multiply so many rows with weights of `size` bytes."""
        reading = self.bandwidth.time(size)
        if self.peak is None:
            return reading
        return max(reading, 2 * rows * size / self.itemsize / self.peak)


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One line of a profile, per decode step: seconds, and the bound where there is one. A parent's
    bound is the sum of its parts'. `leaf`: no part of it is a line of its own."""

    path: Path
    seconds: float
    spans: float
    bound: float | None
    leaf: bool

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def depth(self) -> int:
        return len(self.path) - 1

    @property
    def gap(self) -> float:
        """Seconds beyond the bound: negative where reading ahead hid some of it elsewhere."""
        return self.seconds - (self.bound or 0.0)


def bounds_of(
    steps: Steps, target: Network, drafter: Recorded | None, roof: Roof
) -> dict[Path, float]:
    """Return the least seconds per decode step by place in the tree: the products of target and
    drafter, and the keys and values that the target's attention reads. Of a drafter's forwards only
    reading the weights is counted."""
    forward = (steps.tree.name, FORWARD)
    bounds: dict[Path, float] = {}
    for name, size in target.streamed_parts.items():
        rows = "outputs" if name == Part.HEAD else "rows"
        times = (roof.product(size, counts[rows]) for counts in steps.counts)
        bounds[*forward, name] = sum(times) / steps.decode_steps
    seen = target.kv_spec.bytes_per_token * steps.mean("seen")
    bounds[*forward, Part.ATTENTION] = roof.bandwidth.time(seen)
    for path, node in _nodes(steps.tree, ()):
        if path == forward or drafter is None or Part.HEAD not in node.children:
            continue
        passes = node.children[Part.HEAD].spans / steps.decode_steps
        for name, size in drafter.streamed_parts.items():
            bounds[*path, name] = roof.bandwidth.time(size * passes)
    return bounds


def _nodes(node: SpanNode, above: Path) -> Iterator[tuple[Path, SpanNode]]:
    path = (*above, node.name)
    yield path, node
    for child in node.children.values():
        yield from _nodes(child, path)


def rows_of(steps: Steps, bounds: Mapping[Path, float]) -> list[ProfileRow]:
    """Return the tree as lines, depth first; leaves sum to the steps' time."""
    count = steps.decode_steps

    def rows(node: SpanNode, above: Path) -> Iterator[ProfileRow]:
        path, leaf = (*above, node.name), not node.children
        within = [bound for place, bound in bounds.items() if place[: len(path)] == path]
        bound = sum(within) if within else None
        yield ProfileRow(path, node.ns / count / 1e9, node.spans / count, bound, leaf)
        for child in node.children.values():
            yield from rows(child, path)
        if not leaf:
            name = f"rest of {node.name}" if above else UNACCOUNTED
            yield ProfileRow((*path, name), node.rest / count / 1e9, 1.0, None, True)

    return list(rows(steps.tree, ()))


def largest_gap(rows: list[ProfileRow]) -> ProfileRow:
    """Return the leaf that loses most time against its bound."""
    return max((row for row in rows if row.leaf), key=lambda row: row.gap)


_PRODUCT = (
    "its product takes longer than reading its weights and multiplying with them: see that nothing "
    "else runs on these cores and that --threads is their number; fewer rows (a smaller batch, "
    "shorter drafts) shrink it, and weights in int8 (--quantize) are half of bfloat16's"
)
_BOOKKEEPING = (
    "this is the engine's own work in Python, the same for any number of tokens: a larger batch or "
    "longer drafts that are accepted share it among more"
)
ADVICE = {  # by the name of a line; lines without an entry have none that is known
    **dict.fromkeys((Part.QKV, Part.OUTPUT, Part.GATE_UP, Part.DOWN, Part.HEAD), _PRODUCT),
    Part.ATTENTION: (
        "attention takes longer than its keys and values take to read: it grows with rows times "
        "context, so shorter drafts at long contexts help, and more threads"
    ),
    Part.ROTARY: "it grows with rows: shorter drafts or a smaller batch shrink it",
    Part.EMBED: "it grows with rows: shorter drafts or a smaller batch shrink it",
    Part.NORM: "norms are not fused here: --backend native fuses them, where it can run",
    Part.TAPS: "copies of hidden states for the drafter: one that taps fewer layers has fewer",
    "rest of forward": (
        "starting the forward costs this much: on --backend torch it is what torch does between "
        "the parts, and --backend native has one call for all of it"
    ),
    "propose": (
        "drafting is what verifying has to win back: --draft-policy throughput drafts only where "
        "it pays, --max-draft-len bounds it, `auto` looks up for next to nothing"
    ),
    **dict.fromkeys(
        ("observe", "catch up"),
        "the drafter takes in what was computed: one that looks up has less to do there than one "
        "that reads the target's hidden states",
    ),
    "sample": (
        "top_k, top_p, min_p and penalties look at the whole vocabulary for each row; temperature "
        "alone costs one pass, and temperature 0 nothing"
    ),
    "grammar": "the grammar's masks are made beside the forward, and this is the wait for them",
    **dict.fromkeys(
        ("schedule", "pack", "verify", "commit", "rest of commit", "rest of verify", "detokenise",
         "settle", "look up", "rest of draft", "rest of observe", UNACCOUNTED),
        _BOOKKEEPING,
    ),
}  # fmt: skip

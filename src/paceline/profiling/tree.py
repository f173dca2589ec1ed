"""Spans added up: one tree for all decode steps, whose parts and rests sum to the steps' time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.spans import TOP, Span

STEP = "step"


@dataclass(slots=True)
class SpanNode:
    """All spans of one name in one place: `ns` and how many there were."""

    name: str
    ns: int = 0
    spans: int = 0
    children: dict[str, SpanNode] = field(default_factory=dict)

    def child(self, name: str) -> SpanNode:
        return self.children.setdefault(name, SpanNode(name))

    def add(self, span: Span) -> None:
        self.ns += span.duration
        self.spans += 1

    @property
    def rest(self) -> int:
        """ns that no child accounts for."""
        return self.ns - sum(child.ns for child in self.children.values())


@dataclass(slots=True)
class Steps:
    """The steps of one pass. The tree holds the decode steps, which have no row of a prompt;
    `durations` [ns] and `counts` are theirs, in order."""

    tree: SpanNode = field(default_factory=lambda: SpanNode(STEP))
    durations: list[int] = field(default_factory=list)
    counts: list[Mapping[str, int]] = field(default_factory=list)
    prompt_steps: int = 0
    prompt_ns: int = 0

    @property
    def decode_steps(self) -> int:
        return len(self.durations)

    def mean(self, name: str) -> float:
        """Return the mean of what the decode steps counted under that name."""
        return self.total(name) / self.decode_steps

    def total(self, name: str) -> int:
        return sum(counts[name] for counts in self.counts)


def gather(spans: Sequence[Span]) -> Steps:
    """Add up the spans of the engine's thread. Steps that had nothing to do are left out."""
    steps = Steps()
    for span, node in placed(spans, steps):
        node.add(span)
    return steps


def placed(spans: Sequence[Span], steps: Steps) -> Iterator[tuple[Span, SpanNode]]:
    """Yield each span of a decode step with its place in the tree, and count the steps."""
    nodes: list[SpanNode | None] = []
    for span in spans:
        if span.parent != TOP:
            above = nodes[span.parent]
            nodes.append(None if above is None else above.child(span.name))
        else:
            nodes.append(steps.tree if _counted(span, steps) else None)
        node = nodes[-1]
        if node is not None:
            yield span, node


def _counted(span: Span, steps: Steps) -> bool:
    """Count a step. Return True for one that belongs into the tree."""
    if span.name != STEP or span.counts is None:
        return False
    if span.counts["prompt_rows"]:
        steps.prompt_steps += 1
        steps.prompt_ns += span.duration
        return False
    steps.durations.append(span.duration)
    steps.counts.append(span.counts)
    return True


def totals(lanes: Iterable[Sequence[Span]]) -> dict[str, SpanNode]:
    """Add up the spans that lie in no other, by name, over several lanes."""
    nodes: dict[str, SpanNode] = {}
    for spans in lanes:
        for span in spans:
            if span.parent == TOP:
                nodes.setdefault(span.name, SpanNode(span.name)).add(span)
    return nodes

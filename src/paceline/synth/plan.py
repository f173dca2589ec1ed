"""The order of the prompts, each with its source and seed: the same at every start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from paceline.synth.app import App
from paceline.synth.prompts import SourcePrompt, keyed
from paceline.synth.source_spec import AnySource, RewriteSource, TurnSource
from paceline.synth.sources import Source

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """A row to be made: item `index` of the plan. The target still has to write the prompt where
    `prompt` is None; where it says another prompt anew, `base` is that one. `number` counts the
    items of the source, `sample` the answers to a prompt."""

    index: int
    spec: AnySource
    prompt: SourcePrompt | None
    number: int
    sample: int
    seed: int
    base: SourcePrompt | None = None

    @property
    def source(self) -> str:
        known = self.prompt or self.base
        return f"{self.spec.name}#{self.number if known is None else known.place}"


class ShareQueue(Generic[T]):
    """A queue that takes turns with others: the one furthest behind its share is next."""

    def __init__(self, share: float, content: T) -> None:
        self.share, self.content, self.taken = share, content, 0

    @property
    def next(self) -> float:
        return (self.taken + 0.5) / self.share


def plan(app: App, sources: Sequence[Source]) -> Iterator[Item]:
    """Yield items in order, without end where the target writes prompts itself.

    Parts keep the shares of the mix, and sources their weights, from the first item on. Where a
    source runs dry the others go on.
    """
    parts = []
    for name, share in app.shares.items():
        queues = [
            ShareQueue(_weight(app, sources, source), (source.spec, _turns(source)))
            for source in sources
            if source.spec.part == name
        ]
        if queues:
            parts.append(ShareQueue(share, queues))
    index = 0
    while parts:
        part = min(parts, key=lambda queue: queue.next)
        source = min(part.content, key=lambda queue: queue.next)
        spec, turns = source.content
        turn = next(turns, None)
        if turn is None:
            part.content.remove(source)
            if not part.content:
                parts.remove(part)
            continue
        prompt, number, sample = turn
        seed = keyed(app.seed, "answer", spec.name, prompt.key if prompt else number, sample)
        if isinstance(spec, RewriteSource):
            yield Item(index, spec, None, number, sample, seed, prompt)
        else:
            yield Item(index, spec, prompt, number, sample, seed)
        part.taken += 1
        source.taken += 1
        index += 1


def _weight(app: App, sources: Sequence[Source], source: Source) -> float:
    """Return the weight of a source in its part, or its part of the share of its language."""
    spec, languages = source.spec, app.language_shares
    if not languages:
        return spec.weight
    alike = [
        other.spec.weight
        for other in sources
        if (other.spec.part, other.spec.language) == (spec.part, spec.language)
    ]
    return languages[spec.language] * spec.weight / sum(alike)


def _turns(source: Source) -> Iterator[tuple[SourcePrompt | None, int, int]]:
    """Yield prompt, number and sample of the items of a source."""
    spec = source.spec
    if isinstance(spec, TurnSource):
        number = 0
        while spec.count is None or number < spec.count:
            yield None, number, 0
            number += 1
        return
    for sample in range(spec.samples):
        for number, prompt in enumerate(source.prompts):
            yield prompt, number, sample


def shares(app: App, sources: Sequence[Source]) -> list[float]:
    """Return the part of the plan that each source is, as long as none runs dry."""
    weights = [_weight(app, sources, source) for source in sources]
    totals = dict.fromkeys(app.shares, 0.0)
    for source, weight in zip(sources, weights, strict=True):
        totals[source.spec.part] += weight
    return [
        app.shares[source.spec.part] * weight / totals[source.spec.part]
        for source, weight in zip(sources, weights, strict=True)
    ]


def available(source: Source) -> int | None:
    """Return how many items a source has for the plan; None stands for as many as are needed."""
    if isinstance(source.spec, TurnSource):
        return source.spec.count
    return len(source.prompts) * source.spec.samples

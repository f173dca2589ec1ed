"""The order of the prompts, each with its source and seed: the same at every start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from paceline.dataset.training_set import Split
from paceline.synth.app import App
from paceline.synth.prompts import SourcePrompt, keyed, share_of
from paceline.synth.source_spec import SourceSpec, TurnSource
from paceline.synth.sources import Source

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """A row to be made: item `index` of the plan. The target still has to write the prompt where
    `prompt` is None. `number` counts the items of the source, `sample` the answers to a prompt."""

    index: int
    spec: SourceSpec
    prompt: SourcePrompt | None
    number: int
    sample: int
    seed: int

    @property
    def source(self) -> str:
        place = self.number if self.prompt is None else self.prompt.place
        return f"{self.spec.name}#{place}"


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
    parts = [
        ShareQueue(share, queues)
        for part, share in app.shares.items()
        if (queues := _queues(app, _of(sources, part)))
    ]
    index = 0
    while parts:
        part = min(parts, key=lambda queue: queue.next)
        source = min(part.content, key=lambda queue: queue.next)
        turn = next(source.content, None)
        if turn is None:
            part.content.remove(source)
            if not part.content:
                parts.remove(part)
            continue
        spec, prompt, number, sample = turn
        seed = keyed(app.seed, "answer", spec.name, prompt.key if prompt else number, sample)
        yield Item(index, spec, prompt, number, sample, seed)
        part.taken += 1
        source.taken += 1
        index += 1


PlannedTurn = tuple[SourceSpec, SourcePrompt | None, int, int]


def _queues(app: App, sources: Sequence[Source]) -> list[ShareQueue[Iterator[PlannedTurn]]]:
    return [
        ShareQueue(_share(app.language_shares, sources, source), _turns(source))
        for source in sources
    ]


def _share(languages: Mapping[str, float], sources: Sequence[Source], source: Source) -> float:
    """Return the weight of a source, or its part of the share of its language."""
    if not languages:
        return source.spec.weight
    language = source.spec.language
    weights = [other.spec.weight for other in sources if other.spec.language == language]
    return languages[language] * source.spec.weight / sum(weights)


def _turns(source: Source) -> Iterator[PlannedTurn]:
    spec = source.spec
    if isinstance(spec, TurnSource):
        number = 0
        while spec.count is None or number < spec.count:
            yield spec, None, number, 0
            number += 1
        return
    for sample in range(spec.samples):
        for number, prompt in enumerate(source.prompts):
            yield spec, prompt, number, sample


def shares(app: App, sources: Sequence[Source]) -> list[float]:
    """Return the part of the plan that each source is, as long as none runs dry."""
    parts = {part: _of(sources, part) for part in app.shares}
    result = []
    for source in sources:
        neighbours = parts[source.spec.part]
        weights = [_share(app.language_shares, neighbours, other) for other in neighbours]
        share = _share(app.language_shares, neighbours, source) / sum(weights)
        result.append(app.shares[source.spec.part] * share)
    return result


def _of(sources: Sequence[Source], part: str) -> list[Source]:
    return [source for source in sources if source.spec.part == part]


def available(source: Source) -> int | None:
    """Return how many items a source has for the plan; None stands for as many as are needed."""
    if isinstance(source.spec, TurnSource):
        return source.spec.count
    return len(source.prompts) * source.spec.samples


def split_of(part: str, key: str, held_out: float) -> Split:
    """Choose the split by the prompt alone: it is the same in every set that is ever made."""
    if part == "neighbour":
        return "neighbour"
    return "held_out" if share_of(key) < held_out else "train"

"""Which prompt is asked when, from which source, with which seed: the same at every start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from paceline.synth.app import App
from paceline.synth.prompts import Prompt, keyed, share_of
from paceline.synth.source_spec import SourceSpec
from paceline.synth.sources import Source

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """One row to be: item `index` of the plan. `prompt` None is still to be written by the target;
    `number` counts the items of its source, `sample` the answers to its prompt."""

    index: int
    spec: SourceSpec
    prompt: Prompt | None
    number: int
    sample: int
    seed: int

    @property
    def source(self) -> str:
        place = self.number if self.prompt is None else self.prompt.place
        return f"{self.spec.name}#{place}"


class Lane(Generic[T]):
    """Something that takes turns: the one furthest behind its share is next."""

    def __init__(self, share: float, content: T) -> None:
        self.share, self.content, self.taken = share, content, 0

    @property
    def next(self) -> float:
        return (self.taken + 0.5) / self.share


def plan(app: App, sources: Sequence[Source]) -> Iterator[Item]:
    """Items in order, without end where the target writes prompts itself.

    Parts keep the shares of the mix, and sources their weights, from the first item on. Where one
    runs dry the others go on.
    """
    parts = [Lane(share, _lanes(app, _of(sources, part))) for part, share in app.mix.items()]
    index = 0
    while parts:
        part = min(parts, key=lambda lane: lane.next)
        lane = min(part.content, key=lambda lane: lane.next)
        found = next(lane.content, None)
        if found is None:
            part.content.remove(lane)
            if not part.content:
                parts.remove(part)
            continue
        spec, prompt, number, sample = found
        seed = keyed(app.seed, "answer", spec.name, prompt.key if prompt else number, sample)
        yield Item(index, spec, prompt, number, sample, seed)
        part.taken += 1
        lane.taken += 1
        index += 1


Turn = tuple[SourceSpec, Prompt | None, int, int]


def _lanes(app: App, sources: Sequence[Source]) -> list[Lane[Iterator[Turn]]]:
    return [Lane(_share(app.languages, sources, source), _turns(source)) for source in sources]


def _share(languages: Mapping[str, float], sources: Sequence[Source], source: Source) -> float:
    """A source's weight; where languages have shares, its part of its language's share."""
    if not languages:
        return source.spec.weight
    mine = source.spec.language
    return (
        languages[mine]
        * source.spec.weight
        / sum(other.spec.weight for other in sources if other.spec.language == mine)
    )


def _turns(source: Source) -> Iterator[Turn]:
    spec = source.spec
    if spec.kind == "self":
        number = 0
        while spec.count is None or number < spec.count:
            yield spec, None, number, 0
            number += 1
        return
    for sample in range(spec.samples):
        for number, prompt in enumerate(source.prompts):
            yield spec, prompt, number, sample


def shares(app: App, sources: Sequence[Source]) -> list[float]:
    """What part of the plan each source is, as long as none runs dry."""
    lanes = {part: _lanes(app, _of(sources, part)) for part in app.mix}
    taken = {part: iter(lanes[part]) for part in lanes}
    return [
        app.mix[source.spec.part]
        * next(taken[source.spec.part]).share
        / sum(lane.share for lane in lanes[source.spec.part])
        for source in sources
    ]


def _of(sources: Sequence[Source], part: str) -> list[Source]:
    return [source for source in sources if source.spec.part == part]


def available(source: Source) -> int | None:
    """How many items a source has for the plan; None: as many as are needed."""
    if source.spec.kind == "self":
        return source.spec.count
    return len(source.prompts) * source.spec.samples


def split_of(part: str, key: str, held_out: float) -> str:
    """By the prompt alone: it is in one split, in every set that is ever made."""
    if part == "neighbour":
        return "neighbour"
    return "held_out" if share_of(key) < held_out else "train"

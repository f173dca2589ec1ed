"""Sets made by the fake answerer, whole and killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.dataset.training_set import Manifest
from paceline.synth.app import App
from paceline.synth.ask import Asker
from paceline.synth.folder import Collector, open_set
from paceline.synth.job import Run, SynthJob
from paceline.synth.sources import Source

from .fake import FakeAnswerer

Parts = tuple[App, list[Source], Asker]


def fresh(parts: Parts, answers: str = "fake") -> Manifest:
    app, sources, asker = parts
    return SynthJob(app, sources, asker).manifest(answers)


def run(
    parts: Parts, out: Path, answerer: FakeAnswerer | None = None, restart: bool = False
) -> Collector:
    app = parts[0]
    collector = Collector(out, open_set(out, fresh(parts), app, restart=restart), app)
    Run(SynthJob(*parts), answerer or FakeAnswerer(), collector).run()
    return collector


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Killed(BaseException):
    pass


def dying(after: int) -> FakeAnswerer:
    """An answerer that is killed before its answer number `after`."""
    answerer = FakeAnswerer()
    wait, left = answerer.wait, iter(range(after))

    def until_killed() -> Any:
        if next(left, None) is None:
            raise Killed
        return wait()

    answerer.wait = until_killed  # type: ignore[method-assign]
    return answerer

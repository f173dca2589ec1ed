"""Features that are passed through a folder of limited size: the run that reads asks for its next
texts and removes what it has read; a writer computes what is asked for.

The run alone decides what the folder holds, so a slow run holds its writer back, and a slow writer
holds the run back. Either may end and come back: what was asked for stands in the folder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import suppress
from itertools import islice

from paceline.core import InvalidRequest
from paceline.training.config import GIB
from paceline.training.data import Data, Order
from paceline.training.feature_folder import ASKED, FeatureFolder
from paceline.training.packs import Text
from paceline.training.target import TrainingTarget
from paceline.training.waiting import FIELD, POLL_SECONDS
from paceline.training.workers import Workers

AHEAD = 4096  # texts of steps that are asked for at most, however small they are
LEAST_STEPS = 2  # that fit into the folder: one is read while the one before is learnt
ALIVE_SECONDS = 1.0  # between two signs of life of the run that reads


class Passing:
    """The reading side, of a run over `data` whose `steps` (None: it cannot be said) take texts in
    `order`. Texts that are judged stay in the folder, since every evaluation reads them; those of
    the next steps come on top, as many as fit into `most_gb` GiB.

    The constructor raises InvalidRequest (field `features_folder_gb`) where any two steps might not
    fit. From then on, until close(), the folder shows that the run is there; end() says that it
    is over.
    """

    def __init__(
        self, folder: FeatureFolder, most_gb: float, data: Data, order: Order, steps: int | None
    ) -> None:
        self._folder, self._most, self._order = folder, most_gb * GIB, order
        self._steps = steps
        self._judged = {text.number: text for text in data.judged()}
        largest = sorted(map(folder.bytes_of, data.train))[-LEAST_STEPS * order.per_step :]
        needed = sum(map(folder.bytes_of, self._judged.values())) + sum(largest)
        if needed > self._most:
            expected = f"room for the {len(self._judged)} texts that are judged and for any "
            expected += f"{LEAST_STEPS} steps: at least {1.01 * needed / GIB:.3g}"
            raise InvalidRequest("features_folder_gb", most_gb, expected)
        self._first = self._end = 0  # the steps whose texts are asked for
        self._over = threading.Event()
        self._signs = threading.Thread(target=self._show_life, daemon=True)
        folder.ask_for([])  # of an earlier run with other texts some may be there
        folder.say_asking(True)
        self._signs.start()

    def ask(self, step: int, in_memory: Collection[int]) -> None:
        """Ask for what is read from `step` on, but for the texts `in_memory`, by their numbers, and
        remove all other files: before the first step, and when a quarter of what was asked for is
        read. Nothing of the step before may be read any more."""
        if self._end and step < self._first + max(1, (self._end - self._first) // 4):
            return
        asked = {n: text for n, text in self._judged.items() if n not in in_memory}
        size = sum(map(self._folder.bytes_of, asked.values()))
        coming, per_step = self._order.texts_from(step), self._order.per_step
        end, last = step, step + max(LEAST_STEPS, AHEAD // per_step)
        if self._steps is not None:
            last = min(last, self._steps)
        while end < last:
            texts = {text.number: text for text in islice(coming, per_step)}
            fresh = [t for n, t in texts.items() if n not in asked and n not in in_memory]
            size += sum(map(self._folder.bytes_of, fresh))
            if size > self._most:
                break
            asked |= {text.number: text for text in fresh}
            end += 1
        self._first, self._end = step, end
        self._folder.ask_for(list(asked.values()))
        self._folder.keep_only(list(asked.values()))

    def end(self) -> None:
        """Ask for nothing more, which ends the writer, and remove what nobody reads any more."""
        self._folder.ask_for([])
        self._folder.say_asking(False)
        self._folder.keep_only([])

    def close(self) -> None:
        """Show no more life. What was asked for stands, for when the run goes on."""
        self._over.set()
        self._signs.join()

    def _show_life(self) -> None:
        while not self._over.wait(ALIVE_SECONDS):
            with suppress(OSError):  # of a shared disk; the next sign may do
                self._folder.show_life()


def write_asked(
    target: TrainingTarget,
    texts: Sequence[Text],
    at_once: int,
    minutes: float,
    workers: Workers,
    show: Callable[[str], None],
) -> None:
    """The writing side: compute those of `texts` that a run asks for, `at_once` at a time, until it
    says that it is over. All processes call this together.

    Raises InvalidRequest (field `features_folder`) when no run has shown any life for `minutes`,
    and for a run that asks for other texts than these.
    """
    folder = target.folder
    assert folder is not None, "the settings say so"
    by_name = {folder.name(text): text for text in texts}
    life, news, written, seen_asking = folder.life(), time.monotonic(), 0, False
    while True:
        asking = folder.is_asking()
        seen_asking = seen_asking or asking
        if workers.most(int(seen_asking and not asking)):
            return
        names = (folder.asked() or []) if asking else []
        _check_known(folder, names, by_name)
        missing = [name for name in names if not folder.has(name)]
        if names != (folder.asked() or []):
            missing = []  # what was removed meanwhile is not asked for any more
        share = missing[workers.rank :: workers.count][: max(1, at_once // workers.count)]
        found = [by_name[name] for name in share]
        target.fetch(found)
        target.read_all(found)
        if folder.full:
            raise InvalidRequest(FIELD, str(folder.path), "a disk with room for what is asked for")
        folder.drop(set(share) - set(folder.asked() or []))
        if share and workers.first:
            written += len(share)
            show(f"wrote features of {written} texts; {len(names)} are asked for")
        if share or folder.life() != life:
            life, news = folder.life(), time.monotonic()
        elif time.monotonic() - news > 60 * minutes:
            expected = f"a run that asks for features: no sign of life for {minutes:g} minutes"
            raise InvalidRequest(FIELD, str(folder.path), expected)
        if not share:
            time.sleep(POLL_SECONDS)


def _check_known(folder: FeatureFolder, names: Sequence[str], known: Container[str]) -> None:
    """Raise InvalidRequest for a run that asks for other texts than those of the settings."""
    if unknown := sum(name not in known for name in names):
        expected = (
            f"a folder whose {ASKED} asks for texts of these settings; {unknown} of {len(names)} "
            "are others: give the command of the run that waits, with features_only in place of "
            "features_wait, and without features_folder_gb"
        )
        raise InvalidRequest(FIELD, str(folder.path), expected)

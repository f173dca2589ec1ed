"""Runs requests on an engine in this process: queue them, step until they are done, read what came.

Everything that uses an engine without a server goes through here: LLM, benchmarks, evaluations,
synthetic data, profiling. A driver owns the stepping of its engine, and belongs to one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline.core import OutputDelta, Request
from paceline.engine.step_cost import timed

if TYPE_CHECKING:  # a command that imports this to drive an engine later shows its help at once
    from paceline.drafters.base import Drafter
    from paceline.engine.engine import Engine
    from paceline.engine.verify import Verifier


class Driver:
    """Steps an engine that nobody else steps meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._mail: dict[str, deque[OutputDelta]] = {}

    def run(self, requests: Sequence[Request]) -> Generator[OutputDelta, None, None]:
        """Queue requests and yield what each step adds to them, until all have finished.

        Closing the generator ends those that have not finished. Several may run at once: what a
        step adds to the requests of others is kept for them.
        """
        try:
            self.queue(requests)
            yield from self.deltas(requests)
        finally:
            self.drop(requests)

    def queue(self, requests: Iterable[Request]) -> None:
        """Queue requests. Their deltas are kept until deltas() asks for them."""
        requests = list(requests)
        for request in requests:
            self._mail[request.id] = deque()
        self._keep(self.engine.add(requests))

    def deltas(self, requests: Iterable[Request]) -> Iterator[OutputDelta]:
        """Yield what happens to queued requests until all of them have finished."""
        open_ids = [request.id for request in requests]
        while open_ids:
            for request_id in list(open_ids):
                mail = self._mail[request_id]
                while mail:
                    delta = mail.popleft()
                    if delta.finished:
                        open_ids.remove(request_id)
                        del self._mail[request_id]
                    yield delta
            if open_ids:
                self._keep(self.engine.step())

    def step(self) -> list[OutputDelta]:
        """Run one step and return what it, and earlier ones, added to the queued requests, in
        order."""
        self._keep(self.engine.step())
        deltas = [delta for mail in self._mail.values() for delta in mail]
        ended = {delta.request_id for delta in deltas if delta.finished}
        self._mail = {name: deque() for name in self._mail if name not in ended}
        return deltas

    def drop(self, requests: Iterable[Request]) -> None:
        """End the requests that have not finished, and free their memory."""
        for request in requests:
            if self._mail.pop(request.id, None) is not None:
                self.engine.abort(request.id)

    def close(self) -> None:
        """End all queued requests that have not finished."""
        mail, self._mail = self._mail, {}
        for request_id in mail:
            self.engine.abort(request_id)

    @property
    def open(self) -> int:
        """Queued requests that have not finished, as far as their deltas were read."""
        return len(self._mail)

    @contextmanager
    def only(self, requests: Sequence[Request]) -> Iterator[None]:
        """Let the steps within run these requests alone. The other running ones are set aside with
        their KV in place, and come back afterwards."""
        scheduler = self.engine.scheduler
        aside = [request for request in scheduler.running if request not in requests]
        scheduler.running = [request for request in scheduler.running if request in requests]
        try:
            yield
        finally:
            scheduler.running = [*aside, *scheduler.running]

    @contextmanager
    def rule(self, verifier: Verifier) -> Iterator[None]:
        """Verify the drafts of the steps within by another rule."""
        before, self.engine.verifier = self.engine.verifier, verifier
        try:
            yield
        finally:
            self.engine.verifier = before

    def wrap_drafter(self, name: str, wrap: Callable[[Drafter], Drafter]) -> Drafter:
        """Put `wrap(drafter)` in the place of a registered drafter, and return it."""
        wrapped = wrap(self.engine.drafters[name])
        self.engine.drafters[name] = wrapped
        return wrapped

    def read_seconds(self) -> float:
        """Seconds of one read of all weights: the bandwidth bound of a decode step."""
        return timed(self.engine.runner.network.read_weights)

    def _keep(self, deltas: Iterable[OutputDelta]) -> None:
        for delta in deltas:
            mail = self._mail.get(delta.request_id)
            if mail is not None:
                mail.append(delta)

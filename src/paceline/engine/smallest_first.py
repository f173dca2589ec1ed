"""A thread that does the smallest of its jobs first."""

from __future__ import annotations

import itertools
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
Jobs = queue.PriorityQueue[tuple[float, int, Callable[[], None]]]
_changing = threading.Lock()  # the size of the next thread's stack is a setting of the process


class SmallestFirst:
    """Runs jobs one at a time on a thread of its own, a small job before a large one.

    `stack` is the size of the thread's stack in bytes. The thread starts with the first job.
    """

    def __init__(self, name: str, stack: int = 0) -> None:
        self._name, self._stack = name, stack
        self._jobs: Jobs = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._started = False

    def submit(self, size: float, job: Callable[[], T]) -> Future[T]:
        """Runs `job` when no smaller job waits; equal jobs run in the order in which they came."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(job())
            except BaseException as error:  # llguidance's panics are none of Exception
                future.set_exception(error)

        self._jobs.put((size, next(self._numbers), run))
        with _changing:
            if not self._started:
                self._start()
        return future

    def _start(self) -> None:
        self._started = True
        thread = threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True)
        before = threading.stack_size(self._stack)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        weakref.finalize(self, self._jobs.put, (float("inf"), -1, _end))


def _work(jobs: Jobs) -> None:
    while True:
        _, _, job = jobs.get()
        if job is _end:
            return
        job()
        del job  # it holds what it was given until the next job comes


def _end() -> None:
    """Ends the thread, after all jobs that were given before."""

"""Writes traces on a thread of its own. Whoever offers them never waits and never fails."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.core.priority import step_back
from paceline.dataset.traces.folder import (
    DAY_SECONDS,
    Partition,
    SessionDigest,
    day_of,
    new_name,
    write_part,
)
from paceline.dataset.traces.records import (
    REQUESTS,
    ROUNDS,
    RequestTrace,
    RoundTrace,
    Traced,
    arrow_module,
    batch,
    parquet_module,
)
from paceline.dataset.traces.retention import Retention, tidy

log = logging.getLogger(__name__)
MIB = 2**20
MOST_WAITING = 64 * MIB  # estimated bytes of what waits for the thread
MOST_HELD = 64 * MIB  # bytes of columns that wait to be written
PAUSE = 2.0  # seconds from an offer until the thread looks: columns of many answers cost less
AT_ONCE = 64  # answers that become columns in one go: others get the interpreter in between
FLUSH_SECONDS = 10.0
FLUSH_BYTES = 16 * MIB
RETRY_SECONDS = 15.0
TIDY_SECONDS = 900.0  # between two deletions of what has expired, or less for a shorter time
SPARE, SPARE_SHARE = 512 * MIB, 10  # bytes of the disk that stay free for others, or a tenth of it
CLOSE_SECONDS = 5.0
Make = Callable[[SessionDigest], Traced]


@dataclass(frozen=True, slots=True)
class TraceCounts:
    """Answers offered so far: `written` to files, `dropped` for want of room or of a disk, `failed`
    when their rows were made. `capturing` is False while the folder cannot be written."""

    written: int = 0
    dropped: int = 0
    failed: int = 0
    capturing: bool = True


@dataclass(slots=True)
class _Held:
    """Columns of one day and app that wait to be written."""

    requests: list[Any] = field(default_factory=list)
    rounds: list[Any] = field(default_factory=list)
    answers: int = 0


class TraceWriter:
    """Takes answers and writes them to `folder`, every `flush_seconds` (default: FLUSH_SECONDS) or
    FLUSH_BYTES.

    Where the folder cannot be written, it says so once, drops what comes, and tries again every
    RETRY_SECONDS. Raises MissingPackage without pyarrow.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention | None = None,
        *,
        flush_seconds: float | None = None,
    ) -> None:
        arrow_module()
        parquet_module()
        self.folder = folder
        self._retention = retention or Retention()
        self._flush_seconds = FLUSH_SECONDS if flush_seconds is None else flush_seconds
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Make, int]] = deque()
        self._waiting_bytes = 0
        self._counts = TraceCounts()
        self._wake, self._hurry = threading.Event(), threading.Event()
        self._closing = False
        # of the thread alone
        self._digest: SessionDigest | None = None
        self._held: defaultdict[tuple[str, str], _Held] = defaultdict(_Held)
        self._held_bytes = 0
        self._held_since = self._retry_at = 0.0
        quarter = self._retention.token_days * DAY_SECONDS / 4
        self._tidy_seconds, self._tidied = min(TIDY_SECONDS, quarter), time.monotonic()
        self._told_failure = False
        self._thread = threading.Thread(target=self._run, name="paceline-traces", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> TraceCounts:
        return self._counts

    def offer(self, make: Make, size: int) -> bool:
        """Take an answer of about `size` bytes, from any thread; return False where it is dropped.

        The thread calls `make` later. What it raises counts as failed.
        """
        with self._lock:
            full = self._waiting_bytes + size > MOST_WAITING
            if full or self._closing or not self._counts.capturing:
                self._counts = replace(self._counts, dropped=self._counts.dropped + 1)
                return False
            self._waiting.append((make, size))
            self._waiting_bytes += size
            if self._waiting_bytes > MOST_WAITING // 2:
                self._hurry.set()
        self._wake.set()
        return True

    def close(self) -> None:
        """Write what waits, for CLOSE_SECONDS at most, and end the thread."""
        with self._lock:
            self._closing = True
        self._wake.set()
        self._hurry.set()
        self._thread.join(CLOSE_SECONDS)

    # -- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        step_back()
        self._write(self._open)
        self._tidy()
        while not (self._closing and not self._waiting):
            self._wake.wait(self._patience())
            self._wake.clear()
            self._hurry.wait(PAUSE)
            if not self._closing:
                self._hurry.clear()
            try:
                self._work()
            except Exception:  # a fault of ours must not end the capture
                log.exception("traces: a fault in writing them; serving goes on")
        if self._counts.capturing:
            self._write(self._flush)

    def _patience(self) -> float | None:
        """Return the seconds until there is something to do although nothing comes."""
        now = time.monotonic()
        if not self._counts.capturing:
            return max(0.0, self._retry_at - now)
        until_flush = self._held_since + self._flush_seconds - now
        until_tidy = self._tidied + self._tidy_seconds - now
        return max(0.0, min(until_flush, until_tidy) if self._held else until_tidy)

    def _work(self) -> None:
        while taken := self._take():
            self._hold(taken)
            time.sleep(0)
        now = time.monotonic()
        if not self._counts.capturing:
            if now >= self._retry_at:
                self._write(self._resume)
            return
        if self._held and (
            now - self._held_since >= self._flush_seconds or self._held_bytes >= FLUSH_BYTES
        ):
            self._write(self._flush)
        if now - self._tidied >= self._tidy_seconds:
            self._tidy()

    def _take(self) -> list[Make]:
        with self._lock:
            count = min(AT_ONCE, len(self._waiting))
            taken = [self._waiting.popleft() for _ in range(count)]
            self._waiting_bytes -= sum(size for _, size in taken)
        return [make for make, _ in taken]

    def _hold(self, makes: list[Make]) -> None:
        """Make rows, and columns of them."""
        by_place: defaultdict[tuple[str, str], list[Traced]] = defaultdict(list)
        if self._digest is None or self._held_bytes >= MOST_HELD:
            self._count(dropped=len(makes))
            return
        for make in makes:
            try:
                request, rounds = make(self._digest)
            except Exception:
                self._count(failed=1)
                if not self._told_failure:
                    self._told_failure = True
                    log.exception("traces: an answer could not be recorded; later ones may be too")
                continue
            by_place[day_of(request.time), request.app].append((request, rounds))
        if by_place and not self._held:
            self._held_since = time.monotonic()
        for place, traced in by_place.items():
            requests: list[RequestTrace] = [request for request, _ in traced]
            rounds_: list[RoundTrace] = [round for _, rounds in traced for round in rounds]
            held = self._held[place]
            held.answers += len(traced)
            for rows, batches in (
                (batch(REQUESTS, requests), held.requests),
                (batch(ROUNDS, rounds_), held.rounds),
            ):
                batches.append(rows)
                self._held_bytes += rows.nbytes

    def _open(self) -> None:
        self._check_room()
        self._digest = SessionDigest(self.folder)

    def _tidy(self) -> None:
        self._tidied = time.monotonic()
        try:
            if self._digest is not None:
                tidy(self.folder, self._retention)
        except OSError as error:
            text = "traces: what has expired in %s cannot be deleted (%s); that is tried again"
            log.warning(text, self.folder, error.strerror)

    def _resume(self) -> None:
        if self._digest is None:
            self._open()
        self._flush()
        self._check_room()
        probe = self.folder / f".probe-{uuid.uuid4().hex}"
        try:
            probe.write_bytes(b"\0" * 4096)
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        with self._lock:
            self._counts = replace(self._counts, capturing=True)
        text = "traces: capturing again in %s; %d requests were left out so far"
        log.warning(text, self.folder, self._counts.dropped)

    def _flush(self) -> None:
        """Write what is held, the rounds of an answer before its request. Raises OSError; what is
        not written yet is held on."""
        if self._held:
            self._check_room()
        arrow = arrow_module()
        for place in sorted(self._held):
            held, name = self._held[place], new_name()
            for kind, batches in ((ROUNDS, held.rounds), (REQUESTS, held.requests)):
                if batches:
                    table = arrow.Table.from_batches(batches)
                    write_part(Partition(kind, *place).path(self.folder), table, name=name)
                    self._held_bytes -= sum(rows.nbytes for rows in batches)
                    batches.clear()
            self._count(written=held.answers)
            del self._held[place]

    def _check_room(self) -> None:
        """Raise OSError where the disk has no room to spare."""
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        disk = shutil.disk_usage(existing)
        spare = min(SPARE, disk.total // SPARE_SHARE)
        if disk.free < spare:
            reason = f"{disk.free // MIB} MiB are free, and {spare // MIB} MiB are left to others"
            raise OSError(errno.ENOSPC, reason, os.fspath(self.folder))

    def _write(self, job: Callable[[], object]) -> None:
        """Do a job that writes; where it cannot, stop capturing for a while."""
        try:
            job()
        except OSError as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            if self._counts.capturing:
                with self._lock:
                    self._counts = replace(self._counts, capturing=False)
                text = "traces: %s cannot be written (%s); serving goes on, nothing is captured, "
                log.warning(text + "and that is tried again", self.folder, error.strerror)

    def _count(self, *, written: int = 0, dropped: int = 0, failed: int = 0) -> None:
        with self._lock:
            counts = self._counts
            self._counts = replace(
                counts,
                written=counts.written + written,
                dropped=counts.dropped + dropped,
                failed=counts.failed + failed,
            )

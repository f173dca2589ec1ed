"""Tries grammars out in a child process, where one that crashes or never ends harms nobody.

llguidance compiles in native code: a stack overflow or a lack of memory there ends the process, and
no exception can be caught. The child has less stack than this process compiles with, so what passes
there passes here.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from paceline.core import PacelineError
from paceline.engine.grammar_child import (
    CPU_SECONDS,
    MEMORY,
    MIB,
    STACK,
    STEP_SECONDS,
    TrialSettings,
    read_message,
)

ATTEMPTS = 2  # a grammar is tried again where the child itself was killed
MAIN = Path(__file__).with_name("grammar_child.py")


class TrialUnavailable(PacelineError):
    """The process that tries grammars out cannot be started, or was killed again and again."""


class TrialBusy(PacelineError):
    """So many costly grammars wait for their trial that this one has to come back."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The cost of compiling a grammar: seconds of CPU time, and bytes."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Says why a grammar is not served: llguidance's `reason`, or as `weight` what is too heavy."""

    reason: str = ""
    weight: str = ""


Verdict = Passed | Failed


class Trial:
    """Tries grammars out for one vocabulary. Its methods may be called from any thread."""

    _shared: ClassVar[weakref.WeakValueDictionary[bytes, Trial]] = weakref.WeakValueDictionary()
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, settings: TrialSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._child: _Child | None = None

    @classmethod
    def of(cls, tokenizer: str, vocab_size: int, eos_ids: list[int]) -> Trial:
        """The trial of this vocabulary: engines of one process that share it share a child."""
        settings = TrialSettings(tokenizer=tokenizer, vocab_size=vocab_size, eos_ids=eos_ids)
        key = hashlib.blake2b(json.dumps(settings).encode()).digest()
        with cls._sharing:
            shared = cls._shared.get(key)
            if shared is None:
                shared = cls._shared[key] = cls(settings)
            return shared

    def start(self) -> None:
        """Starts the child, if none runs; it is ready about half a second later.

        Raises TrialUnavailable.
        """
        with self._lock:
            self._running()

    def submit(self, grammar: str) -> Future[Verdict]:
        """Tries a grammar in llguidance's notation. The future raises TrialUnavailable."""
        verdict: Future[Verdict] = Future()
        self._attempt(grammar, verdict, ATTEMPTS)
        return verdict

    def close(self) -> None:
        """Ends the child. The next grammar starts another one."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    @property
    def pid(self) -> int | None:
        """The process id of the child, None while none runs."""
        child = self._child
        return child.pid if child is not None and not child.gone else None

    def _running(self) -> _Child:
        if self._child is None or self._child.gone:
            self._child = _Child(self._settings)
            weakref.finalize(self, self._child.close)
        return self._child

    def _attempt(self, grammar: str, verdict: Future[Verdict], left: int) -> None:
        def done(report: Future[bytes]) -> None:
            error = report.exception()
            if error is None:
                told = json.loads(report.result())
                if "busy" in told:
                    verdict.set_exception(TrialBusy("too many costly grammars are being tried out"))
                else:
                    verdict.set_result(_verdict(told))
            elif left > 1 and not child.closed:
                self._attempt(grammar, verdict, left - 1)
            else:
                verdict.set_exception(TrialUnavailable(f"no grammar can be tried out: {error}"))

        try:
            with self._lock:
                child = self._running()
        except TrialUnavailable as error:
            verdict.set_exception(error)
        else:
            child.send(grammar.encode("utf-8", "replace")).add_done_callback(done)


class _Child:
    """One running child: a process, a socket, and a thread that reads what the child reports."""

    def __init__(self, settings: TrialSettings) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", str(MAIN), str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the server
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},  # threads survive no fork
            )
        except OSError as error:
            ours.close()
            raise TrialUnavailable(f"{command[0]}: {error}") from None
        finally:
            theirs.close()
        self.gone, self.closed, self.pid = False, False, self._process.pid
        self._socket, self._connection = ours, Connection(os.dup(ours.fileno()))
        self._sending, self._lock = threading.Lock(), threading.Lock()
        self._reports: dict[int, Future[bytes]] = {}
        self._numbers = itertools.count()
        threading.Thread(target=self._read, name="paceline-trials", daemon=True).start()
        self._write(next(self._numbers), json.dumps(settings).encode())

    def send(self, payload: bytes) -> Future[bytes]:
        """The report on one grammar. Its future raises EOFError where the child ends before."""
        report: Future[bytes] = Future()
        number = next(self._numbers)
        with self._lock:
            if self.gone:
                report.set_exception(self._ended())
                return report
            self._reports[number] = report
        self._write(number, payload)
        return report

    def close(self) -> None:
        """Ends the process; grammars that it still has are not tried again."""
        self.closed = True
        with contextlib.suppress(OSError):  # ends the read that waits, too
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, number: int, payload: bytes) -> None:
        # An error here is one for the reading thread too, which ends what waits.
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(b"%d %s" % (number, payload))

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, payload = read_message(self._connection)
                with self._lock:
                    report = self._reports.pop(number)
                report.set_result(payload)
        with self._lock:
            self.gone = True
            left, self._reports = list(self._reports.values()), {}
        with self._sending:
            self._connection.close()
            self._socket.close()
        self._process.wait()
        for report in left:
            report.set_exception(self._ended())

    def _ended(self) -> EOFError:
        return EOFError("the child was closed" if self.closed else "the child has ended")


DEATHS = {
    "SIGPROF": f"compiling it takes more than {CPU_SECONDS:g} s of CPU time",
    "SIGSEGV": f"compiling it takes more than {STACK // MIB} MiB of stack",
    "SIGBUS": f"compiling it takes more than {STACK // MIB} MiB of stack",
    "SIGABRT": f"compiling it takes more than {MEMORY // MIB} MiB of memory",
}


def _verdict(report: Mapping[str, object]) -> Verdict:
    match report:
        case {"seconds": float(seconds), "bytes": int(size)}:
            return Passed(seconds, size)
        case {"error": str(reason)}:
            return Failed(reason=reason)
        case {"gave_up": str(reason), "steps": int(steps)}:
            first = reason.partition("\n")[0]
            return Failed(weight=f"after {steps} tokens of a text it is too complex: {first}")
        case {"slow": float(seconds), "steps": int(steps)}:
            most = f"{1000 * STEP_SECONDS:.0f} ms"
            return Failed(weight=f"token {steps + 1} of a text takes {seconds:.2f} s, not {most}")
        case {"died": str(how)}:
            return Failed(weight=DEATHS.get(how, f"compiling it ends in {how}"))
    raise ValueError(f"not a report: {report!r}")

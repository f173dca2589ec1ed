"""An engine as a supervised process of ours: started, awaited, drained and stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

from paceline.core import InvalidRequest
from paceline.engines import supervisor
from paceline.engines.client import EngineClient, EngineError, answers
from paceline.engines.kind import EngineKind, LaunchPlan

READY_SECONDS = 1800.0  # a large model comes from a slow disk, and is compiled
GRACE_SECONDS = 45.0  # longer than the 30 s that engines give to running requests
POLL_SECONDS = 0.25
KEPT_LINES = 2000
SHOWN_LINES = 25
ANYWHERE = ("0.0.0.0", "::", "")  # hosts that mean every address, also that of loopback
CAUSE = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Exit)\b: .+")
HARMLESS = re.compile(r"\b(?:WARNING|INFO)\b")
# What nanobind prints of a program that ends early: it would push the reason out of sight.
NOISE = re.compile(r"^\s*(?:nanobind: |- leaked |- \.\.\. skipped|See https://nanobind)")
CUT = re.compile(rb"[\r\n]+")  # progress bars end with a carriage return
Hear = Callable[[str], None]


class EngineProcess:
    """An engine that starts on construction, under a supervisor that ends all of it with us.

    `on_line` gets each line of its log, `on_progress` what the lines tell of its loading, both in
    another thread. Raises InvalidRequest for a plan that the engine cannot serve, and for a port
    that is taken.
    """

    def __init__(
        self,
        kind: EngineKind,
        plan: LaunchPlan,
        *,
        on_line: Hear | None = None,
        on_progress: Hear | None = None,
        grace: float = GRACE_SECONDS,
        api_key: str | None = None,
    ) -> None:
        self.kind, self.line = kind, kind.launch(plan)
        self.url, self._api_key = url_of(plan), api_key
        self._grace, self._on_line, self._on_progress = grace, on_line, on_progress
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._cause: str | None = None
        check_port(plan)
        readable, writable = os.pipe()
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-S", "-E", supervisor.__file__, str(writable), str(grace), "0",
                 *self.line.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.line.environment},
                pass_fds=(writable,),
                start_new_session=True,  # Ctrl-C in the terminal is for us; we tell the engine
            )  # fmt: skip
        finally:
            os.close(writable)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        with os.fdopen(readable) as file:
            self.pid = int(file.read() or 0)  # 0: there is no such program

    def wait_ready(self, seconds: float = READY_SECONDS) -> EngineClient:
        """Wait until the engine answers, and return a client of it. Raises EngineError, with the
        end of the log, where it ends before that or takes longer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check()
            if answers(self.url):
                return EngineClient(self.url, [self.kind], self._api_key)
            time.sleep(POLL_SECONDS)
        self.stop()
        raise EngineError(f"{self._name} did not answer within {seconds:.0f} s.{self.tail()}")

    def check(self) -> None:
        """Raise EngineError, with the end of the log, if the engine has ended."""
        code = self.exit_code
        if code is not None:
            self._reader.join(timeout=5)
            raise EngineError(f"{self._name} ended with {_exit(code)}.{self.tail()}")

    def drain(self, client: EngineClient, seconds: float) -> bool:
        """Wait until no request runs or waits; whoever sends requests must have stopped. Return
        whether it came to that."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            metrics = client.metrics()
            if not metrics.running and not metrics.waiting:
                return True
            time.sleep(POLL_SECONDS)
        return False

    def stop(self) -> int:
        """Ask the engine to end, kill what is left of it after the grace, and return its exit
        code."""
        with suppress(OSError, ValueError):
            assert self._supervisor.stdin is not None
            self._supervisor.stdin.close()
        try:
            return self._supervisor.wait(self._grace + supervisor.KILLED_SECONDS + 5)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._supervisor.wait()

    def kill(self) -> None:
        """Kill the engine at once, and all that it has started."""
        if self.pid and self._supervisor.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    @property
    def exit_code(self) -> int | None:
        """None while the engine runs; 128 and the signal's number for one that a signal ended."""
        code = self._supervisor.poll()
        if code is None or code >= 0:
            return code
        if self.pid:  # somebody killed the supervisor, which can end nothing any more
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return 128 - code

    def tail(self) -> str:
        """Return the end of the log, after the first error in it, as the end of a message."""
        lines = list(self._lines)
        cause = f"\nFirst error in its log: {self._cause}" if self._cause else ""
        shown = "\n".join(f"  {line}" for line in lines[-SHOWN_LINES:])
        return f"{cause}\nEnd of its log:\n{shown}" if lines else " It has printed nothing."

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _name(self) -> str:
        return f"the engine {self.kind.name} at {self.url}"

    def _read(self) -> None:
        assert self._supervisor.stdout is not None
        for line in _lines_of(self._supervisor.stdout):
            if not NOISE.match(line):
                self._lines.append(line)
            if self._cause is None and not HARMLESS.search(line):
                match = CAUSE.search(line)
                self._cause = match[0] if match else None
            if self._on_line is not None:
                self._on_line(line)
            if self._on_progress is not None and (text := self.kind.progress(line)) is not None:
                self._on_progress(text)


def url_of(plan: LaunchPlan) -> str:
    """Return the address under which this machine reaches what a plan serves."""
    host = "127.0.0.1" if plan.host in ANYWHERE else plan.host
    return f"http://{f'[{host}]' if ':' in host else host}:{plan.port}"


def check_port(plan: LaunchPlan) -> None:
    """Raise InvalidRequest where the port of a plan is taken: its owner would answer for us."""
    family = socket.AF_INET6 if ":" in plan.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((plan.host, plan.port))
        except OSError as error:
            expected = f"a free port of {plan.host} ({error.strerror})"
            raise InvalidRequest("port", plan.port, expected) from error


def _lines_of(stream: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a stream as they come; a carriage return ends one too."""
    rest = b""
    while piece := os.read(stream.fileno(), 65536):
        *whole, rest = CUT.split(rest + piece)
        yield from (line.decode("utf-8", "replace") for line in whole if line.strip())
    if rest.strip():
        yield rest.decode("utf-8", "replace")


def _exit(code: int) -> str:
    if code > 128 and code - 128 in {each.value for each in signal.Signals}:
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    return f"exit code {code}"

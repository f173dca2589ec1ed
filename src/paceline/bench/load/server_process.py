"""A `paceline serve` of our own, as a subprocess on a free loopback port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import httpx

from paceline.core import PacelineError
from paceline.core.signals import die_with_parent

HOST = "127.0.0.1"
STOP_SECONDS = 30.0


class ServerProcess:
    """A server that starts on construction, and ends with the thread that constructed it (Linux).
    `arguments` go to `paceline serve`, and its output to `log`. `source` is the `src` folder of
    another checkout to run, in place of this one."""

    program: ClassVar[Sequence[str]] = (sys.executable, "-m", "paceline.cli", "serve")

    def __init__(self, arguments: Sequence[str], log: Path, *, source: Path | None = None) -> None:
        self.port, self._log = free_port(), log
        self.url = f"http://{HOST}:{self.port}"
        command = [*self.program, *arguments]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, "--host", HOST, "--port", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
                env=None if source is None else {**os.environ, "PYTHONPATH": str(source)},
            )

    def wait_until_healthy(self, seconds: float) -> None:
        """Wait for the server. Raises PacelineError with the end of the log if it is not up."""
        end = time.monotonic() + seconds
        with httpx.Client(timeout=2, trust_env=False) as http:
            while time.monotonic() < end:
                if self._process.poll() is not None:
                    code = self._process.returncode
                    raise PacelineError(f"the server ended with code {code}:\n{self._tail()}")
                try:
                    if http.get(f"{self.url}/health").status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                time.sleep(0.1)
        raise PacelineError(f"the server was not up after {seconds:.0f} s:\n{self._tail()}")

    def output(self) -> str:
        """Return what the server has printed so far."""
        return self._log.read_text("utf-8", "replace")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Send SIGTERM and wait for the drain. False when it had to be killed or failed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False

    def _tail(self) -> str:
        return "\n".join(self.output().splitlines()[-20:])


def free_port() -> int:
    """Return a loopback port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])

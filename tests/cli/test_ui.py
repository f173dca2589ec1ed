"""`paceline ui` as a process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import httpx
import pytest

from paceline.cli import main


@pytest.mark.slow
def test_it_serves_the_page_until_it_is_told_to_stop() -> None:
    command = [sys.executable, "-m", "paceline.cli", "ui", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert "Paceline" in httpx.get(url).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_port_that_is_taken_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", "--port", str(port)]) == 1
    assert f"cannot listen on port {port}" in capsys.readouterr().err

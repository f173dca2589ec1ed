"""Workers side by side, tables and what machine this is. Turns and ratios: paceline.bench.turns."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Worker:
    """One engine in a process of its own; it sleeps while another is measured."""

    def __init__(
        self, backend: str, model: str, *, python: str = sys.executable, **options: Any
    ) -> None:
        # -P: the names of our scripts must not hide packages that a peer imports.
        command = [python, "-P", str(HERE / "workers.py"), backend, model, json.dumps(options)]
        log = open(os.environ.get("BENCH_LOG", os.devnull), "a")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        self.load_seconds = self._answer()["ready"]

    def generate(
        self, prompts: list[list[int]], max_tokens: int | list[int], **more: Any
    ) -> dict[str, Any]:
        return self.ask(op="generate", prompts=prompts, max_tokens=max_tokens, **more)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a Markdown table, ready for docs/benchmarks.md."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + " --- |" * len(header))
    for row in rows:
        print("| " + " | ".join(_cell(value) for value in row) + " |")
    sys.stdout.flush()


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def machine() -> str:
    """One line about where this runs and on which commit, for the table's caption."""
    model = platform.processor()
    flags: set[str] = set()
    try:
        text = Path("/proc/cpuinfo").read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        fields = {key.strip(): value for key, value in fields.items()}
        model, flags = fields["model name"].strip(), set(fields["flags"].split())
    except (OSError, KeyError):
        pass
    isa = "AMX" if "amx_bf16" in flags else "AVX512-BF16" if "avx512_bf16" in flags else "portable"
    cores = len(os.sched_getaffinity(0))
    return f"{date.today()}, {model}, {cores} cores, {isa}, {commit()}"


def commit() -> str:
    """The commit of the code that is measured; `+` where files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "commit not known"
    return f"commit {done.stdout.strip()}"

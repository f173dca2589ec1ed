"""Runs the questions of one client, and says what came of each. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

URL = os.environ.get("CLIENTS_URL", "http://127.0.0.1:8000")  # without /v1
MODEL = os.environ.get("CLIENTS_MODEL", "smollm2-135m")
FOLDER = os.environ.get("CLIENTS_FOLDER", "")  # the model's, which has its tokenizer
SCRATCH = os.environ.get("CLIENTS_SCRATCH", ".")
V1 = f"{URL}/v1"
LONGEST = 300  # characters of what went wrong

_questions: list[tuple[str, str | None, Callable[[], object]]] = []


def asks(what: str, refused: str | None = None) -> Callable[[Callable[[], object]], None]:
    """Register a question. It is green where it returns, or, with `refused`, where it raises an
    error whose text has that."""

    def register(question: Callable[[], object]) -> None:
        _questions.append((what, refused, question))

    return register


def run(*command: str) -> str:
    """Run a command of the client's environment. Returns its output; raises where it fails."""
    folder = os.path.dirname(sys.executable)
    path = os.path.join(folder, command[0])
    done = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout)[-2000:])
    return done.stdout


def main() -> None:
    """Ask every question, and print a line of JSON for each."""
    for what, refused, question in _questions:
        print(json.dumps({"what": what, "outcome": _outcome(refused, question)}), flush=True)


def _outcome(refused: str | None, question: Callable[[], object]) -> str:
    try:
        question()
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        if refused is not None and refused in text:
            return f"refused: {refused}"
        return f"failed: {text[-LONGEST:]}"
    return "green" if refused is None else "failed: it was not refused"

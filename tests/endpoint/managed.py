"""Endpoints whose replicas are fake workers, and a controller of one as a program that can be
killed at any step.

    python -m tests.endpoint.managed FOLDER ENDPOINT DIE_AT FIRST

It takes the steps of STEPS from FIRST on, prints the number of each before it, and kills itself at
its DIE_AT-th write or start.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.autospec.server_client import DrafterRoutes, RouteRule
from paceline.bench.load.server_process import free_port
from paceline.dataset.training_set import write_whole
from paceline.endpoint import description, state
from paceline.endpoint.description import ManagedEndpoint
from paceline.endpoint.envoy import files
from paceline.endpoint.processes import LastingProcess
from paceline.endpoint.replicas import DrafterReplicas
from paceline.engines.kind import Program
from tests.endpoint.fleet import FAKE


def use_fake(*words: str) -> None:
    """Let replicas be fake workers, which get `words`."""
    program = Program((sys.executable, FAKE, *words, "serve"), "0.32.0")
    description.find_program = lambda *_: program  # type: ignore[attr-defined]


def managed(slots: int | list[dict[str, Any]] = 2, **fields: Any) -> ManagedEndpoint:
    free = [{"port": free_port()} for _ in range(slots)] if isinstance(slots, int) else slots
    return ManagedEndpoint.read(
        {
            "listen": f"127.0.0.1:{free_port()}",
            "engine": "vllm",
            "target": "target",
            "slots": free,
            **fields,
        }
    )


def routes(**shares: float) -> DrafterRoutes:
    default = max(shares, key=lambda name: shares[name])
    return DrafterRoutes(default, (RouteRule({}, shares),))


STEPS: Sequence[Callable[[DrafterReplicas], object]] = (
    lambda replicas: replicas.load("a", "ngram"),
    lambda replicas: replicas.route(routes(a=1.0)),
    lambda replicas: replicas.load("b", "suffix"),
    lambda replicas: replicas.route(routes(a=0.8, b=0.2)),
    lambda replicas: replicas.route(routes(b=1.0)),
    lambda replicas: replicas.unload("a") if "a" in replicas.loaded() else None,
)


def die_at(number: int) -> None:
    """Kill this process at its `number`-th write of a state or a watched file, or start or end of a
    process: before it, for even numbers, and after it for odd ones."""
    reached = 0

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal reached
            if reached == number:
                os.kill(os.getpid(), signal.SIGKILL)
            reached += 1
            result = function(*args, **named)
            if reached == number:
                os.kill(os.getpid(), signal.SIGKILL)
            reached += 1
            return result

        return call

    state.write_whole = deadly(write_whole)  # type: ignore[attr-defined]
    files.write_whole = deadly(write_whole)  # type: ignore[attr-defined]
    for name in ("_spawn", "ask_to_end"):
        setattr(LastingProcess, name, deadly(getattr(LastingProcess, name)))


def main(folder: str, endpoint: str, number: int, first: int) -> None:
    use_fake()
    die_at(number)
    with DrafterReplicas(Path(folder), ManagedEndpoint.from_file(endpoint, "endpoint")) as replicas:
        for place, step in enumerate(STEPS[first:], first):
            print(place, flush=True)
            step(replicas)
        while "a" in replicas.loaded():
            replicas._ended.wait(0.05)
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

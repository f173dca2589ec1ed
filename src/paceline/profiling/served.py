"""The same prompts over HTTP: the work that a server adds to a step and does beside it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvloop

from paceline.core import PacelineError
from paceline.core.spans import OFF
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.engine import Engine
from paceline.profiling.client import Body, ClientPlan
from paceline.profiling.run import ENGINE, Pass, ProfilePlan
from paceline.server.run import Server
from paceline.server.settings import ServerSettings
from paceline.server.sockets import bind

SERVED = "served"
LOOK_EVERY = 0.05  # seconds between two looks at the progress of the others


def record_served(engine: Engine, prompts: Sequence[list[int]], plan: ProfilePlan) -> Pass:
    """Serve `engine` to clients in another process for at least `plan.steps` steps. Each answer's
    stream has a lane of its own, for the work of the event loop. Raises PacelineError when the
    server or its clients fail."""
    recorded = Pass(SERVED)
    lane = recorded.recording.lane(ENGINE)
    try:
        with _serving(engine) as url, _clients(url, engine, prompts, plan) as clients:
            engine.record(lane)  # nobody asks: the clients wait
            before = engine.stats().steps
            _tell(clients, "go")
            while engine.stats().steps - before < plan.steps:
                if clients.poll() is not None:
                    raise PacelineError(f"the clients ended: {_last_line(clients)}")
                time.sleep(LOOK_EVERY)
    finally:
        engine.record(OFF)  # the engine's thread has ended
    return recorded


@contextmanager
def _serving(engine: Engine) -> Iterator[str]:
    """Run a server on a free loopback port, on a thread of its own."""
    settings = ServerSettings(port=0, drain_timeout=1.0)
    ready = threading.Event()
    server = Server(AsyncEngine(engine), settings, bind(settings), lambda url: ready.set())

    def serve() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.run())

    thread = threading.Thread(target=serve, name="paceline-server")
    thread.start()
    try:
        while not ready.wait(LOOK_EVERY):
            if not thread.is_alive():
                raise PacelineError("the server ended before it had started")
        yield server.url
    finally:
        server.stop()
        thread.join()


@contextmanager
def _clients(
    url: str, engine: Engine, prompts: Sequence[list[int]], plan: ProfilePlan
) -> Iterator[subprocess.Popen[str]]:
    """Run the clients' process, and wait until its first answer has warmed the server up."""
    bodies = [_body(engine, prompt, plan) for prompt in prompts]
    work = ClientPlan(url=url, bodies=bodies, batch=plan.batch)
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.profiling.client"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _tell(process, json.dumps(work))
        assert process.stdout is not None
        if not process.stdout.readline():
            raise PacelineError(f"the clients did not start: {_last_line(process)}")
        yield process
    finally:
        process.kill()
        process.communicate()


def _body(engine: Engine, prompt: list[int], plan: ProfilePlan) -> Body:
    params = plan.params
    names = ("max_tokens", "temperature", "seed", "top_k", "top_p", "min_p", "repetition_penalty")
    body = {name: getattr(params, name) for name in names}
    speculative = {} if plan.speculative is None else {"speculative": plan.speculative}
    return {"model": engine.model_name, "prompt": prompt, **body, **speculative}


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise PacelineError(f"the clients ended: {_last_line(process)}") from None


def _last_line(process: subprocess.Popen[str]) -> str:
    """Return the last line that a process which has ended wrote to stderr."""
    assert process.stderr is not None
    lines = process.stderr.read().strip().splitlines()
    return lines[-1] if lines else f"exit code {process.wait()}"

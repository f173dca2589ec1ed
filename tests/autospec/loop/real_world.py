"""A real server with a tiny model, and turns of `paceline autospec run` that may be killed.

Both run in processes of their own, so `kill -9` is the real one. The server writes traces within
a second and the loop trusts them as soon: nothing else differs from what users run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np

from paceline.autospec.loop import change, loop
from paceline.autospec.server_client import DrafterClient
from paceline.autospec.store import DrafterStore, TargetIdentity, VersionState
from paceline.autospec.store.database import StoreDatabase
from paceline.bench.load.server_process import ServerProcess
from paceline.cli import main
from paceline.core.cohorts import Cohort
from paceline.dataset.traces import writer
from paceline.dataset.traces.records import RequestTrace
from tests.autospec.loop.worlds import write_traces
from tests.autospec.store.stores import ME

KEY = "admin-secret"
COHORT = Cohort("model", "shop", "und", "none").label
DAY = 24.0  # seconds of the policy's day
POLICY = f"""
drift: {{day_seconds: {DAY:g}, reference_days: 2, least_reference_days: 2, week_days: 1, days: 1,
        covered: 0, least_requests: 20}}
retrain: {{gpu_hours_per_day: 1000, cool_down_days: 0}}
corpus: {{days: 0.01, least_answers: 10}}
canary: {{steps: [50, 100], least_hours: 0, cycle_hours: 0, least_requests: 20, tuned_requests: 40,
         tpot: 1.0, ttft: 1.0}}
"""
SETTLED = 1.0
OPTIONS = "--dtype float32 --backend torch --threads 1 --max-num-seqs 8"
PROMPTS = [[40 + n, 41, 42, 43 + n, 44, 45] for n in range(6)]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.autospec.loop.real_world"])


class TinyServer(ServerProcess):
    """`paceline serve` with a writer of traces that waits for less."""

    program: ClassVar = (sys.executable, "-m", "tests.autospec.loop.real_world")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()


class RealWorld:
    """A store, a server and its traffic. `texts` has the different token ids that each prompt got,
    with whichever drafter and without any."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model, self.starts = folder, model, 0
        self.texts: list[set[tuple[int, ...]]] = [set() for _ in PROMPTS]
        self.failures: list[str] = []
        self.sent = self.kills = 0
        (folder / "policy.yaml").write_text(POLICY, "utf-8")
        self.begin_store()
        self.begin_traces()
        self.server = self.serve()

    def serve(self) -> TinyServer:
        """Start a server, and wait for it."""
        self.starts += 1
        traces = ("--traces", str(self.folder / "traces"), "--traces-tokens", "--admin-key", KEY)
        arguments = (str(self.model), "--drafter", "first=suffix", *traces, *OPTIONS.split())
        server = TinyServer(arguments, self.folder / f"server-{self.starts}.log")
        server.wait_until_healthy(60)
        return server

    def begin_store(self) -> None:
        """Make a store whose `base` has been live for a while."""
        from paceline.models.loader import tokenizer_digest  # torch: not for turns

        target = TargetIdentity("model", None, tokenizer_digest(self.model), None)
        with DrafterStore(self.folder / "store", create=True) as store:
            store.register("base", ME, spec="suffix", target=target)
            store.promote("base", ME, VersionState.LIVE)
            with store.database.transaction() as connection:
                connection.execute("UPDATE services SET started = ?", (time.time() - 9 * DAY,))

    def begin_traces(self) -> None:
        """Write the days before, in which `base` did well."""
        draw, end = np.random.default_rng(), time.time() - 1.1 * DAY
        cohort = Cohort.parse(COHORT)
        rows = [
            RequestTrace(
                id=f"old-{n}", time=end - n * 0.25, model=cohort.model, app=cohort.app,
                language=cohort.language, region=cohort.region, drafter="base", rounds=10,
                draft_rounds=10, accepted=int(draw.integers(45, 55)), draft_bound=15,
                output_tokens=60, finish="length",
            )
            for n in range(int(3 * DAY / 0.25))
        ]  # fmt: skip
        write_traces(self.folder / "traces", rows)

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Send requests from a thread, some without speculation."""
        ended = threading.Event()
        thread = threading.Thread(target=self._send, args=(ended,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _send(self, ended: threading.Event) -> None:
        number = 0
        with httpx.Client(trust_env=False, timeout=60) as http:
            while not ended.is_set():
                number += 1
                place = number % len(PROMPTS)
                speculative: Any = "off" if number % 11 == 0 else {"policy": "fixed"}
                body = {
                    "model": "model", "prompt": PROMPTS[place], "seed": place, "max_tokens": 40,
                    "temperature": 5, "ignore_eos": True, "return_token_ids": True,
                    "speculative": speculative,
                }  # fmt: skip
                try:
                    answer = http.post(
                        f"{self.server.url}/v1/completions", json=body,
                        headers={"X-Paceline-App": "shop"},
                    )  # fmt: skip
                except httpx.TransportError:  # the server was killed
                    time.sleep(0.1)
                    continue
                if answer.status_code != 200:
                    self.failures.append(answer.text)
                    continue
                self.texts[place].add(tuple(answer.json()["choices"][0]["token_ids"]))
                self.sent += 1

    def turn(self, point: int | None = None) -> bool:
        """Do a turn in a process that is killed at a point of it. Return whether it was."""
        words = (
            "autospec", "run", str(self.folder / "store"), "--traces",
            str(self.folder / "traces"), "--server", self.server.url, "--admin-key", KEY,
            "--policy", str(self.folder / "policy.yaml"), "--once",
        )  # fmt: skip
        log = self.folder / "autospec.log"
        process = _FORKS.Process(target=_turn, args=(words, point, log))
        process.start()
        process.join(60)
        code = process.exitcode
        assert code in (0, -signal.SIGKILL), f"{code}: {log.read_text('utf-8')[-2000:]}"
        self.kills += code == -signal.SIGKILL
        return code == -signal.SIGKILL

    def restart_server(self) -> None:
        """Kill the server, and start another one."""
        self.server.kill()
        self.server = self.serve()

    def routes(self) -> dict[str, Any]:
        """Return what the server has: its drafters, and the shares of the cohort."""
        told = DrafterClient.connect(self.server.url, KEY).drafters()
        return {
            "drafters": sorted(told.drafters),
            "default": told.routes.default,
            "shares": [dict(rule.shares) for rule in told.routes.cohorts],
        }

    def close(self) -> None:
        self.server.stop()


def _turn(words: tuple[str, ...], point: int | None, log: Path) -> None:
    """Do a turn, and count its points: before and after each transaction and each call of the
    server."""
    left = [-1 if point is None else point]
    loop.SETTLED_SECONDS = change.SETTLED_SECONDS = SETTLED
    transaction, send = StoreDatabase.transaction, DrafterClient._send

    def reach() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    @contextmanager
    def watched(database: StoreDatabase) -> Iterator[Any]:
        outer = not database.connection.in_transaction
        with transaction(database) as connection:
            yield connection
            if outer:
                reach()
        if outer:
            reach()

    def asked(client: DrafterClient, method: str, *values: Any, **more: Any) -> httpx.Response:
        if method != "GET":
            reach()
        response = send(client, method, *values, **more)
        if method != "GET":
            reach()
        return response

    StoreDatabase.transaction = watched  # type: ignore[method-assign]
    DrafterClient._send = asked  # type: ignore[method-assign]
    with log.open("a") as file:
        sys.stdout = sys.stderr = file
        code = main(words)
    os._exit(code)


if __name__ == "__main__":
    writer.TraceWriter.__init__.__kwdefaults__["flush_seconds"] = 0.2
    sys.exit(main(["serve", *sys.argv[1:]]))

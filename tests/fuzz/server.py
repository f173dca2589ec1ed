"""The server under test: a tiny model's folder, the process, and what can be seen from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from paceline.bench.load.server_process import ServerProcess
from tests.fuzz.bodies import MODEL
from tests.fuzz.bystander import BystanderProcess, Noticed

START_SECONDS = 180.0  # a busy machine may build kernels and measure its step times first
IDLE_SECONDS = 30.0  # by when all that was asked must have ended
IDLE_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
SAMPLE_SECONDS = 0.5
MIB = 2**20
# Hermes' format of calls: with a template that shows tools, their parameters become grammars.
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}\n{% endfor %}"
)
# Few blocks, places and turns: preemption, full queues and cache eviction are the usual case.
SERVE = (
    "--served-model-name", MODEL, "--drafter", "auto", "--kv-memory", "512KiB", "--threads", "1",
    "--max-num-seqs", "8", "--max-waiting", "24", "--max-model-len", "256",
)  # fmt: skip
REFERENCES = [
    {"model": MODEL, "prompt": "The reference", "max_tokens": 40, "ignore_eos": True, "seed": 11,
     "temperature": temperature, "cache_salt": "reference", "return_token_ids": True}
    for temperature in (0, 1)
]  # fmt: skip
Start = Callable[[], ServerProcess]


class WatchedServer(ServerProcess):
    """A server that writes the stack of every thread into its log when a signal ends it."""

    program = (sys.executable, "-X", "faulthandler", "-m", "paceline.cli", "serve")


def tiny_folder(folder: Path) -> Path:
    """A model folder whose server starts in seconds, with a chat template that shows tools."""
    from tests.engine.tiny import save_tiny  # torch: nobody else of the fuzzer needs it

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return save_tiny(folder)


@dataclass(slots=True)
class Life:
    """One server process from its start to its end, with a bystander beside it."""

    process: ServerProcess
    bystander: BystanderProcess = field(init=False)
    texts: list[str] = field(init=False)  # of the reference requests, at the start
    rss: list[float] = field(default_factory=list)  # MiB, every SAMPLE_SECONDS
    _sampled: float = 0.0

    def __post_init__(self) -> None:
        """Waits until it serves. Raises PacelineError when it does not."""
        self.process.wait_until_healthy(START_SECONDS)
        self.texts = self.references()
        self.bystander = BystanderProcess(self.url, MODEL)

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def ended(self) -> bool:
        return self.process.exit_code is not None

    def abort(self) -> None:
        """Ends a server that is stuck, so that its log shows where."""
        os.kill(self.process.pid, signal.SIGABRT)

    def watch(self) -> None:
        """Samples the memory when it is time to."""
        now = time.monotonic()
        if now - self._sampled >= SAMPLE_SECONDS and not self.ended:
            self._sampled = now
            self.rss.append(memory(self.process.pid))

    def references(self) -> list[str]:
        """What the reference requests are told, text and token ids: or another status than 200, and
        429 when the queue stays full."""
        told, end = [], time.monotonic() + IDLE_SECONDS
        with httpx.Client(base_url=self.url, trust_env=False, timeout=60) as http:
            for body in REFERENCES:
                reply = http.post("/v1/completions", json=body)
                while reply.status_code == 429 and time.monotonic() < end:
                    time.sleep(0.2)
                    reply = http.post("/v1/completions", json=body)
                good = reply.status_code == 200
                told.append(json.dumps(reply.json()["choices"]) if good else reply.text)
        return told

    def busy(self) -> dict[str, float]:
        """Gauges that are not 0 though nobody asks any more; waits for them to become 0."""
        end = time.monotonic() + IDLE_SECONDS
        while True:
            text = httpx.get(f"{self.url}/metrics", trust_env=False, timeout=30).text
            read = {name: gauge(text, name) for name in IDLE_GAUGES}
            left = {name: value for name, value in read.items() if value}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.1)

    def stop(self) -> Noticed:
        """Ends the bystander and the server, and gives what the former has noticed."""
        noticed = self.bystander.stop()
        self.process.stop(5.0)
        return noticed


def gauge(metrics: str, name: str) -> float:
    """The sum of a gauge over its labels, from Prometheus' text. Raises ValueError without it."""
    values = re.findall(rf"^\w+:{name}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE)
    if not values:
        raise ValueError(f"/metrics has no {name}")
    return sum(map(float, values))


def memory(pid: int) -> float:
    """Resident memory of a process and its children in MiB; 0 when it is gone. Linux only."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB + sum(memory(int(child)) for child in children)

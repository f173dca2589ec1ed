"""Measure what autospec costs requests: drafters are exchanged, and corpora are built and loaded.

python benchmarks/autospec.py swap MODEL [--swaps 24]          latency while a drafter is exchanged
python benchmarks/autospec.py memory MODEL [--swaps 200]       resident memory over many exchanges
python benchmarks/autospec.py corpus MODEL [--answers 10000]   seconds to build and load a corpus

`swap` has streams under load, and now and then loads a version, routes all new requests to it and
unloads the one before; stretches of the same length in which nothing is exchanged lie in between.
The clients share the cores. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from harness import machine, table
from streams import questions, queued_over_http

from paceline.bench.load.server_process import ServerProcess
from paceline.bench.turns import bootstrap

ADMIN = "admin-key-of-this-benchmark"
START_SECONDS = 300.0
KV_MEMORY = "128MiB"  # of the server whose memory is watched: all of it is soon in use
ANSWER_TOKENS, PIECE_TOKENS = 500, 20


# -- swap: drafters come and go while streams run --------------------------------------------------


class Span(NamedTuple):
    """A stretch of time, in which a drafter was exchanged or not."""

    start: float
    end: float
    swapped: bool
    seconds: float  # that loading took


class Admin:
    """Loads, routes and unloads the drafters of a server."""

    def __init__(self, server: ServerProcess, spec: str, current: str) -> None:
        headers = {"Authorization": f"Bearer {ADMIN}"}
        self._http = httpx.Client(
            base_url=server.url, headers=headers, timeout=120, trust_env=False
        )
        self._spec, self._current, self._numbers = spec, current, count()

    def swap(self) -> float:
        """Exchange the drafter; return when the one before has left: the seconds of loading."""
        name, before = f"v{next(self._numbers)}", self._current
        start = time.perf_counter()
        self._send("POST", "", 201, json={"name": name, "spec": self._spec})
        seconds = time.perf_counter() - start
        self._send("PUT", "/routes", 200, json={"default": name})
        self._current = name
        self._send("DELETE", f"/{before}", 202, 200)
        while len(self._send("GET", "", 200).json()["drafters"]) > 1:
            time.sleep(0.1)
        return seconds

    def _send(self, method: str, path: str, *statuses: int, **more: Any) -> httpx.Response:
        answer = self._http.request(method, f"/v1/drafters{path}", **more)
        assert answer.status_code in statuses, answer.text
        return answer


def exchange(admin: Admin, swaps: int, spans: list[Span]) -> None:
    """Exchange drafters, and wait as long after each."""
    for _ in range(swaps):
        start = time.perf_counter()
        seconds = admin.swap()
        middle = time.perf_counter()
        time.sleep(middle - start)
        spans.append(Span(start, middle, True, seconds))
        spans.append(Span(middle, time.perf_counter(), False, 0.0))


def swap(args: argparse.Namespace) -> None:
    """The largest pause of any stream while a drafter is exchanged, in steps, beside the largest
    in as long a time without."""
    with tempfile.TemporaryDirectory() as folder, served(args, Path(folder)) as server:
        spans: list[Span] = []
        admin = Admin(server, args.spec, args.drafter)
        admin.swap()
        swapping = threading.Thread(target=exchange, args=(admin, args.swaps, spans))
        swapping.start()
        streamed = queued_over_http(
            server.port, "m", _while(swapping, questions(args.tokens, 0)), args.at_once
        )
        swapping.join()
        assert server.exit_code is None
    times = [sorted(set(each)) for each in streamed.arrivals]
    gaps = [gap for each in times for gap in pairwise(each)]
    step = statistics.median(end - start for start, end in gaps)
    longest = {
        side: [_longest(gaps, span) / step for span in spans if span.swapped is side]
        for side in (True, False)
    }
    extra = [with_swap - calm for with_swap, calm in zip(*longest.values(), strict=True)]
    interval = bootstrap(len(extra), lambda drawn: _medians(extra, drawn)) or [0.0, 0.0]
    loading = statistics.median(span.seconds for span in spans if span.swapped)
    rows: list[Sequence[object]] = [
        (name, f"{statistics.median(values):.2f}", f"{max(values):.2f}")
        for name, values in (("a drafter is exchanged", longest[True]), ("none", longest[False]))
    ]
    rows.append((
        "extra latency of a swap",
        f"{statistics.median(extra):.2f} ({interval[0]:.2f} to {interval[1]:.2f})",
        f"{max(longest[True]) - max(longest[False]):.2f}",
    ))  # fmt: skip
    title = (
        f"longest pause between the tokens of a stream, in steps; {args.swaps} swaps of "
        f"{args.spec}, {args.at_once} streams of {args.model}, a step is {1e3 * step:.1f} ms, a "
        f"load takes {loading:.1f} s"
    )
    table(f"{title} ({machine()})", ["meanwhile", "median", "largest"], rows)


def _while(thread: threading.Thread, asked: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    while thread.is_alive():
        yield next(asked)


def _longest(gaps: Sequence[tuple[float, float]], span: Span) -> float:
    return max(end - start for start, end in gaps if end > span.start and start < span.end)


def _medians(values: Sequence[float], drawn: Any) -> Any:
    return np.median(np.asarray(values)[drawn], axis=1)


@contextmanager
def served(args: argparse.Namespace, folder: Path, *more: str) -> Iterator[ServerProcess]:
    options = [*more, "--drafter", args.drafter, "--served-model-name", "m", "--admin-key", ADMIN]
    server = ServerProcess([args.model, *options], folder / "server.log")
    try:
        server.wait_until_healthy(START_SECONDS)
        yield server
    finally:
        server.stop()


def memory(args: argparse.Namespace) -> None:
    """Resident memory of a server over many swaps, with a few streams beside them."""
    kept = ["--kv-memory", KV_MEMORY]  # pages of KV that are used for the first time count as well
    with tempfile.TemporaryDirectory() as folder, served(args, Path(folder), *kept) as server:
        admin = Admin(server, args.spec, args.drafter)
        sizes: list[float] = []

        def swaps() -> None:
            for _ in range(args.swaps):
                admin.swap()
                sizes.append(resident(server.pid))

        swapping = threading.Thread(target=swaps)
        swapping.start()
        queued_over_http(server.port, "m", _while(swapping, questions(args.tokens, 0)), 2)
        swapping.join()
        assert server.exit_code is None and len(sizes) == args.swaps
    rows = [(number, f"{sizes[number - 1]:.0f}") for number in _some(args.swaps)]
    table(f"resident memory of a server of {args.model} after so many swaps of {args.spec} "
          f"({machine()})", ["swaps", "MiB"], rows)  # fmt: skip


def resident(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


def _some(last: int) -> list[int]:
    return sorted({1, *(max(1, last * share // 8) for share in range(1, 9))})


# -- corpus: answers that look-ups draft from ------------------------------------------------------


def corpus(args: argparse.Namespace) -> None:
    """Seconds to build a corpus of so many answers, and to load it into a server that serves."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        built = _written_corpus(args, folder / "corpus")
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in built.rglob("*")) / 2**20
        args.spec = f"suffix,corpus={built}"
        with served(args, folder, "--spare-drafter-memory", "2GiB") as server:
            admin = Admin(server, args.spec, args.drafter)
            before = resident(server.pid)
            loads = [admin.swap()]
            grown = resident(server.pid) - before
            loads += [admin.swap() for _ in range(4)]
    header = ["answers", "tokens", "to build", "to load (median of 5)", "on disk", "in memory"]
    row = [args.answers, args.answers * ANSWER_TOKENS, f"{seconds:.1f} s",
           f"{statistics.median(loads):.2f} s", f"{size:.0f} MiB", f"{grown:.0f} MiB"]  # fmt: skip
    table(f"a corpus of {args.model} ({machine()})", header, [row])


def _written_corpus(args: argparse.Namespace, root: Path) -> Path:
    """Write a corpus of answers that repeat pieces of each other, as answers of one app do."""
    from paceline.drafters.corpus import corpus_target
    from paceline.drafters.corpus_folder import CorpusAnswer, CorpusHead, write_corpus
    from paceline.models.loader import load_model

    rng, now = np.random.default_rng(0), time.time()
    pieces = rng.integers(100, 40_000, (args.answers, PIECE_TOKENS))
    chosen = rng.zipf(1.2, (args.answers, ANSWER_TOKENS // PIECE_TOKENS)) % args.answers
    answers = [
        CorpusAnswer(now, "m|app|en|none", "", [1, 2, 3], pieces[each].ravel().tolist())
        for each in chosen
    ]
    head = CorpusHead(
        target=corpus_target(load_model(args.model)), created=now, expires=now + 86_400
    )
    return write_corpus(root, answers, head)


COMMANDS = {
    "swap": swap,
    "memory": memory,
    "corpus": corpus,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("model")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--swaps", type=int, default=None)
    parser.add_argument("--answers", type=int, default=10_000, help="of a corpus, of 500 tokens")
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--spec", default="auto", help="of the versions that are loaded")
    args = parser.parse_args()
    args.swaps = args.swaps or {"memory": 200}.get(args.command, 24)
    COMMANDS[args.command](args)


if __name__ == "__main__":
    main()

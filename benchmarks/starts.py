"""Starts of `paceline serve`: seconds from the command to the first answer of /health.

python benchmarks/starts.py MODEL [--serve="--quantize int8"] [--before FOLDER] [--rounds 3]

A first start finds the model's files and compiled kernels, and nothing else that Paceline keeps; a
later one finds what the first has kept. With --before another checkout starts in turns with this
one, in a cache of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from harness import machine, table

from paceline.bench.load.server_process import ServerProcess
from paceline.bench.turns import in_turns
from paceline.core.cache import cache_dir
from paceline.models.catalog import pull

HERE = Path(__file__).parents[1]
MOST = 600.0  # seconds that a start may take
WRITTEN = 120.0  # seconds until the weights that a first start packed are written
COMPILED, FILES = "kernels", "models"  # entries of the cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--serve", default="", help="more arguments of `paceline serve`")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    pull(args.model)
    models = cache_dir() / FILES
    versions = {"after": HERE} if args.before is None else {"before": args.before, "after": HERE}
    arguments = [args.model, *args.serve.split()]
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: Path(folder) / name for name in versions}
        for cache in caches.values():
            cache.mkdir()
            (cache / FILES).symlink_to(models)
        starts = {
            name: partial(both_starts, arguments, versions[name], caches[name]) for name in versions
        }
        seconds = in_turns(starts, args.rounds)  # its warm-up compiles the kernels
    rows = []
    for name, runs in seconds.items():
        for which, values in zip(("first", "later"), zip(*runs, strict=True), strict=True):
            all_values = ", ".join(f"{value:.1f}" for value in values)
            rows.append((name, which, all_values, f"{statistics.median(values):.1f}"))
    title = f"starts of `paceline serve {' '.join(arguments)}` ({machine()})"
    table(title, ["version", "start", "s", "median"], rows)


def both_starts(arguments: list[str], source: Path, cache: Path) -> tuple[float, float]:
    """Return the seconds of a first start and of a later one."""
    for entry in cache.iterdir():
        if entry.name not in (COMPILED, FILES):
            shutil.rmtree(entry)
    first = start_seconds(arguments, source, cache)
    return first, start_seconds(arguments, source, cache)


def start_seconds(arguments: list[str], source: Path, cache: Path) -> float:
    os.environ["PACELINE_CACHE"] = str(cache)
    begin = time.perf_counter()
    server = ServerProcess(arguments, cache.with_suffix(".log"), source=source / "src")
    try:
        server.wait_until_healthy(MOST)
        seconds = time.perf_counter() - begin
    finally:
        ended = server.stop(WRITTEN)
    if not ended:
        raise RuntimeError(f"the server did not end in {WRITTEN:g} s: {server.output()}")
    return seconds


if __name__ == "__main__":
    main()

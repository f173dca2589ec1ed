"""Is the default policy ever slower? Throughput against AR and against every fixed draft length.

    python benchmarks/never_slower.py run MODEL DFLASH --out results.jsonl [--cells chat/8/suffix …]
    python benchmarks/never_slower.py run MODEL --out auto.jsonl [--cells chat/8/auto/T=1 …]
    python benchmarks/never_slower.py show --out results.jsonl [--svg heat_map.svg]

Cells are {chat, code, json, random} x {1, 8, 32 at once} x {suffix, dflash}. In each round the same
requests, two or three for each place, run under AR, under the policy and under fixed lengths, in an
order that changes: every number is a ratio of runs that were neighbours. After a few rounds with
all fixed lengths only the best of them goes on. A cell that is in the file already is skipped,
unless it is named: then its new rounds join the old ones. DFLASH is what overfit_drafter.py wrote,
or any drafter for MODEL. Without DFLASH the engine is the one that `paceline serve` starts, with
the drafter `auto`, against AR alone, at each of TEMPERATURES.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import machine, table
from prompts import encoded

from paceline import LLM, SamplingParams
from paceline.core import SpeculativeParams

KINDS, TOGETHER, DRAFTERS = ("chat", "code", "json", "random"), (1, 8, 32), ("suffix", "dflash")
TEMPERATURES = (0.0, 0.7, 1.0)  # of `auto`; the others run at 0
TOKENS = 96
REQUESTS = {1: 1, 8: 24, 32: 64}  # of a run, one after another in so many places
ROUNDS = {1: 20, 8: 10, 32: 7}
LENGTHS = {1: (1, 2, 4, 7), 8: (1, 2, 4, 7), 32: (1, 2, 4)}
PICKING = 3  # rounds with every fixed length
WARM_UP = {1: 2, 8: 2, 32: 3}  # rounds not counted: the policy learns what these drafts are worth
FLOORS = {"ar": 0.95, "best": 0.93}  # that the lower bounds have to reach
COSTS = {1: 2.6, 8: 3.6, 32: 4.4}  # AR runs that a round takes, for the estimate
Speeds = dict[str, list[float | None]]  # by side: of every round, None where it did not run
_names = itertools.count()


class Cell(NamedTuple):
    """Traffic, requests at once, drafter, temperature."""

    kind: str
    together: int
    drafter: str
    temperature: float = 0.0

    def __str__(self) -> str:
        name = f"{self.kind}/{self.together}/{self.drafter}"
        return f"{name}/T={self.temperature:g}" if self.drafter == "auto" else name


def answer_lengths(count: int) -> list[int]:
    """Return the lengths of `count` answers in tokens, shuffled the same way each time.

    They are spread from half of TOKENS to one and a half times TOKENS. With equal lengths AR would
    start and end its requests side by side, with all prompts in one step and no place ever empty.
    No traffic does that.
    """
    if count == 1:
        return [TOKENS]
    spread = [TOKENS // 2 + TOKENS * index // (count - 1) for index in range(count)]
    return random.Random(3).sample(spread, count)


ALL = [Cell(*cell) for cell in itertools.product(KINDS, TOGETHER, DRAFTERS)]
DEFAULT = [Cell(*cell) for cell in itertools.product(KINDS, TOGETHER, ("auto",), TEMPERATURES)]


class Bench:
    """One engine with both drafters, or with `auto`; every request has a cache scope of its own."""

    def __init__(self, model: str, dflash: str | None) -> None:
        drafters = ["suffix", f"dflash={dflash}"] if dflash else ["auto"]
        self.llm = LLM(model, drafters, max_model_len=1024, kv_memory=2**30)
        gc.collect()
        gc.freeze()  # as the server does: no run pays for walking through all that is loaded
        rng, vocabulary = random.Random(7), self.llm.engine.vocab_size
        self.prompts = {kind: encoded(self.llm.tokenizer, kind) for kind in KINDS[:3]}
        self.prompts["random"] = [
            [rng.randrange(vocabulary // 2) for _ in range(40)] for _ in range(20)
        ]

    def batch(self, kind: str, together: int, turn: int) -> list[list[int]]:
        prompts = itertools.cycle(self.prompts[kind])
        count = REQUESTS[together]
        start = turn * count % len(self.prompts[kind])
        return list(itertools.islice(prompts, start, start + count))

    def run(self, cell: Cell, batch: Sequence[list[int]], wish: SpeculativeParams) -> float:
        """Tokens per second from the first prompt to the last token, so many requests at once."""
        engine, kind, together = self.llm.engine, cell.kind, cell.together
        requests = []
        for seed, (prompt, length) in enumerate(
            zip(batch, answer_lengths(len(batch)), strict=True)
        ):
            params = SamplingParams(
                temperature=cell.temperature, seed=seed, max_tokens=length, ignore_eos=True
            )
            name = f"run{next(_names)}"
            requests += engine.make_requests(
                prompt, params, wish, request_id=name, salt=name.encode(), cohort=kind
            )
        waiting = deque(requests)
        start = time.perf_counter()
        running = 0
        while waiting or running:
            while waiting and running < together:
                engine.add([waiting.popleft()])
                running += 1
            running -= sum(delta.finished for delta in engine.step())
        return sum(request.output_len for request in requests) / (time.perf_counter() - start)

    def cell(self, cell: Cell, rounds: int) -> dict[str, Any]:
        """Tokens per second of every side, by round; None where a side did not run."""
        kind, together, drafter, _ = cell
        sides = {"ar": SpeculativeParams(off=True), "policy": SpeculativeParams(drafter=drafter)}
        lengths = () if drafter == "auto" else LENGTHS[together]
        fixed = {
            f"fixed:{length}": SpeculativeParams(drafter=drafter, policy=f"fixed:{length}")
            for length in lengths
        }
        speeds: Speeds = {name: [] for name in [*sides, *fixed]}
        rng = random.Random(0)
        warm_up = WARM_UP[together]
        for turn in range(warm_up + rounds):
            batch = self.batch(kind, together, turn)
            now = {**sides, **(fixed if turn >= warm_up else {})}
            order = rng.sample(list(now), len(now))
            found = {name: self.run(cell, batch, now[name]) for name in order}
            if turn >= warm_up:
                for name in speeds:
                    speeds[name].append(found.get(name))
            if fixed and turn == warm_up + PICKING - 1:
                best = max(fixed, key=lambda name: statistics.median(ratios(speeds, name, "ar")))
                fixed = {best: fixed[best]}
        return {**cell._asdict(), "speeds": speeds}


# -- what the rounds say ---------------------------------------------------------------------------


def ratios(speeds: Speeds, above: str, below: str) -> list[float]:
    pairs = zip(speeds[above], speeds[below], strict=True)
    return [a / b for a, b in pairs if a is not None and b is not None]


def lower_bound(values: Sequence[float]) -> float:
    """One-sided 95% bootstrap bound of the median."""
    rng = random.Random(0)
    medians = [statistics.median(rng.choices(values, k=len(values))) for _ in range(2000)]
    return sorted(medians)[100]


def best_fixed(cell: dict[str, Any]) -> str:
    """The side that would have been the best to fix, AR (length 0) included."""
    speeds = cell["speeds"]
    fixed = [name for name in speeds if name.startswith("fixed")]
    return max(["ar", *fixed], key=lambda name: statistics.median(ratios(speeds, name, "ar")))


def summary(cell: dict[str, Any]) -> dict[str, Any]:
    best, speeds = best_fixed(cell), cell["speeds"]
    against = {"ar": ratios(speeds, "policy", "ar"), "best": ratios(speeds, "policy", best)}
    return {
        "cell": name_of(cell),
        "fixed": best,
        **{name: statistics.median(values) for name, values in against.items()},
        **{f"{name}_bound": lower_bound(values) for name, values in against.items()},
    }


def name_of(cell: dict[str, Any]) -> str:
    return str(Cell(**{name: cell[name] for name in Cell._fields if name in cell}))


def show(cells: list[dict[str, Any]], svg: Path | None) -> None:
    found = [summary(cell) for cell in cells]
    rows = [
        (s["cell"], s["ar"], s["ar_bound"], s["fixed"], s["best_bound"], verdict(s)) for s in found
    ]
    header = ["cell", "policy ÷ AR", "lower bound", "best fixed", "÷ best: lower bound", "holds"]
    table(f"default policy, {TOKENS} tokens, paired runs ({machine()})", header, rows)
    kept = sum(verdict(s) == "yes" for s in found)
    print(f"\n{kept} of {len(found)} cells hold: ≥ {FLOORS['ar']} × AR, ≥ {FLOORS['best']} × best")
    if svg is not None:
        svg.write_text(heat_map(found), "utf-8")


def verdict(found: dict[str, Any]) -> str:
    missed = [name for name, floor in FLOORS.items() if found[f"{name}_bound"] < floor]
    return "no: " + ", ".join(missed) if missed else "yes"


# -- the picture -----------------------------------------------------------------------------------

WIDE, HIGH, LEFT, TOP = 74, 34, 70, 62


def heat_map(found: list[dict[str, Any]]) -> str:
    """Two panels of lower bounds: against AR and against the best fixed length."""
    by_name = {s["cell"]: s for s in found}
    columns = list(itertools.product(DRAFTERS, TOGETHER))
    panel = LEFT + len(columns) * WIDE + 24
    parts = []
    for number, (key, title) in enumerate(
        (("ar_bound", "÷ AR"), ("best_bound", "÷ best fixed length"))
    ):
        left = number * panel + LEFT
        parts.append(_text(left, 18, f"default policy {title}, lower 95% bound", "start"))
        for column, (drafter, together) in enumerate(columns):
            middle = left + column * WIDE + WIDE / 2
            parts.append(_text(middle, 38, drafter))
            parts.append(_text(middle, 54, f"{together} at once"))
        for row, kind in enumerate(KINDS):
            y = TOP + row * HIGH
            parts.append(_text(left - 8, y + 22, kind, "end"))
            for column, (drafter, together) in enumerate(columns):
                cell = by_name.get(f"{kind}/{together}/{drafter}")
                x = left + column * WIDE
                value = None if cell is None else cell[key]
                fill = "#eeeeee" if value is None else _colour(value)
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{WIDE - 2}" height="{HIGH - 2}" fill="{fill}"/>'
                )
                shown = "" if value is None else f"{value:.2f}"
                parts.append(_text(x + WIDE / 2 - 1, y + 21, shown))
    size = f'width="{2 * panel}" height="{TOP + len(KINDS) * HIGH + 10}"'
    style = "<style>text{font:13px sans-serif;fill:#222}</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(parts)}</svg>\n'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>'


def _colour(value: float) -> str:
    """Red where it is slower, white at 1, deeper green the faster: full at 1/2 and at 3 times."""
    red, green = (214, 69, 65), (46, 139, 87)
    end, share = (red, (1 - value) * 2) if value < 1 else (green, (value - 1) / 2)
    share = min(1.0, max(0.0, share)) ** 0.6
    mixed = [round(255 + share * (channel - 255)) for channel in end]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


# -- running it ------------------------------------------------------------------------------------


def read(out: Path) -> list[dict[str, Any]]:
    lines = out.read_text("utf-8").splitlines() if out.is_file() else []
    cells: dict[str, dict[str, Any]] = {}
    for cell in map(json.loads, lines):
        known = cells.setdefault(name_of(cell), cell)
        if known is not cell:
            for side, speeds in cell["speeds"].items():
                known["speeds"][side] += speeds
    return list(cells.values())


def wanted(args: argparse.Namespace) -> list[Cell]:
    done = {name_of(cell) for cell in read(args.out)}
    named = {str(cell): cell for cell in (ALL if args.dflash else DEFAULT)}
    unknown = set(args.cells or ()) - named.keys()
    if unknown:
        raise SystemExit(f"no such cell: {', '.join(sorted(unknown))}")
    names = args.cells or [name for name in named if name not in done]
    return [named[name] for name in names]


def run(args: argparse.Namespace) -> None:
    todo, bench = wanted(args), Bench(args.model, args.dflash)
    seconds = {}
    for together in sorted({cell.together for cell in todo}):
        batch = bench.batch("chat", together, 0)
        speed = bench.run(Cell("chat", together, ""), batch, SpeculativeParams(off=True))
        costs = COSTS[together] if args.dflash else 2
        seconds[together] = len(batch) * TOKENS / speed * costs
    rounds = {n: args.rounds or ROUNDS[n] for n in TOGETHER}
    estimate = sum(seconds[n] * (rounds[n] + WARM_UP[n]) for _, n, *_ in todo)
    print(f"{len(todo)} cells to go, about {estimate / 60:.0f} minutes", flush=True)
    for index, asked in enumerate(todo, 1):
        start = time.perf_counter()
        cell = bench.cell(asked, rounds[asked.together])
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cell) + "\n")
        found, took = summary(cell), time.perf_counter() - start
        print(f"{index}/{len(todo)} {found['cell']}: ÷ AR {found['ar']:.3f} (bound "
              f"{found['ar_bound']:.3f}), ÷ {found['fixed']} {found['best_bound']:.3f}"
              f", {took:.0f} s", flush=True)  # fmt: skip
    show(read(args.out), args.svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("model", nargs="?")
    parser.add_argument("dflash", nargs="?")
    parser.add_argument("--out", type=Path, required=True, help="results, one cell a line")
    parser.add_argument("--cells", nargs="+", help="as chat/8/suffix; default: all new ones")
    parser.add_argument("--rounds", type=int, help="counted rounds of each cell")
    parser.add_argument("--svg", type=Path, help="where to draw the heat map")
    args = parser.parse_args()
    if args.what == "run":
        run(args)
    else:
        show(read(args.out), args.svg)


if __name__ == "__main__":
    main()

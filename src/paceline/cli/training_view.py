"""A run of training as a picture in the terminal, made of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from paceline.cli.show import plain_table

BARS = "▁▂▃▄▅▆▇█"
CURVE = 32  # characters of a curve, at most
PHASES = ("target", "data", "drafter", "head", "optimiser")
KINDS = {"held_out": "held out", "foreign": "foreign", "out_of_domain": "out of domain"}
Entry = Mapping[str, float]


def curve(values: Sequence[float]) -> str:
    """Return a line of bars, the highest for the largest value, with the mean of neighbours where
    there are more values than CURVE."""
    if not values:
        return ""
    count = min(CURVE, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def training_view(folder: Path, entries: Sequence[Entry]) -> RenderableType:
    """Return the state of a run: how far it is, its speed, its loss, and acceptance by set."""
    steps = [entry for entry in entries if "loss" in entry]
    scores = [entry for entry in entries if any(name.endswith("/first") for name in entry)]
    if not entries:
        return Text(f"{folder}: nothing is logged yet")
    parts: list[RenderableType] = [Text(line) for line in _lines(folder, entries, steps)]
    if scores:
        parts += ["", _acceptance(scores)]
    if scores and "forecast/al" in scores[-1]:
        low, high = scores[-1]["forecast/low"], scores[-1]["forecast/high"]
        parts.append(f"forecast for the end: AL {scores[-1]['forecast/al']:.2f} "
                     f"({low:.2f} to {high:.2f})")  # fmt: skip
    return Group(*parts)


def _lines(folder: Path, entries: Sequence[Entry], steps: Sequence[Entry]) -> Iterator[str]:
    done = f"{folder}: step {entries[-1]['step']:.0f}"
    if not steps:
        yield done
        return
    last = steps[-1]
    left = last.get("hours_left")
    time_left = "" if left is None else f", {_duration(left)} left"
    yield f"{done}, {_duration(last['hours'])} of steps{time_left}"
    share = 100 * last.get("peak_share/all", 0)
    phases = ", ".join(f"{phase} {last[f'ms/{phase}']:.0f}" for phase in PHASES)
    yield f"{last['slots_per_second']:,.0f} slots/s, {share:.0f}% of the matmul peak"
    yield f"a step takes {1e3 * last['seconds_per_step']:.0f} ms: {phases}"
    falling = "; the learning rate falls" if "decay_steps" in _last_event(entries) else ""
    yield f"loss {last['loss']:.3f} nats {curve([entry['loss'] for entry in steps])}{falling}"
    yield f"train AL {last['train/al']:.2f} {curve([entry['train/al'] for entry in steps])}"
    fallen = [name for name in entries[-1] if name.startswith("regression/")]
    for name in fallen:
        yield f"AL fell by {100 * entries[-1][name]:.0f}% on {name.removeprefix('regression/')}"


def _last_event(entries: Sequence[Entry]) -> Entry:
    """Return the last entry that is of no step and of no evaluation, an empty one for none."""
    return next((entry for entry in reversed(entries) if "decay_steps" in entry), {})


def _acceptance(scores: Sequence[Entry]) -> RenderableType:
    last = scores[-1]
    names = [name.removesuffix("/first") for name in last if name.endswith("/first")]
    places = sorted(int(name.rpartition("_")[2]) for name in last if "/position_" in name)
    most = max([1, *places])
    shown = [1, *range(2, most + 1)]
    table = plain_table("set", "AL", "best", *map(str, shown), "by evaluation",
                        left=("set", "by evaluation"))  # fmt: skip
    for name in names:
        kind, _, of = name.partition("/")
        lengths = [entry[f"{name}/al"] for entry in scores if f"{name}/al" in entry]
        shares = [last[f"{name}/first"]]
        shares += [last.get(f"{name}/position_{place}", 0.0) for place in shown[1:]]
        table.add_row(
            f"{of}, {KINDS.get(kind, kind)}",
            f"{lengths[-1]:.2f}",
            f"{max(lengths):.2f}",
            *(f"{100 * share:.0f}%" for share in shares),
            curve(lengths),
        )
    return table


def _duration(hours: float) -> str:
    minutes, seconds = divmod(round(3600 * hours), 60)
    whole, minutes = divmod(minutes, 60)
    return f"{whole}:{minutes:02d}:{seconds:02d} h" if whole else f"{minutes}:{seconds:02d} min"

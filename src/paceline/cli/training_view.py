"""The state of a run of training as a picture in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.text import Text

from paceline.cli.show import plain_table
from paceline.dataset.run_log import RunState, ScoredSet, duration

BARS = "▁▂▃▄▅▆▇█"
CURVE = 32  # characters of a curve, at most


def curve(numbers: Sequence[float | None]) -> str:
    """Return a line of bars, the highest for the largest number, with the mean of neighbours where
    there are more numbers than CURVE. None is left out."""
    values = [number for number in numbers if number is not None]
    if not values:
        return ""
    count = min(CURVE, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def training_view(run: RunState) -> RenderableType:
    """Return how far a run is, its speed, its loss, and acceptance by set and position."""
    parts: list[RenderableType] = [Text(line) for line in _lines(run)]
    if run["sets"]:
        parts += ["", _acceptance(run["sets"])]
    if run["is_running"] and (forecast := run["forecast"]) is not None:
        low, high = forecast["low"], forecast["high"]
        parts.append(f"forecast for the end: AL {forecast['al']:.2f} ({low:.2f} to {high:.2f})")
    return Group(*parts)


def _lines(run: RunState) -> Iterator[str]:
    state = "training" if run["is_running"] else "no process is training in this folder"
    if run["is_running"] and run["is_falling"]:
        state = "training; the learning rate falls"
    yield f"{run['folder']}: {state}"
    speed = run["speed"]
    if speed is None:
        yield f"step {run['step']}"
        return
    left = f", {duration(speed['hours_left'])} left" if run["is_running"] else ""
    yield f"step {run['step']}, {duration(speed['hours'])} of steps{left}"
    phases = ", ".join(f"{phase} {ms:.0f}" for phase, ms in speed["phases"].items())
    phases = f": {phases}" if phases else ""
    share = speed["peak_share"]
    peak = "" if share is None else f", {100 * share:.0f}% of the matmul peak"
    if speed["slots_per_second"] is not None:
        yield f"{speed['slots_per_second']:,.0f} slots/s{peak}"
    yield f"a step takes {_shown(speed['step_ms'], '.0f')} ms{phases}"
    loss, train_al = run["loss"]["value"], run["train_al"]["value"]
    if loss[-1] is None:
        yield "the loss is not a finite number any more: the run has diverged"
    yield f"loss {_shown(loss[-1], '.3f')} nats {curve(loss)}"
    if train_al:  # of a drafter
        yield f"train AL {_shown(train_al[-1], '.2f')} {curve(train_al)}"
    for name, lost in run["fallen"].items():
        yield f"AL fell by {100 * lost:.0f}% on {name}"
    for name, gap in run["gaps"].items():
        yield f"production gap of {name}: AL {_shown(gap, '.2f')}, held out minus foreign"


def _acceptance(sets: Sequence[ScoredSet]) -> RenderableType:
    most = max(len(scored["positions"]) for scored in sets)
    places = [str(place) for place in range(1, most + 1)]
    left = ("set", "by evaluation")
    table = plain_table("set", "AL", "best", *places, "by evaluation", left=left)
    for scored in sets:
        shares = [_shown(share, ".0%") for share in scored["positions"]]
        table.add_row(
            Text(f"{scored['name']}, {scored['kind']}"),  # a name may look like rich's markup
            _shown(scored["al"], ".2f"),
            _shown(scored["best"], ".2f"),
            *shares,
            *[""] * (most - len(shares)),
            curve(scored["curve"]["value"]),
        )
    return table


def _shown(number: float | None, form: str) -> str:
    return "–" if number is None else format(number, form)

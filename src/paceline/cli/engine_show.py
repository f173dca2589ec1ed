"""The tables of `paceline engine`: what an engine is, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from paceline.bench.report.words import NOTHING, number, percent
from paceline.cli.show import plain_table

if TYPE_CHECKING:
    from paceline.engines.kind import Capabilities, EngineDescription
    from paceline.engines.metrics import EngineMetrics, TimeSpread

SHOWN_POSITIONS = 16
ABILITIES = {
    "token_ids": "token ids",
    "rounds": "what every draft of an answer did",
    "acceptance": "drafted and accepted tokens of an answer",
    "speculation_off": "speculation off for one request",
    "logprobs": "log-probabilities",
}


def status_table(
    description: EngineDescription, healthy: bool, metrics: EngineMetrics | None
) -> Table:
    """Return what an engine is, and how busy."""
    lengths = {None: "it does not say", 0: "none"}
    drafts = description.draft_len
    rows = {
        "engine": f"{description.kind} {description.version or ''}".strip(),
        "model": description.model,
        "context": _whole(description.max_model_len, " tokens"),
        "health": "takes requests" if healthy else "takes no requests",
        "drafter": description.drafter or ("it does not say" if drafts != 0 else "none"),
        "draft length": lengths.get(drafts, f"up to {drafts} tokens"),
        "tells": ", ".join(_abilities(description.capabilities, True)),
        "lacks": ", ".join(_abilities(description.capabilities, False)) or "nothing",
    }
    if metrics is not None:
        rows["requests"] = f"{metrics.running} running, {metrics.waiting} waiting"
    table = Table(show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows.items():
        table.add_row(label, value)
    return table


def metrics_table(
    now: EngineMetrics, since: EngineMetrics | None = None, seconds: float = 0.0
) -> Table:
    """Return an engine's metrics; `since` holds the counters of the last `seconds`."""
    columns = ["since its start", *([f"in {seconds:.1f} s"] if since is not None else [])]
    table = plain_table("", *columns)
    readings = [now, *([since] if since is not None else [])]

    def add(label: str, *values: str) -> None:
        table.add_row(label, *values)

    gauges = {
        "running": str(now.running),
        "waiting": str(now.waiting),
        "KV cache in use": percent(now.kv_usage),
        "TTFT, ms: mean, p50, p99": _times(now.ttft),
        "TPOT, ms: mean, p50, p99": _times(now.tpot),
    }
    for label, text in gauges.items():
        add(label, text, *([""] if since is not None else []))
    add("requests finished", *(str(each.requests_finished) for each in readings))
    add("prompt tokens", *(str(each.prompt_tokens) for each in readings))
    add("tokens generated", *(str(each.generated_tokens) for each in readings))
    if since is not None and seconds:
        add("tokens per second", "", number(since.generated_tokens / seconds, digits=1))
    add("prefix cache hits", *(percent(each.prefix_hit_share) for each in readings))
    add("drafts", *(_whole(each.drafts) for each in readings))
    add("tokens drafted", *(_whole(each.drafted) for each in readings))
    add("tokens accepted", *(_whole(each.accepted) for each in readings))
    add("AL incl. bonus", *(number(each.acceptance_length) for each in readings))
    for place in range(min(len(now.accepted_by_position), SHOWN_POSITIONS)):
        add(f"accepted at position {place + 1}", *(_share(each, place) for each in readings))
    return table


def _abilities(capabilities: Capabilities, has: bool) -> list[str]:
    return [text for name, text in ABILITIES.items() if getattr(capabilities, name) is has]


def _share(metrics: EngineMetrics, place: int) -> str:
    """Return the share of drafts that were accepted up to a position."""
    counts = metrics.accepted_by_position
    if not metrics.drafts or place >= len(counts):
        return NOTHING
    return percent(counts[place] / metrics.drafts)


def _times(spread: TimeSpread | None) -> str:
    if spread is None:
        return NOTHING
    return ", ".join(f"{1000 * value:.1f}" for value in (spread.mean, spread.p50, spread.p99))


def _whole(value: int | None, unit: str = "") -> str:
    return NOTHING if value is None else f"{value}{unit}"

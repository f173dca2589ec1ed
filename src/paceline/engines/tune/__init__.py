"""`paceline tune`: which draft length a running engine should have, by how many requests it serves.

A few dozen answers tell three things: what every draft position accepts, how long a round takes for
so many requests, and how long a step without drafts takes. From these follows the speed of every
draft length, also of those that the engine does not run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.engines.client import EngineClient
from paceline.engines.tune.advice import Advice, ContextShare, Gain, Setting, advise
from paceline.engines.tune.measure import (
    check_drafting,
    measure_by_request,
    measure_whole,
    sizes_up_to,
)
from paceline.engines.tune.probes import Prober, Prompt, check_prompts


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """How much is asked: the most requests at once, tokens of an answer, and seconds in all."""

    at_once: int = 8
    tokens: int = 64
    seconds: float = 60.0


def tune(
    client: EngineClient,
    prompts: Sequence[Prompt],
    settings: TuneSettings,
    clock: Callable[[], float] = time.perf_counter,
) -> Advice:
    """Measure the engine that `client` asks, and choose its settings.

    Raises InvalidRequest for an engine without a drafter or too few prompts, and EngineError.
    """
    check_prompts(prompts)
    draft_len = check_drafting(client.description.draft_len, client.url)
    prober = Prober(client, prompts, settings.seconds, clock)
    prober.warm_up(settings.at_once)
    by_request = client.description.capabilities.speculation_off
    measure = measure_by_request if by_request else measure_whole
    sizes = sizes_up_to(settings.at_once)
    measured = measure(prober, sizes, draft_len, settings.tokens)
    left_out = ", ".join(str(size) for size in sizes if size not in measured.costs.sizes)
    if left_out:
        measured.notes.append(f"not timed, for lack of time or of common steps: {left_out} at once")
    return advise(measured)


__all__ = ["Advice", "ContextShare", "Gain", "Setting", "TuneSettings", "tune"]

"""The engine as benchmarks, evaluations and profiles drive it.

Everything that reaches behind the engine's public methods stands here, and nowhere else in these
rooms.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline.core import OutputDelta, Request, SamplingParams, SpeculativeParams

if TYPE_CHECKING:
    from paceline.drafters.base import Drafter
    from paceline.engine.engine import Engine


def fresh_requests(
    engine: Engine,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    speculation: SpeculativeParams,
    *,
    salt: bytes | None = None,
    cohort: str = "",
) -> list[Request]:
    """Return the requests of a prompt under an id that nothing else has.

    Without `salt` they have a scope to themselves: no prefix hit and no remembered answer helps
    them. `cohort` is what their acceptance is counted with.
    """
    name = uuid.uuid4()
    return engine.make_requests(
        list(prompt_ids),
        params,
        speculation,
        request_id=f"bench-{name.hex}",
        salt=name.bytes if salt is None else salt,
        cohort=cohort,
    )


def run(engine: Engine, requests: Sequence[Request]) -> Iterator[OutputDelta]:
    """Yield what each step adds, until the engine has nothing left to do."""
    yield from engine.add(requests)
    while engine.has_work:
        yield from engine.step()


@contextmanager
def only(engine: Engine, requests: Sequence[Request]) -> Iterator[None]:
    """Let the steps within be for these requests alone. The other running ones are set aside with
    their KV in place, and come back afterwards."""
    scheduler = engine.scheduler
    aside = [request for request in scheduler.running if request not in requests]
    scheduler.running = [request for request in scheduler.running if request in requests]
    try:
        yield
    finally:
        scheduler.running = [*aside, *scheduler.running]


def drafting_seconds(engine: Engine) -> float:
    """Return the time spent on drafting and observing since the start."""
    return engine.drafting.seconds


@contextmanager
def accepting(engine: Engine, rates: Sequence[float]) -> Iterator[None]:
    """Draw how many draft tokens stand in the steps within from these rates by position."""
    from paceline.engine.verify import make_verifier

    before, engine.verifier = engine.verifier, make_verifier("synthetic", tuple(rates))
    try:
        yield
    finally:
        engine.verifier = before


def wrap_drafter(engine: Engine, name: str, wrap: Callable[[Drafter], Drafter]) -> None:
    """Replace a registered drafter by one that stands in for it."""
    drafter = wrap(engine.drafters[name])
    for drafters in (engine.drafters, engine.drafting.drafters):
        drafters[name] = drafter  # type: ignore[index]

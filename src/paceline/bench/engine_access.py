"""The engine as benchmarks, evaluations and profiles drive it: requests in a fresh scope, and the
engine's driver."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from paceline.core import OutputDelta, Request, SamplingParams, SpeculativeParams
from paceline.engine.driver import Driver
from paceline.engine.engine import Engine
from paceline.engine.verify import make_verifier


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
    """Yield what each step adds to requests, until all of them have finished."""
    return Driver(engine).run(requests)


def only(engine: Engine, requests: Sequence[Request]) -> AbstractContextManager[None]:
    """Let the steps within be for these requests alone. The other running ones are set aside with
    their KV in place, and come back afterwards."""
    return Driver(engine).only(requests)


def drafting_seconds(engine: Engine) -> float:
    """Return the time spent on drafting and observing since the start."""
    return engine.drafting.seconds


def accepting(engine: Engine, rates: Sequence[float]) -> AbstractContextManager[None]:
    """Draw how many draft tokens stand in the steps within from these rates by position."""
    return Driver(engine).rule(make_verifier("synthetic", tuple(rates)))

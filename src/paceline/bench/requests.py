"""Requests of benchmarks, evaluations and profiles: each in a fresh scope."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.core import Request, SamplingParams, SpeculativeParams

if TYPE_CHECKING:
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

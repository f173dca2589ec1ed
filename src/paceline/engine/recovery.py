"""Brings the engine back to order after a step that failed as a whole."""

from __future__ import annotations

import logging

from paceline.core import OutputDelta, PacelineError, Request
from paceline.engine.roster import Roster
from paceline.engine.runner import try_out
from paceline.engine.scheduler import Plan

log = logging.getLogger(__name__)


class EngineFailed(PacelineError):
    """A step failed and the engine could not be brought back to order: it cannot go on."""


def recover(roster: Roster, plan: Plan | None, error: Exception) -> list[OutputDelta]:
    """End the requests that a step which raised `error` may have harmed, repair what it left half
    done, and return their last deltas. `plan` is None where the step was not planned yet.

    Raises EngineFailed when that fails.
    """
    log.error("a step failed: its requests end", exc_info=error)
    scheduler, cache = roster.scheduler, roster.cache
    roster.counters.failed_steps += 1
    try:
        deltas = [roster.fail(request, error) for request in _harmed(roster, plan)]
        queued = {request.id for request in (*scheduler.running, *scheduler.waiting)}
        for request in list(roster.requests.values()):
            if request.id not in queued:  # the error came between two queues
                scheduler.requeue(request)
        for request in scheduler.waiting:
            roster.leave(request)
        try:
            cache.check_integrity(scheduler.running)
        except AssertionError as wrong:
            log.error("the bookkeeping of KV blocks is made anew: %s", wrong)
            cache.repair(scheduler.running)
    except Exception as failure:
        raise EngineFailed(f"the engine cannot go on after {error!r}: {failure}") from failure
    roster.target_in_doubt = True
    return deltas


def try_out_target(roster: Roster, name: str, longest: int) -> None:
    """Raises EngineFailed where the target gives no usable logits any more."""
    roster.target_in_doubt = False
    block = roster.cache.unused_block()
    if block is None:
        return
    try:
        try_out(roster.runner.network, name, longest=longest, block=block)
    except Exception as error:
        raise EngineFailed(f"the engine cannot go on: {error}") from error


def _harmed(roster: Roster, plan: Plan | None) -> list[Request]:
    """The requests of the failed step, or all that run where it was not planned yet: at least one
    where there is any, so that the same error cannot come back for ever."""
    if plan is not None and plan.scheduled:
        return [e.request for e in plan.scheduled if e.request.id in roster.requests]
    return list(roster.scheduler.running) or list(roster.scheduler.waiting)[:1]

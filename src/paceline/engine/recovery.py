"""Brings the engine back to order after a step that failed as a whole."""

from __future__ import annotations

import logging

from paceline.core import OutputDelta, PacelineError, Request
from paceline.engine.kv_cache import KVCache
from paceline.engine.roster import Roster
from paceline.engine.scheduler import Plan, Scheduler
from paceline.engine.try_out import try_out
from paceline.models.batch import Network

log = logging.getLogger(__name__)


class EngineFailed(PacelineError):
    """A step failed and the engine could not be brought back to order: it cannot go on."""


class Recovery:
    """Ends the requests that a failed step may have harmed, and repairs what it left half done.
    Belongs to the engine's thread."""

    def __init__(
        self,
        model_name: str,
        network: Network,
        max_model_len: int,
        cache: KVCache,
        scheduler: Scheduler,
        roster: Roster,
    ) -> None:
        self._model_name, self._network, self._max_model_len = model_name, network, max_model_len
        self._cache, self._scheduler, self._roster = cache, scheduler, roster

    def recover(self, plan: Plan | None, error: Exception) -> list[OutputDelta]:
        """End the requests of a step that raised `error`, and return their last deltas. `plan` is
        None where the error came before the step was planned.

        Raises EngineFailed when that fails.
        """
        log.error("a step failed: its requests end", exc_info=error)
        scheduler, roster = self._scheduler, self._roster
        roster.counters.failed_steps += 1
        try:
            deltas = [roster.fail(request, error) for request in self._harmed(plan)]
            queued = {request.id for request in (*scheduler.running, *scheduler.waiting)}
            for request in list(roster.requests.values()):
                if request.id not in queued:  # the error came between two queues
                    scheduler.requeue(request)
            for request in scheduler.waiting:
                roster.leave(request)
            try:
                self._cache.check_integrity(scheduler.running)
            except AssertionError as wrong:
                log.error("the bookkeeping of KV blocks is made anew: %s", wrong)
                self._cache.repair(scheduler.running)
        except Exception as failure:
            raise EngineFailed(f"the engine cannot go on after {error!r}: {failure}") from failure
        roster.target_in_doubt = True
        return deltas

    def try_out_target(self) -> None:
        """Raises EngineFailed where the target gives no usable logits any more."""
        self._roster.target_in_doubt = False
        block = self._cache.unused_block()
        if block is None:
            return
        try:
            try_out(self._network, self._model_name, longest=self._max_model_len, block=block)
        except Exception as error:
            raise EngineFailed(f"the engine cannot go on: {error}") from error

    def _harmed(self, plan: Plan | None) -> list[Request]:
        """Requests that a failed step may have harmed: those it was made of, or all that run where
        the error came before that was known. At least one where there is any, so that the same
        error cannot come back for ever."""
        if plan is not None and plan.scheduled:
            requests = self._roster.requests
            return [e.request for e in plan.scheduled if e.request.id in requests]
        return list(self._scheduler.running) or list(self._scheduler.waiting)[:1]

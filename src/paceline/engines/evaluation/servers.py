"""Who answers which side of an evaluation: servers that run already, or replicas of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from paceline.core.rounds import AR
from paceline.engines.answers import EngineAsk
from paceline.engines.client import EngineClient, EngineError
from paceline.evaluate.result import BLOCK, POLICY

SPARE = 1.1  # of what the first replica took, to start the second beside it
FULL_POLICY = {"speculative": {"policy": "fixed"}}  # our own server's, for one request


class Servers(Protocol):
    """The servers of an evaluation. Closing them stops what they started."""

    together: bool
    """whether all sides can be asked at any time; otherwise a change of sides takes a restart"""
    engine: EngineClient
    """the engine that is evaluated, as it was first"""
    reference: str | None
    """what answers without speculation, in words"""

    def client(self, side: str) -> EngineClient:
        """Return the server that answers a side, started where it does not run. Raises
        EngineError."""

    def failure(self, error: EngineError) -> EngineError:
        """Return an engine's failure with what else is known of it."""

    def close(self) -> None:
        """Stop every server that was started."""


def sides_of(servers: Servers) -> tuple[str, ...]:
    """Return the sides to ask: AR where something answers it, and the engine as it serves; our own
    server is also asked for whole drafts, which acceptance is measured on."""
    plain = () if servers.reference is None else (AR,)
    own = servers.engine.description.capabilities.speculation_off
    return (*plain, POLICY, BLOCK) if own else (*plain, BLOCK)


def of_side(client: EngineClient, side: str, ask: EngineAsk) -> EngineAsk:
    """Return the request as one side's: what a server can be told for one request it is told."""
    if not client.description.capabilities.speculation_off:
        return replace(ask, speculative=False) if side == AR else ask
    fields = {**ask.fields, **(FULL_POLICY if side == BLOCK else {})}
    return replace(ask, fields=fields, speculative=False if side == AR else None)


class RunningServers:
    """An engine at an address, and where there is one a second server without speculation."""

    together = True

    def __init__(self, engine: EngineClient, reference: EngineClient | None = None) -> None:
        self.engine, self._plain = engine, reference
        if reference is not None:
            kind = reference.description.kind
            self.reference: str | None = f"a second server ({kind}) without speculation"
        elif engine.description.capabilities.speculation_off:
            self.reference = "the same server with speculation off"
        else:
            self.reference = None

    def client(self, side: str) -> EngineClient:
        return self._plain if side == AR and self._plain is not None else self.engine

    def failure(self, error: EngineError) -> EngineError:
        return error

    def close(self) -> None:
        self.engine.close()
        if self._plain is not None:
            self._plain.close()


class Replica(Protocol):
    """A server that was started for an evaluation."""

    @property
    def client(self) -> EngineClient:
        """What asks it."""

    def failure(self) -> str | None:
        """Return how it ended, with the end of its output; None while it runs."""

    def stop(self) -> None:
        """End it, with all its processes."""


class Replicas:
    """Replicas of one engine with and without speculation, started here.

    `start(speculative)` starts one and waits for it; `free()` are the bytes of memory that are free
    where it runs. Both run at once where what the first took is free once more; otherwise a change
    of sides ends one and starts the other.
    """

    def __init__(self, start: Callable[[bool], Replica], free: Callable[[], int]) -> None:
        """Start the replica that speculates. Raises EngineError."""
        self._start, self._running = start, dict[bool, Replica]()
        before = free()
        try:
            first = self._running[True] = start(True)
        except BaseException:
            self.close()
            raise
        left = free()
        self.together = left > SPARE * (before - left)
        self.engine = first.client
        how = "beside it" if self.together else "in its place, in turns"
        self.reference: str | None = f"a replica without speculation, started {how}"

    def client(self, side: str) -> EngineClient:
        speculative = side != AR
        if speculative not in self._running:
            if not self.together:
                self.close()
            self._running[speculative] = self._start(speculative)
        return self._running[speculative].client

    def failure(self, error: EngineError) -> EngineError:
        """Add how a replica of ours ended."""
        ended = [told for replica in self._running.values() if (told := replica.failure())]
        return EngineError("; ".join([str(error), *ended]))

    def close(self) -> None:
        while self._running:
            self._running.popitem()[1].stop()

"""How a drafter is replaced: on every engine by a new replica, which a failure cannot harm."""

from __future__ import annotations

import shlex

from paceline.engines.kind import EngineLaunch


def new_replica(line: EngineLaunch) -> tuple[str, ...]:
    """Return the steps that replace a drafter by a replica that has the new one."""
    return (
        f"start a replica with the new drafter on another port: {shlex.join(line.command)}",
        "wait until its /health answers 200",
        "move the weight at the gateway from the old replica to the new one",
        "wait until the old replica's metrics show no running and no waiting request",
        "send SIGTERM to the old replica; to roll back before that, move the weight back",
    )

"""Build drafters for a target that is being served, on a thread beside it."""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from paceline.core import InvalidRequest, ModelError, PacelineError
from paceline.core.spec_line import SpecLine
from paceline.drafters.base import Drafter, TargetInfo
from paceline.drafters.kinds import BuildContext
from paceline.drafters.spec import make_drafters, network_folders
from paceline.engine.machine import free_memory, in_background
from paceline.engine.memory import MemoryPlan
from paceline.engine.needs import size_text
from paceline.models.mocked import drafter_bytes

log = logging.getLogger(__name__)


class NoRoom(PacelineError):
    """A drafter does not fit what is kept for drafters, or what the machine has free."""


class LoadFailed(PacelineError):
    """A drafter could not be loaded, and nobody had foreseen why."""


@dataclass(frozen=True, slots=True)
class DrafterBytes:
    """The memory that a drafter takes, in bytes."""

    weights: int
    kv: int = 0

    @classmethod
    def of(cls, drafter: Drafter, plan: MemoryPlan) -> DrafterBytes:
        return cls(drafter.weight_bytes, plan.kv_bytes_of(drafter))

    @property
    def total(self) -> int:
        return self.weights + self.kv


@dataclass(frozen=True, slots=True)
class DrafterBuilder:
    """Builds drafters for one engine. `context` says how it runs, `plan` how its memory is divided.
    Any thread may build; what is shared with the target is only read."""

    context: BuildContext
    target: TargetInfo
    plan: MemoryPlan

    def build(self, name: str, spec: str, room: int) -> Drafter:
        """Return the drafter of a spec under this name, attached to the target, where it takes no
        more than `room` bytes. Nothing of it is left where that fails.

        Raises InvalidRequest (field `spec`) for a spec that is wrong or does not fit the target,
        NoRoom for a drafter that is too large, and LoadFailed.
        """
        try:
            return in_background(partial(self._build, name, spec, room))
        except (InvalidRequest, ModelError) as error:
            expected = error.expected if isinstance(error, InvalidRequest) else str(error)
            refusal: PacelineError = InvalidRequest("spec", spec, expected, f"spec: {error}")
        except NoRoom as error:
            refusal = NoRoom(str(error))
        except Exception as error:
            # as text: a log's record would keep the frames
            log.error("drafter %s cannot be loaded\n%s", name, traceback.format_exc())
            refusal = LoadFailed(f"spec: {spec} cannot be loaded: {error!r}")
        raise refusal  # here: the frames that the first error came through hold what was loaded

    def _build(self, name: str, spec: str, room: int) -> Drafter:
        text = _named(name, spec)
        least = 0
        for folder in network_folders([text], self.target.name):
            with suppress(ModelError):  # what is wrong with a drafter is said when it is built
                least += drafter_bytes(folder / "config.json", self.context.dtype)
        least //= 2  # where its layers become int8
        self._check_room(name, DrafterBytes(least), room, "at least ")
        drafter = make_drafters([text], self.context)[name]
        drafter.plan(self.target)
        self._check_room(name, DrafterBytes.of(drafter, self.plan), room)
        drafter.attach(self.target)
        return drafter

    def _check_room(self, name: str, needs: DrafterBytes, room: int, bound: str = "") -> None:
        parts = f"weights {size_text(needs.weights)}, KV {size_text(needs.kv)}"
        text = f"drafter {name} needs {bound}{size_text(needs.total)} of memory ({parts}), and "
        if needs.total > room:
            spare = self.plan.spare_bytes + needs.total - room
            remedy = f"retire a drafter, or start with --spare-drafter-memory {_option(spare)}"
            missing = size_text(needs.total - room)
            kept = f"{size_text(room)} are left of what is kept for drafters"
            raise NoRoom(f"{text}{kept}: {missing} are missing; {remedy}")
        free = free_memory(self.context.device)
        if needs.total > free:
            missing = size_text(needs.total - free)
            raise NoRoom(f"{text}{size_text(free)} are free on this machine: {missing} are missing")


def _named(name: str, spec: str) -> str:
    """Return a spec that registers its drafter as `name`. Raises InvalidRequest for another."""
    stated = SpecLine.parse(spec).name
    if stated is None:
        return f"{name}={spec}"
    if stated != name:
        raise InvalidRequest("spec", spec, f"a spec without a name, or with {name}=")
    return spec


def _option(count: int) -> str:
    """Return bytes as an option takes them, rounded up to whole MiB."""
    return f"{-(-count // 2**20)}MiB"

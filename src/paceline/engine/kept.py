"""Measurements that take seconds: kept in the user's cache, by what they depend on."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from paceline.core import CacheError
from paceline.core.cache import cache_dir, load_json, save_json, tell_unkept

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """The measurement of `key` in one room of the cache, a dataclass of type `kind`."""

    room: str
    key: dict[str, object]
    kind: type[T]

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()
        return cache_dir() / self.room / f"{digest[:24]}.json"

    def read(self) -> T | None:
        """Return the measurement; None where there is none, and, with a line in the log, where it
        cannot be believed."""
        try:
            return TypeAdapter(self.kind).validate_python(load_json(self.path)["measured"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            reason: object = error
            if isinstance(error, ValidationError):
                wrong = error.errors()[0]
                reason = f"{'.'.join(map(str, wrong['loc'])) or 'measured'}: {wrong['msg']}"
            text = "%s in %s cannot be used (%s): measuring again"
            log.warning(text, self.room, self.path, reason)
            return None

    def write(self, measured: T) -> T:
        """Keep it where that can be done, and return it."""
        values = TypeAdapter(self.kind).dump_python(measured)
        try:
            save_json(self.path, {"key": self.key, "measured": values})
        except CacheError as error:
            tell_unkept(f"{self.room} cannot be kept and will be measured at each start", error)
        return measured

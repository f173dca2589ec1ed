"""Which requests the canary gets: those whose stable hash lies below its share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

BITS = 53  # of the hash, as many as a float holds exactly


def place_of(salt: str, key: str) -> float:
    """Return the place in [0, 1) of a session or request. It is the same everywhere and for ever,
    so the requests of a share are among those of any larger share."""
    digest = hashlib.sha256(f"{salt}\n{key}".encode()).digest()
    return float(int.from_bytes(digest[:8], "big") >> (64 - BITS)) / 2.0**BITS


def canary_rule(match: Mapping[str, str], live: str, canary: str, percent: float) -> dict[str, Any]:
    """Return the rule of `PUT /v1/drafters/routes` that gives the canary its share of some
    cohorts. The canary comes first: its requests are those with the lowest places."""
    share = percent / 100
    shares = {canary: share, live: 1 - share} if share < 1 else {canary: 1.0}
    return {"match": dict(match), "shares": shares}

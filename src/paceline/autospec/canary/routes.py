"""The route that gives a canary its share of some cohorts' sessions.

The server draws by a stable hash of the session (`engine/routes.py`): a share that grows keeps the
sessions that it has, as long as the salt stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def canary_rule(match: Mapping[str, str], live: str, canary: str, percent: float) -> dict[str, Any]:
    """Return an item of `cohorts` of `PUT /v1/drafters/routes`. `percent` goes to the canary, and
    the rest to the live drafter."""
    share = percent / 100
    shares = {canary: share, live: 1 - share} if share < 1 else {canary: 1.0}
    return {"match": dict(match), "shares": shares}

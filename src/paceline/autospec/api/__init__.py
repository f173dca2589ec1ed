"""The paths below /v1/autospec: what a store of drafters says, and promotions by the admin key."""

from __future__ import annotations

from paceline.autospec.api.routes import autospec_extension

__all__ = ["autospec_extension"]

"""The error of everything that an endpoint does."""

from __future__ import annotations

from paceline.core import PacelineError


class EndpointError(PacelineError):
    """An endpoint could not do what it was asked; what was running goes on as before."""

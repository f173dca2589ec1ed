"""The error of everything that an endpoint does."""

from __future__ import annotations

from paceline.autospec.serving import ServingError


class EndpointError(ServingError):
    """An endpoint could not do what it was asked; what was running goes on as before."""

"""What a later room adds to a server: routes, and the tab of the page that reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.params import Depends


@dataclass(frozen=True, slots=True)
class ServerExtension:
    """Routes that a server does not have by itself.

    add    adds them to an app; the list goes to the routers of those that an API key opens
    tab    the tab of the page that reads them
    admin  the paths that need the admin key, and no API key
    """

    add: Callable[[FastAPI, list[Depends]], None]
    tab: str
    admin: frozenset[str] = frozenset()

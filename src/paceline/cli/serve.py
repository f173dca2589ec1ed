"""The commands that listen: `paceline serve`, the server, and `paceline ui`, its page alone."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Annotated

from rich.console import Console

from paceline.cli import show
from paceline.cli.options import DEFAULTS, MODEL_HELP, Only, Positional
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.engine.config import EngineConfig
from paceline.server.settings import SHARE_ANSWERS, ServerSettings

KEY_VARIABLE = "PACELINE_API_KEY"
UI_PORT = 8800  # beside a server on its own default port


@checked
class ServeCommand:
    """Serve a model over an OpenAI-compatible HTTP API.

    SIGINT or SIGTERM ends it, once the running requests are finished; a second signal aborts them.
    """

    model: Positional = about(MODEL_HELP, DEFAULTS.model)
    server: ServerSettings = ServerSettings()
    engine: EngineConfig = DEFAULTS

    def run(self) -> int:
        settings = with_key(self.server)

        from paceline.engine.async_engine import AsyncEngine
        from paceline.engine.build import build_engine
        from paceline.engine.startup import start_up_rows
        from paceline.server.listener import connection_bound
        from paceline.server.run import bind, serve

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("uvicorn").setLevel(
            logging.WARNING
        )  # its start-up lines tell nothing new
        connection_bound(settings)  # these two before the model: what is wrong is noticed at once
        sock = bind(settings)
        engine = build_engine(self.engine)
        console = Console(highlight=False)
        console.print(show.start_up_table(start_up_rows(engine)))
        console.print(sharing(settings), soft_wrap=True)
        serve(AsyncEngine(engine), settings, sock=sock)
        return 0


@checked
class UiCommand:
    """Serve the web page alone: the calculator and the token timing, without a model.

    SIGINT or SIGTERM ends it. `paceline serve` has the page too, with a playground and a live view
    of the served model.
    """

    server: Annotated[ServerSettings, Only(("host", "port", "api_keys", "allow_hosts"))] = (
        ServerSettings(port=UI_PORT)
    )

    def run(self) -> int:
        settings = with_key(self.server)

        from paceline.server.run import serve_ui

        serve_ui(settings, on_ready=lambda url: print(f"Paceline's page is at {url}/", flush=True))
        return 0


def sharing(settings: ServerSettings) -> str:
    """Say in one line what requests share."""
    key = "API key, " if settings.api_keys else ""
    nobody = "" if settings.api_keys else " (there are no API keys)"
    shared = f"Requests with the same {key}cache_salt and user{nobody} share cached prompts."
    return f"{shared} {SHARE_ANSWERS[settings.share_answers]}"


def with_key(settings: ServerSettings) -> ServerSettings:
    """Return settings with the API key of the environment. Raises InvalidRequest where options
    name keys as well."""
    key = os.environ.get(KEY_VARIABLE)
    if key and settings.api_keys:
        raise InvalidRequest("api_key", "<hidden>", f"--api-key or {KEY_VARIABLE}, not both")
    return replace(settings, api_keys=(key,)) if key else settings

"""`paceline serve`: the OpenAI-compatible server."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from rich.console import Console

from paceline.cli import options, show
from paceline.core import InvalidRequest
from paceline.server.settings import SHARE_ANSWERS, ServerSettings

KEY_VARIABLE = "PACELINE_API_KEY"


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a model over an OpenAI-compatible HTTP API",
        description="Serve one model until SIGINT or SIGTERM, then finish the running requests; a "
        "second signal aborts them.",
    )
    options.add_model_argument(parser)
    group = parser.add_argument_group("server")
    options.add_options(group, ServerSettings, *options.options_of(ServerSettings))
    options.add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = options.engine_config(args)
    settings = server_settings(args)

    from paceline.engine.async_engine import AsyncEngine
    from paceline.engine.build import build_engine
    from paceline.engine.startup import start_up_rows
    from paceline.server.listener import connection_bound
    from paceline.server.run import bind, serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start-up lines tell nothing new
    connection_bound(settings)  # these two before the model: what is wrong is noticed at once
    sock = bind(settings)
    engine = build_engine(config)
    console = Console(highlight=False)
    console.print(show.start_up_table(start_up_rows(engine)))
    console.print(sharing(settings), soft_wrap=True)
    serve(AsyncEngine(engine), settings, sock=sock)
    return 0


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """Return the settings that the options of a command state, with the API keys in use."""
    return options.read_options(args, ServerSettings, api_keys=api_keys(args.api_key))


def sharing(settings: ServerSettings) -> str:
    """Say in one line what requests share."""
    key = "API key, " if settings.api_keys else ""
    nobody = "" if settings.api_keys else " (there are no API keys)"
    shared = f"Requests with the same {key}cache_salt and user{nobody} share cached prompts."
    return f"{shared} {SHARE_ANSWERS[settings.share_answers]}"


def api_keys(given: list[str] | None) -> tuple[str, ...]:
    """Return the API keys from the option or from the environment; both together are refused."""
    from_environment = os.environ.get(KEY_VARIABLE)
    if given and from_environment:
        raise InvalidRequest("api_key", "<hidden>", f"--api-key or {KEY_VARIABLE}, not both")
    return tuple(given or ([from_environment] if from_environment else []))

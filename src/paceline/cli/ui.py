"""`paceline ui`: the web page without a model."""

from __future__ import annotations

import argparse
from typing import Any

from paceline.cli import options
from paceline.cli.serve import server_settings
from paceline.server.settings import ServerSettings

PORT = 8800  # beside a server on its own default port


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "ui",
        help="the web page alone: the calculator and the token timing, without a model",
        description="Serve the page until SIGINT or SIGTERM. `paceline serve` has the page too, "
        "with a playground and a live view of the served model.",
    )
    options.add_options(
        parser, ServerSettings, "host", "port", "api_keys", "allow_hosts", port=PORT
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = server_settings(args)

    from paceline.server.run import serve_ui

    serve_ui(settings, on_ready=lambda url: print(f"Paceline's page is at {url}/", flush=True))
    return 0

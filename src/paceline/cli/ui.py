"""`paceline ui`: the web page without a model."""

from __future__ import annotations

import argparse
from typing import Any

from paceline.cli.serve import DEFAULTS, add_allow_host, api_keys
from paceline.server.settings import ServerSettings

PORT = 8800  # beside a server on its own default port


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "ui",
        help="the web page alone: the calculator and the token timing, without a model",
        description="Serves the page until SIGINT or SIGTERM. `paceline serve` has it too, with a "
        "playground and a live view of the model that it serves.",
    )
    parser.add_argument(
        "--host", default=DEFAULTS.host, help="where to listen (default: %(default)s, loopback)"
    )
    parser.add_argument(
        "--port", type=int, default=PORT, help="0 takes a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="key that the page asks for before it computes; repeatable (default: open to all who "
        "reach the port)",
    )
    add_allow_host(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = ServerSettings(
        host=args.host,
        port=args.port,
        api_keys=api_keys(args.api_key),
        allow_hosts=tuple(args.allow_host),
    )

    from paceline.server.ui_run import serve_ui

    serve_ui(settings, on_ready=lambda url: print(f"Paceline's page is at {url}/", flush=True))
    return 0

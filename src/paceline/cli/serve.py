"""`paceline serve`: the OpenAI-compatible server."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from rich.console import Console

from paceline.cli import options, show
from paceline.core import InvalidRequest
from paceline.server.settings import SPEC_METRICS, ServerSettings

DEFAULTS = ServerSettings()
KEY_VARIABLE = "PACELINE_API_KEY"


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a model over an OpenAI-compatible HTTP API",
        description="Serves one model until SIGINT or SIGTERM, then finishes what is running; a "
        "second signal ends that as well.",
    )
    options.add_model_argument(parser)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default=DEFAULTS.host, help="where to listen (default: %(default)s, loopback)"
    )
    group.add_argument(
        "--port", type=int, default=DEFAULTS.port, help="0 takes a free one (default: %(default)s)"
    )
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"key that requests must bring; repeat it for several (or set {KEY_VARIABLE}, which "
        "a list of processes doesn't show; default: open to all who reach the port)",
    )
    group.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="name that requests use; repeat it for several (default: the model's own)",
    )
    group.add_argument(
        "--spec-metrics",
        choices=SPEC_METRICS,
        default=DEFAULTS.spec_metrics,
        help="what responses tell of their speculation (default: %(default)s)",
    )
    group.add_argument(
        "--drain-timeout",
        type=float,
        default=DEFAULTS.drain_timeout,
        metavar="SECONDS",
        help="time that running requests get after SIGTERM (default: %(default)g)",
    )
    group.add_argument(
        "--max-body",
        type=options.parse_bytes,
        default=DEFAULTS.max_body_bytes,
        metavar="SIZE",
        help="longest request body (default: 4MiB)",
    )
    options.add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = options.engine_config(args)
    settings = ServerSettings(
        host=args.host,
        port=args.port,
        api_keys=api_keys(args.api_key),
        served_model_names=tuple(args.served_model_name),
        spec_metrics=args.spec_metrics,
        drain_timeout=args.drain_timeout,
        max_body_bytes=args.max_body,
    )

    from paceline.engine.async_engine import AsyncEngine
    from paceline.engine.build import build_engine
    from paceline.server.run import bind, serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start-up lines tell nothing new
    sock = bind(settings)  # before the model: a taken port is noticed at once
    engine = build_engine(config)
    Console(highlight=False).print(show.start_up_table(engine.start_up_table()))
    serve(AsyncEngine(engine), settings, sock=sock)
    return 0


def api_keys(given: list[str]) -> tuple[str, ...]:
    from_environment = os.environ.get(KEY_VARIABLE)
    if given and from_environment:
        raise InvalidRequest("api_key", "<hidden>", f"--api-key or {KEY_VARIABLE}, not both")
    return tuple(given or ([from_environment] if from_environment else []))

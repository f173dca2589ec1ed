"""`paceline serve`: the OpenAI-compatible server."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from rich.console import Console

from paceline.cli import options, show
from paceline.core import InvalidRequest
from paceline.server.settings import SHARE_ANSWERS, SPEC_METRICS, ServerSettings

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
    group.add_argument(
        "--share-answers",
        choices=SHARE_ANSWERS,
        default=DEFAULTS.share_answers,
        help="whether drafts are looked up in other requests' answers: among requests that name "
        "the same cache_salt or user, among all with the same API key, or never (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--steady-stream",
        type=float,
        default=DEFAULTS.steady_stream,
        metavar="MS",
        help="write every stream in pieces of one size, one every so many milliseconds: the "
        "network sees neither sizes nor times of rounds (default: 0, off)",
    )
    add_connection_options(group)
    options.add_engine_options(parser)
    parser.set_defaults(run=run)


def add_connection_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--keep-alive",
        type=float,
        default=DEFAULTS.keep_alive,
        metavar="SECONDS",
        help="time that an idle connection is kept for the next request (default: %(default)g)",
    )
    group.add_argument(
        "--read-timeout",
        type=float,
        default=DEFAULTS.read_timeout,
        metavar="SECONDS",
        help="time that a client has to send its headers, and the longest pause in its body "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--write-timeout",
        type=float,
        default=DEFAULTS.write_timeout,
        metavar="SECONDS",
        help="time that a client may leave an answer unread before it is cut off (default: "
        "%(default)g)",
    )
    group.add_argument(
        "--max-connections",
        type=int,
        default=DEFAULTS.max_connections,
        metavar="N",
        help="most open connections (default: 1024, or what the limit of open files allows)",
    )
    add_allow_host(group)


def add_allow_host(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="name under which clients or a reverse proxy reach the server; repeat it for several. "
        "Without API keys a server on loopback answers to localhost only, and with this option "
        "any server to these names only",
    )


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
    return ServerSettings(
        host=args.host,
        port=args.port,
        api_keys=api_keys(args.api_key),
        served_model_names=tuple(args.served_model_name),
        spec_metrics=args.spec_metrics,
        drain_timeout=args.drain_timeout,
        max_body_bytes=args.max_body,
        share_answers=args.share_answers,
        steady_stream=args.steady_stream,
        keep_alive=args.keep_alive,
        read_timeout=args.read_timeout,
        write_timeout=args.write_timeout,
        max_connections=args.max_connections,
        allow_hosts=tuple(args.allow_host),
    )


def sharing(settings: ServerSettings) -> str:
    """Say in one line what requests share."""
    key = "API key, " if settings.api_keys else ""
    nobody = "" if settings.api_keys else " (there are no API keys)"
    shared = f"Requests with the same {key}cache_salt and user{nobody} share cached prompts."
    return f"{shared} {SHARE_ANSWERS[settings.share_answers]}"


def api_keys(given: list[str]) -> tuple[str, ...]:
    from_environment = os.environ.get(KEY_VARIABLE)
    if given and from_environment:
        raise InvalidRequest("api_key", "<hidden>", f"--api-key or {KEY_VARIABLE}, not both")
    return tuple(given or ([from_environment] if from_environment else []))

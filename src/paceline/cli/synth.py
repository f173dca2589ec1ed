"""`paceline synth`: a training set out of public prompts and the target's own answers."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.bench.load.client import served_model
from paceline.cli import options, synth_show
from paceline.cli.options import DEFAULTS
from paceline.core import InvalidRequest


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "synth",
        help="make a training set: public prompts, answered by the target",
        description="Answers the prompts that app.yaml describes, as the application would, and "
        "writes token ids with loss spans as Parquet. Run it again to go on where it stopped.",
    )
    parser.add_argument("app", type=Path, metavar="APP.yaml", help="the application")
    parser.add_argument("-o", "--out", type=Path, metavar="FOLDER", help="where the set goes")
    parser.add_argument("-m", "--model", help="the target, instead of the one that app.yaml names")
    parser.add_argument("--rows", type=int, help="rows to make, instead of app.yaml's size")
    parser.add_argument(
        "--preview", type=int, metavar="N", help="answer N prompts of each source, write nothing"
    )
    parser.add_argument("--restart", action="store_true", help="delete what FOLDER holds of a set")
    parser.add_argument(
        "--user-data",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="allow sources that are marked as users' own data (default: no)",
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    group = parser.add_argument_group("servers, instead of an engine of our own")
    group.add_argument(
        "--url",
        action="append",
        metavar="URL",
        help="an OpenAI-compatible server of the target, as http://10.0.0.1:8000; repeatable",
    )
    group.add_argument("--served-model", metavar="NAME", help="the target's id there")
    group.add_argument("--api-key", help="the servers' API key")
    group.add_argument(
        "--concurrency", type=int, help="requests in flight over all servers (default: 64)"
    )
    _add_engine_options(parser)
    parser.set_defaults(run=run)


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    options.add_network_options(group)
    group.add_argument(
        "--max-num-seqs", type=int, default=DEFAULTS.max_num_seqs, help="requests at once"
    )
    group.add_argument("--kv-memory", type=options.parse_bytes, metavar="SIZE")
    group.add_argument(
        "--drafter", action="append", metavar="SPEC", help="speculate; the text stays the same"
    )


def run(args: argparse.Namespace) -> int:
    _check(args)

    from paceline.synth.app import load_app
    from paceline.synth.job import prepare, read

    app = load_app(args.app)
    if args.model is not None:
        app = app.model_copy(update={"model": args.model})
    if args.rows is not None:
        app = app.with_size(args.rows)
    sources = read(app, user_data=args.user_data, endpoint=args.url is not None)
    console = Console(highlight=False, stderr=args.json)
    console.print(synth_show.source_table(app, sources))
    job = prepare(app, sources, user_data=args.user_data)
    if args.out is not None:
        job.check(args.out, restart=args.restart)
    answerer = _answerer(args, job)
    if args.out is None:
        synth_show.preview(console, job, answerer, args.preview)
        return 0
    with synth_show.SynthProgressBar(app) as bar:
        collector = job.make(args.out, answerer, restart=args.restart, progress=bar.show)
    if args.json:
        counts = collector.manifest.counts
        summary = {"set": str(args.out), "complete": collector.complete, "counts": counts}
        print(json.dumps(summary | answerer.speed().as_json()))
    else:
        synth_show.report(console, args.out, collector, answerer.speed())
    return 0


def _check(args: argparse.Namespace) -> None:
    for field in ("preview", "rows", "concurrency"):
        value = getattr(args, field)
        if value is not None and value < 1:
            raise InvalidRequest(field, value, "a whole number of at least 1")
    if (args.out is None) == (args.preview is None):
        raise InvalidRequest("out", args.out, "a folder for the set, or --preview instead")
    if args.url is None:
        for field in ("served_model", "api_key", "concurrency"):
            if getattr(args, field) is not None:
                raise InvalidRequest(field, getattr(args, field), "--url beside it")
        return
    parser = argparse.ArgumentParser()
    _add_engine_options(parser)
    plain = _engine_options(parser.parse_args([]))
    for field, value in _engine_options(args).items():
        if value != plain[field]:
            raise InvalidRequest(field, value, "no engine option beside --url: the server has them")


def _answerer(args: argparse.Namespace, job: Any) -> Any:
    """Raises InvalidRequest or ModelError where nobody could answer."""
    if args.url is None:
        return job.engine(**_engine_options(args))
    model = args.served_model or asyncio.run(served_model(args.url[0], args.api_key))
    limit = {} if args.concurrency is None else {"concurrency": args.concurrency}
    return job.servers(args.url, model, api_key=args.api_key, **limit)


def _engine_options(args: argparse.Namespace) -> dict[str, Any]:
    names = ("dtype", "device", "backend", "quantize", "threads", "max_num_seqs", "kv_memory")
    drafter = options.drafter_specs(args.drafter) if args.drafter else None
    return {name: getattr(args, name) for name in names} | {"drafter": drafter}

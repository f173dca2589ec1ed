"""`paceline explain`: show what each round of a request did, and why."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.bench.load.client import get_json
from paceline.bench.report import rounds
from paceline.cli import options
from paceline.core import InvalidRequest


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="show, round by round, what was drafted, accepted, forced and cut",
        description="Explain a request that a server has answered, given its id and --url, if it "
        'had "explain": true; or answer a --prompt here and explain that.',
    )
    parser.add_argument("id", nargs="?", help="with --url: the id of the answer, as chatcmpl-…")
    parser.add_argument("--url", help="a running server, as http://127.0.0.1:8000")
    parser.add_argument("--api-key", help="with --url: the API key that sent the request")
    parser.add_argument("--prompt", help="a user's message to answer and explain here")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a timeline as HTML too")
    parser.add_argument("--json", action="store_true", help="print the rounds as JSON")
    options.add_model_option(parser)
    options.add_sampling_options(parser, max_tokens=64, temperature=0.0)
    options.add_speculation_options(parser)
    options.add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if (args.prompt is None) == (args.id is None):
        raise InvalidRequest("id", args.id, "the id of an answer, or --prompt; one of the two")
    if (args.id is None) != (args.url is None):
        raise InvalidRequest("url", args.url, "a server's URL beside an id, and only there")
    answer = _asked(args) if args.id is not None else _answered(args)
    if args.json:
        print(json.dumps(answer, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        for choice in answer["choices"]:
            console.print(rounds.table(choice))
            console.print(rounds.summary(choice), style="dim")
        console.print(rounds.legend())
    if args.html is not None:
        args.html.write_text(rounds.page(answer), encoding="utf-8")
    return 0


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    path = f"/v1/requests/{args.id}/rounds"
    return asyncio.run(get_json(args.url, path, args.api_key))


def _answered(args: argparse.Namespace) -> dict[str, Any]:
    params, wish = options.sampling_params(args), options.speculative(args)
    config = options.engine_config(args)

    from paceline.core import SpeculativeParams
    from paceline.llm import LLM
    from paceline.server.rounds import round_shown
    from paceline.server.tokens import TokenTexts

    llm = LLM(config=config)
    engine, texts = llm.engine, TokenTexts(llm.tokenizer)
    ids = llm.encode_chat([{"role": "user", "content": args.prompt}])
    (request,) = engine.make_requests(
        ids, params, SpeculativeParams.parse(wish), request_id="explained", explain=True
    )
    deltas = list(llm.driver.run([request]))
    choice = {
        "index": 0,
        "finish_reason": request.finish_reason,
        "rounds": [round_shown(delta, texts) for delta in deltas if delta.explained],
        "rounds_left_out": 0,
    }
    return {"id": "explained", "model": engine.model_name, "choices": [choice]}

"""`paceline generate`: complete prompts once, offline."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from paceline.cli import options, show
from paceline.core import InvalidRequest


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "generate",
        help="complete prompts once, offline",
        description="Complete each prompt and print the text; statistics go to stderr.",
    )
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="a prompt; - reads stdin")
    parser.add_argument(
        "--chat", action="store_true", help="send each prompt as a user's message of a chat"
    )
    parser.add_argument("--stop", action="append", default=[], help="end before this string")
    parser.add_argument("-n", type=int, default=1, help="answers per prompt (default: 1)")
    parser.add_argument("--logprobs", type=int, help="with --json: top log-probabilities per token")
    parser.add_argument("--json", action="store_true", help="print everything, as JSON")
    options.add_model_option(parser)
    options.add_sampling_options(parser, max_tokens=256, temperature=0.0)
    options.add_speculation_options(parser)
    options.add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.logprobs is not None and not args.json:
        raise InvalidRequest("logprobs", args.logprobs, "--json beside it, which shows them")
    prompts = [read_stdin() if prompt == "-" else prompt for prompt in args.prompts]
    params = options.sampling_params(args, stop=tuple(args.stop), n=args.n, logprobs=args.logprobs)
    config, speculative = options.engine_config(args), options.speculative(args)

    from paceline.llm import LLM

    llm = LLM(config=config)
    if args.chat:
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        results = llm.chat(conversations, params, speculative=speculative)
    else:
        results = llm.generate(prompts, params, speculative=speculative)
    if args.json:
        print(json.dumps([dataclasses.asdict(result) for result in results], ensure_ascii=False))
        return 0
    console = show.stderr_console()
    for result in results:
        for choice in result.choices:
            print(choice.text)
            line = show.statistics_line(len(choice.token_ids), choice.stats, choice.metrics)
            console.print(line, style="dim", soft_wrap=True)
    return 0


def read_stdin() -> str:
    """Return the prompt on stdin, without the newline that `echo` and editors end it with."""
    return sys.stdin.read().removesuffix("\n")

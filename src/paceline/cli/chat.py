"""`paceline chat`: talk to a model in the terminal and see speculation happen."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from paceline.cli import options, show
from paceline.core import FinishReason, OutputDelta, SpeculationStats, TokenKind

HELP = "/reset forgets the conversation, /off and /on switch speculation, /quit leaves"


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description="Talk to a model. Tokens that were drafted and accepted are coloured. " + HELP,
    )
    options.add_model_argument(parser)
    parser.add_argument("--system", help="a system message")
    parser.add_argument("--no-color", action="store_true", help="plain text")
    options.add_sampling_options(parser, max_tokens=512, temperature=0.7)
    options.add_speculation_options(parser)
    options.add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    params, wish = options.sampling_params(args), options.speculative(args)
    config = options.engine_config(args)
    console = Console(highlight=False, no_color=args.no_color)

    from paceline.engine.startup import start_up_rows
    from paceline.llm import LLM

    llm = LLM(config=config)
    console.print(show.start_up_table(start_up_rows(llm.engine)))
    if not args.no_color:
        console.print(show.legend())
    console.print(HELP, style="dim")
    system = [{"role": "system", "content": args.system}] if args.system else []
    Conversation(llm, params, wish, console, system).loop()
    return 0


class Conversation:
    """A conversation: it reads lines until the end of input and answers each."""

    def __init__(
        self, llm: Any, params: Any, wish: Any, console: Console, system: list[dict[str, str]]
    ) -> None:
        self._llm, self._params, self._console = llm, params, console
        self._on: Any = None if wish == "off" else wish  # what /on goes back to
        self._wish: Any = wish
        self._system, self._messages = system, list(system)

    def loop(self) -> None:
        while True:
            try:
                line = self._console.input("[bold]> [/]").strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _command(self, line: str) -> None:
        if line == "/reset":
            self._messages = list(self._system)
        elif line == "/off":
            self._wish = "off"
        elif line == "/on":
            self._wish = self._on
        else:
            self._console.print(HELP, style="dim")

    def _answer(self, line: str) -> None:
        messages = [*self._messages, {"role": "user", "content": line}]
        colours, text, last = show.KindColours(self._llm.tokenizer), "", None
        stats = SpeculationStats()
        stream = self._llm.stream(messages, self._params, speculative=self._wish)
        try:
            for delta in stream:
                text, last = text + delta.text, delta
                if delta.round is not None:
                    stats.add(delta.round)
                for piece, kind in colours.feed(delta):
                    self._print(piece, kind)
        except KeyboardInterrupt:
            stream.close()  # aborts the request; the conversation goes on with what was said
        self._console.print()
        self._messages = [*messages, {"role": "assistant", "content": text}]
        if last is not None:
            self._report(last, stats)

    def _print(self, piece: str, kind: TokenKind) -> None:
        # soft_wrap: the terminal breaks lines, so that copied text keeps its own
        style = show.STYLES[kind]
        self._console.print(piece, style=style, end="", markup=False, soft_wrap=True)

    def _report(self, last: OutputDelta, stats: SpeculationStats) -> None:
        if last.finish_reason is FinishReason.ERROR:
            self._console.print(f"the engine failed: {last.error}", style="red")
            return
        line = show.statistics_line(last.completion_tokens, stats, last.metrics)
        self._console.print(line, style="dim", soft_wrap=True)

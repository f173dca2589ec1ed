"""`paceline chat`: talk to a model in the terminal and see speculation happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from paceline.cli import show
from paceline.cli.options import EngineCommand
from paceline.core import FinishReason, OutputDelta, SamplingParams, SpeculationStats, TokenKind
from paceline.core.document_help import about
from paceline.core.documents import checked

if TYPE_CHECKING:
    from paceline.llm import LLM

HELP = "/reset forgets the conversation, /off and /on switch speculation, /quit leaves"


@checked
class ChatCommand(EngineCommand):
    """Talk to a model in the terminal.

    Tokens that were drafted and accepted are coloured. /reset forgets the conversation, /off and
    /on switch speculation, /quit leaves.
    """

    system: str | None = about("a system message", None)
    no_color: bool = about("plain text", False)
    sampling: SamplingParams = SamplingParams(max_tokens=512, temperature=0.7)

    def run(self) -> int:
        console = Console(highlight=False, no_color=self.no_color)
        llm = show.load(console, self.engine)
        if not self.no_color:
            console.print(show.legend())
        console.print(HELP, style="dim")
        ChatSession(llm, self, console).loop()
        return 0


class ChatSession:
    """A conversation in the terminal: lines until the end of input, and an answer to each."""

    def __init__(self, llm: LLM, command: ChatCommand, console: Console) -> None:
        self._llm, self._params, self._console = llm, command.sampling, console
        self._speculative = command.speculation.stated
        self._drafting = None if self._speculative == "off" else self._speculative  # for /on
        self._system = [{"role": "system", "content": command.system}] if command.system else []
        self._messages = list(self._system)

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
        elif line in ("/off", "/on"):
            self._speculative = "off" if line == "/off" else self._drafting
        else:
            self._console.print(HELP, style="dim")

    def _answer(self, line: str) -> None:
        messages = [*self._messages, {"role": "user", "content": line}]
        colours, text, last = show.KindColours(self._llm.tokenizer), "", None
        stats = SpeculationStats()
        stream = self._llm.stream(messages, self._params, self._speculative)
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

"""`paceline chat`: talk to a model in the terminal and see speculation happen."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import starmap
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from paceline.cli import show
from paceline.cli.options import AskCommand
from paceline.cli.remote import AnswerPiece, Messages, Speculative
from paceline.core import FinishReason, PacelineError, SamplingParams, SpeculationStats
from paceline.core.document_help import about
from paceline.core.documents import checked

if TYPE_CHECKING:
    from paceline.llm import LLM

HELP = "/reset forgets the conversation, /off and /on switch speculation, /quit leaves"


class Partner(Protocol):
    """A model that answers a conversation; `figures` are those of its latest answer."""

    figures: show.Figures

    def stream(
        self, messages: Messages, params: SamplingParams, speculative: Speculative
    ) -> Generator[AnswerPiece, None, None]:
        """Yield the pieces of an answer."""


class LocalModel:
    """A model that is loaded here, as a partner."""

    def __init__(self, llm: LLM) -> None:
        self._llm, self.figures = llm, show.Figures(0)

    def stream(
        self, messages: Messages, params: SamplingParams, speculative: Speculative
    ) -> Generator[AnswerPiece, None, None]:
        """Yield the pieces of an answer. Raises PacelineError where the engine fails."""
        colours, stats = show.KindColours(self._llm.tokenizer), SpeculationStats()
        for delta in self._llm.stream([*messages], params, speculative):
            if delta.round is not None:
                stats.add(delta.round)
            yield from starmap(AnswerPiece, colours.feed(delta))
            if delta.finish_reason is FinishReason.ERROR:
                raise PacelineError(f"the engine failed: {delta.error}")
            self.figures = show.Figures.of(delta.completion_tokens, stats, delta.metrics)


@checked
class ChatCommand(AskCommand):
    """Talk to a model in the terminal.

    Loads a model, or talks to that of the running server of --url. Tokens that were drafted and
    accepted are coloured. /reset forgets the conversation, /off and /on switch speculation, /quit
    leaves.
    """

    system: str | None = about("a system message", None)
    no_color: bool = about("plain text", False)
    sampling: SamplingParams = SamplingParams(max_tokens=512, temperature=0.7)

    def run(self) -> int:
        console = Console(highlight=False, no_color=self.no_color)
        partner: Partner = self.server() or LocalModel(show.load(console, self.engine))
        if not self.no_color:
            console.print(show.legend())
        console.print(HELP, style="dim")
        ChatSession(partner, self, console).loop()
        return 0


class ChatSession:
    """A conversation in the terminal: lines until the end of input, and an answer to each."""

    def __init__(self, partner: Partner, command: ChatCommand, console: Console) -> None:
        self._partner, self._params, self._console = partner, command.sampling, console
        self._speculative: Speculative = command.speculation.stated
        self._drafting = None if self._speculative == "off" else self._speculative  # for /on
        self._system = [{"role": "system", "content": command.system}] if command.system else []
        self._messages = list(self._system)
        self._commands: dict[str, Callable[[], str]] = {
            "/reset": self._reset,
            "/off": self._switch_off,
            "/on": self._switch_on,
        }

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
                done = self._commands.get(line)
                said = f"no such command: {line}; {HELP}" if done is None else done()
                self._console.print(said, style="dim", markup=False)
            elif line:
                self._answer(line)

    def _reset(self) -> str:
        self._messages = list(self._system)
        return "the conversation is forgotten"

    def _switch_off(self) -> str:
        self._speculative = "off"
        return "speculation is off: the model writes every token by itself"

    def _switch_on(self) -> str:
        self._speculative = self._drafting
        return "speculation is on"

    def _answer(self, line: str) -> None:
        messages = [*self._messages, {"role": "user", "content": line}]
        text, thinks, failed, figures = "", False, None, self._partner.figures
        stream = self._partner.stream(messages, self._params, self._speculative)
        try:
            for piece in stream:
                if thinks and not piece.is_thought:
                    self._console.print("\n")
                thinks = piece.is_thought
                if not thinks:
                    text += piece.text
                self._print(piece)
        except KeyboardInterrupt:
            stream.close()  # aborts the request; the conversation goes on with what was said
        except PacelineError as error:
            failed = str(error)
        self._console.print()
        self._messages = [*messages, {"role": "assistant", "content": text}]
        if failed is not None:
            self._messages = messages[:-1]
            self._console.print(failed, style="red", markup=False, soft_wrap=True)
        elif self._partner.figures is not figures:
            line = show.statistics_line(self._partner.figures)
            self._console.print(line, style="dim", soft_wrap=True)

    def _print(self, piece: AnswerPiece) -> None:
        # soft_wrap: the terminal breaks lines, so that copied text keeps its own
        style = show.STYLES[piece.kind]
        self._console.print(piece.text, style=style, end="", markup=False, soft_wrap=True)

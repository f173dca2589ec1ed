"""Output of the commands: the start-up table, answers in colour, their statistics."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TaskID
from rich.table import Table
from rich.text import Text

from paceline.cli.loading import open_model
from paceline.core import OutputDelta, RequestMetrics, SpeculationStats, TokenKind
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.llm import LLM
    from paceline.models.tokenizer import Tokenizer

SILENCE = 30.0  # seconds that a command says nothing, at most, while it works
UNCUT = 240  # columns of a report that no terminal shows
STYLES = {TokenKind.ACCEPTED: "green", TokenKind.FORCED: "cyan", TokenKind.BONUS: "default"}


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False)


def report_console(*, stderr: bool = False) -> Console:
    """Return a console for reports. Where no terminal sets the width, nor the variable COLUMNS, no
    table is cut: whoever reads a file can scroll."""
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNCUT
    return console


class SignsOfLife(Progress):
    """Bars on stderr that are gone at the end; where no terminal shows them, a line every half
    minute."""

    def __init__(self, *columns: str | ProgressColumn) -> None:
        console = stderr_console()
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._said = time.monotonic()

    def update(self, task_id: TaskID, *args: Any, **fields: Any) -> None:
        super().update(task_id, *args, **fields)
        now = time.monotonic()
        if self.disable and now - self._said >= SILENCE:
            self._said = now
            self.console.print(_line(self._tasks[task_id]), markup=False, soft_wrap=True)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        self.update(task_id, advance=advance)


def _line(task: Task) -> str:
    of = "" if task.total is None else f" of {task.total:.0f}"
    minutes, seconds = divmod(round(task.elapsed or 0), 60)
    more = [str(value) for value in task.fields.values() if value]
    return ", ".join(
        [f"{task.description}: {task.completed:.0f}{of} in {minutes}:{seconds:02d} min", *more]
    )


def progress() -> Progress:
    return SignsOfLife()


def load(console: Console, config: EngineConfig) -> LLM:
    """Load a model and print its start-up table."""
    llm = open_model(config)
    from paceline.engine.startup import start_up_rows

    console.print(start_up_table(start_up_rows(llm.engine)))
    return llm


def start_up_table(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(title="paceline", title_justify="left", show_header=False, title_style="bold")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, Text(str(value)))
    return table


def plain_table(*columns: str, left: Sequence[str] = ("",)) -> Table:
    """Return a table of numbers; the columns called `left` hold words.

    It is narrow enough for a terminal of 80 columns. Titles are lines of their own: a table's would
    wrap at its width.
    """
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def legend() -> Text:
    return Text.assemble(
        "tokens: ",
        ("accepted from the draft", STYLES[TokenKind.ACCEPTED]),
        " · ",
        ("from the model itself", STYLES[TokenKind.BONUS]),
    )


class KindColours:
    """Splits streamed text into drafted and other pieces.

    The pieces add up to the text of the deltas. Tokens are decoded again only to learn the kind of
    each character, since a character may need several tokens and text may be held back.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from paceline.engine.text import TextStream  # here, since few commands stream

        self._stream = TextStream(tokenizer, [])
        self._kinds: list[TokenKind] = []  # one per decoded character that is not shown yet

    def feed(self, delta: OutputDelta) -> Iterator[tuple[str, TokenKind]]:
        """Yield the delta's text in runs of one kind each."""
        for token, kind in zip(delta.token_ids, delta.kinds, strict=True):
            self._kinds += [kind] * len(self._stream.push(token))
        missing = len(delta.text) - len(self._kinds)
        kinds = self._kinds + [TokenKind.BONUS] * missing
        self._kinds = kinds[len(delta.text) :]
        for kind, run in groupby(zip(delta.text, kinds, strict=False), key=lambda pair: pair[1]):
            yield "".join(character for character, _ in run), kind


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts and times of one answer; times in seconds, None where they are not known."""

    tokens: int
    ttft: float | None = None
    tpot: float | None = None
    drafted: int = 0
    accepted: int = 0
    acceptance_length: float | None = None

    @classmethod
    def of(cls, tokens: int, stats: SpeculationStats, metrics: RequestMetrics | None) -> Figures:
        """Return the figures of a stream of an engine here."""
        return cls(
            tokens,
            None if metrics is None else metrics.ttft,
            None if metrics is None else metrics.tpot,
            stats.draft_tokens,
            stats.accepted_tokens,
            stats.acceptance_length if stats.draft_rounds else None,
        )

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any]) -> Figures:
        """Return the figures of a server's answer, from its `usage` and `metrics`."""
        metrics = answer.get("metrics") or {}
        counts = metrics.get("speculative_decoding") or {}
        return cls(
            answer["usage"]["completion_tokens"],
            metrics.get("ttft"),
            metrics.get("tpot"),
            counts.get("num_draft_tokens", 0),
            counts.get("num_accepted_draft_tokens", 0),
            counts.get("mean_acceptance_length"),
        )


def statistics_line(figures: Figures) -> str:
    """`42 tokens · TTFT 31 ms · TPOT 5.2 ms · AL 3.10 incl. bonus (33 of 40 drafted accepted)`."""
    parts = [f"{figures.tokens} tokens"]
    if figures.ttft is not None:
        parts.append(f"TTFT {1000 * figures.ttft:.0f} ms")
    if figures.tpot is not None:
        parts.append(f"TPOT {1000 * figures.tpot:.1f} ms")
    if figures.acceptance_length is not None:
        accepted = f"{figures.accepted} of {figures.drafted} drafted tokens accepted"
        parts.append(f"AL {figures.acceptance_length:.2f} incl. bonus ({accepted})")
    else:
        parts.append("nothing drafted")
    return " · ".join(parts)

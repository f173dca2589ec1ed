"""`python -m paceline.cli.demo`: a real model on a server, speculation off and on, side by side.

Exit code 0 when every text is the same token for token and the server stopped cleanly, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from paceline.bench.load.answers import MeasuredAnswer
from paceline.bench.load.client import ChatClient
from paceline.bench.load.paired import Pair, compare
from paceline.bench.load.server_process import ServerProcess
from paceline.bench.prompts import load_prompts
from paceline.bench.report import tables
from paceline.core import PacelineError
from paceline.engine.config import EngineConfig

MODEL = EngineConfig().model
RUNS = 3
MEASURE_SECONDS = 40  # a slow or busy machine makes fewer runs, at least one
MAX_TOKENS = 128
START_SECONDS = 120
WIDTH = 92


class Screen:
    """Prints, and remembers what was printed for the picture. Progress is shown but not kept."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if self.console.width < WIDTH and not self.console.is_terminal:
            self.console.width = WIDTH
        self._shown: list[RenderableType] = []

    def say(self, *shown: RenderableType) -> None:
        for item in shown:
            self.console.print(item)
            self._shown.append(item)

    def draw(self, path: Path) -> None:
        picture = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
        for item in self._shown:
            picture.print(item)
        path.parent.mkdir(parents=True, exist_ok=True)
        svg = picture.export_svg(title="make demo")
        # A picture must not load fonts from somebody's server.
        svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)
        path.write_text(svg.replace("Fira Code", "ui-monospace"), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline.cli.demo", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="paired runs per prompt")
    parser.add_argument("--svg", type=Path, help="draw what was printed into this file")
    args = parser.parse_args(argv)
    screen = Screen()
    try:
        code = run(screen, max(1, args.runs))
    except PacelineError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if args.svg is not None:
        screen.draw(args.svg)
    return code


def run(screen: Screen, runs: int) -> int:
    """Fetches the model, serves it, compares, stops the server. Returns the exit code."""
    started = time.perf_counter()
    from paceline.models.catalog import pull

    pull(MODEL)
    with tempfile.TemporaryDirectory(prefix="paceline-demo-") as scratch:
        server = ServerProcess([MODEL], log=Path(scratch) / "server.log")
        try:
            with screen.console.status("starting the server"):
                server.wait_until_healthy(START_SECONDS)
            screen.say(Text(server.output().strip()))
            pairs = asyncio.run(measure(screen, server.url, runs))
        finally:
            clean = server.stop()
    same = all(pair.same_text for pair in pairs)
    screen.say(
        side_by_side(pairs[0]),
        table(pairs),
        *(Text(line, style="dim") for line in tables.notes(pairs)),
        "",
        *tables.parts_tables(pairs),
        *(Text(line) for line in tables.speedup_lines(pairs)),
        Text(tables.same_text_line(same), style="bold green" if same else "bold red"),
        f"server {'stopped cleanly' if clean else 'did NOT stop cleanly'}; "
        f"{time.perf_counter() - started:.0f} s in all",
    )
    return 0 if same and clean else 1


async def measure(screen: Screen, url: str, runs: int) -> list[Pair]:
    """The prompt set through the server, off and on in turns, with a table that fills up."""
    prompts = load_prompts("demo")
    client = ChatClient(url, model=MODEL, max_tokens=MAX_TOKENS)
    measured: dict[str, Pair] = {}
    total = runs * len(prompts)
    spinner = Spinner("dots")
    with Live(console=screen.console, transient=True, refresh_per_second=8) as live:

        def progress(pair: Pair, run: int) -> None:
            measured[pair.prompt.name] = pair
            count = sum(len(pair.on) for pair in measured.values())
            spinner.update(text=f"pair {count} of {total}: {pair.prompt.name}, run {run + 1}")
            live.update(Group(table(list(measured.values())), spinner))

        try:
            await client(prompts[0], None)  # what is lazy is paid for before anything is timed
            return await compare(
                prompts, client, runs=runs, seconds=MEASURE_SECONDS, progress=progress
            )
        finally:
            await client.close()


def table(pairs: Sequence[Pair]) -> RenderableType:
    runs = len(pairs[0].on)
    title = (
        f"{MODEL}, temperature 0, up to {MAX_TOKENS} tokens, "
        f"{runs} paired run{'s' if runs > 1 else ''} of each prompt"
    )
    return tables.pair_table(pairs, title)


def side_by_side(pair: Pair) -> RenderableType:
    """One prompt's two answers, each with the time it took."""

    def panel(title: str, answer: MeasuredAnswer) -> Panel:
        subtitle = f"{len(answer.token_ids)} tokens in {answer.total:.2f} s"
        return Panel(Text(answer.text.strip()), title=title, subtitle=subtitle)

    question = Text(pair.prompt.messages[-1]["content"], style="italic")
    answers = Table.grid(expand=True)
    for _ in range(2):
        answers.add_column(ratio=1)
    answers.add_row(panel("speculation off", pair.off[-1]), panel("speculation on", pair.on[-1]))
    return Group("", question, answers, "")


if __name__ == "__main__":
    sys.exit(main())

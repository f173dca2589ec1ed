"""`python -m paceline.cli.demo`: a real model on a server, speculation off and on, side by side."""

from __future__ import annotations

import asyncio
import math
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline.bench.load.answers import MeasuredAnswer
from paceline.bench.load.client import ChatClient
from paceline.bench.load.paired import Pair
from paceline.bench.load.server_process import ServerProcess
from paceline.bench.prompts import BenchPrompt, load_prompts
from paceline.bench.report.words import count
from paceline.cli import bench, show
from paceline.cli.options import DEFAULTS, Count, OutputFile, run_alone
from paceline.core.document_help import about
from paceline.core.documents import checked

MODEL = DEFAULTS.model
MEASURE_SECONDS = 40  # a slow or busy machine makes fewer runs, at least one
START_SECONDS = 120
WIDTH = 92


@checked
class DemoCommand:
    """Serve a real model and show its answers, speculation off and on, side by side.

    Exit code 0 when every text is the same token for token and the server stopped cleanly, else 1.
    """

    runs: Count = about("paired runs per prompt", 3)
    svg: OutputFile | None = about("draw what was printed into this file", None)

    def run(self) -> int:
        started = time.perf_counter()
        from paceline.models.catalog import pull

        pull(MODEL)
        console = Console(record=True, highlight=False)
        if self.svg is not None or not console.is_terminal:
            console.width = WIDTH
        with tempfile.TemporaryDirectory(prefix="paceline-demo-") as scratch:
            log, prompts = Path(scratch) / "server.log", load_prompts("demo")
            code = compare_served(console, [MODEL], log, prompts, self.runs, MEASURE_SECONDS)
        console.print(f"{time.perf_counter() - started:.0f} s in all")
        if self.svg is not None:
            self.svg.write_text(picture(console, picture_title()), encoding="utf-8")
        return code


def picture_title() -> str:
    """Return the title of a picture: it says on which machine and when the demo ran."""
    from paceline.engine.machine import cpu_name, usable_cores

    place = f"{' '.join(cpu_name().split())}, {count(usable_cores(), 'core')}"
    return f"make demo · {place} · {datetime.now(UTC).date()}"


def picture(console: Console, title: str) -> str:
    """Return what a console has recorded as SVG, without fonts from somebody's server."""
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.S)
    return svg.replace("Fira Code", "ui-monospace")


def compare_served(
    console: Console,
    arguments: Sequence[str],
    log: Path,
    prompts: Sequence[BenchPrompt],
    runs: int,
    seconds: float = math.inf,
    *,
    max_tokens: int = 128,
    bound: dict[str, object] | None = None,
) -> int:
    """Start a server, show its answers without and with speculation, and stop it.

    `bound` is merged into the requests. Returns 0 when every text is the same and the server
    stopped cleanly, else 1.
    """
    server = ServerProcess(arguments, log=log)
    try:
        with show.stderr_console().status("starting the server"):
            server.wait_until_healthy(START_SECONDS)
        console.print(Text(server.output().strip()))
        client = ChatClient(server.url, model=MODEL, max_tokens=max_tokens, extra=bound)
        pairs = asyncio.run(measure(client, prompts, runs, seconds))
    finally:
        clean = server.stop()
    console.print(side_by_side(pairs[0]))
    runs = len(pairs[0].on)
    title = f"{MODEL}, temperature 0, up to {max_tokens} tokens, {runs} paired runs of each prompt"
    for part in bench.comparison(pairs, title):
        console.print(part)
    console.print("server stopped cleanly" if clean else "server did NOT stop cleanly; it said:")
    if not clean:
        console.print(Text(server.output().strip()))
    return 0 if clean and all(pair.same_text for pair in pairs) else 1


async def measure(
    client: ChatClient, prompts: Sequence[BenchPrompt], runs: int, seconds: float
) -> list[Pair]:
    try:
        return await bench.compare(prompts, client, runs, seconds=seconds)
    finally:
        await client.close()


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


def main(argv: Sequence[str] | None = None) -> int:
    return run_alone("paceline.cli.demo", DemoCommand, argv)


if __name__ == "__main__":
    sys.exit(main())

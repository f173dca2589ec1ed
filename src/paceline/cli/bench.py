"""`paceline bench`: speculation off against on, here or on a running server."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from rich.console import Console, RenderableType
from rich.text import Text

from paceline.bench.load import lossy, paired
from paceline.bench.load.answers import InProcess
from paceline.bench.load.client import ChatClient, served_model
from paceline.bench.load.lossy import BUDGETS
from paceline.bench.load.paired import Ask, Pair, compare_load, same_text, write_arrivals
from paceline.bench.prompts import BenchPrompt, load_prompts
from paceline.bench.report import tables
from paceline.bench.report.charts import Labels, scatter
from paceline.cli import options, show
from paceline.cli.option import Argument, Only
from paceline.core import InvalidRequest, SamplingParams
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.llm import LLM

MAX_TOKENS = 128
Budget = Annotated[float, Between(0, 1, words="budgets from 0 to 1")]


@checked
class BenchCommand:
    """Measure speculation off against on.

    Answers a prompt set without and with speculation, in turns, and shows TTFT, TPOT, AL, speedup
    and whether the text is the same. With --url it asks a running server. Exit code 1 when the text
    differs.
    """

    model: options.Positional | None = about(options.ASKED_MODEL, None, options.DEFAULTS.model)
    url: str | None = about(options.SERVER_HELP, None)
    api_key: str | None = about("with --url: its API key", None)
    prompts: str = about(options.PROMPTS_HELP, "demo")
    runs: options.Count = about("paired runs per prompt", 5)
    concurrency: options.Count = about("with --url: requests in flight; >1 shows throughput", 1)
    lossy: Annotated[tuple[Budget, ...] | None, Argument(bare=BUDGETS)] = about(
        "speed against measured quality under each of these lossy budgets, total variation per "
        f"token (default of the option alone: {','.join(f'{budget:g}' for budget in BUDGETS)})",
        None,
    )
    svg: options.OutputFile | None = about("with --lossy: draw speedup over perplexity here", None)
    record: options.OutputFile | None = about("write when each token arrived (JSONL)", None)
    sampling: SamplingParams = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, seed=0)
    speculation: Annotated[options.Speculation, Only(("max_draft_len",))] = options.Speculation()
    engine: EngineConfig = options.DEFAULTS

    def __post_init__(self) -> None:
        if self.svg is not None and self.lossy is None:
            raise InvalidRequest("svg", str(self.svg), "--lossy beside it, which it draws")
        if self.record is not None and (self.lossy is not None or self.concurrency > 1):
            raise InvalidRequest("record", str(self.record), "no --lossy, and --concurrency 1")
        if self.lossy is not None and self.url is not None:
            raise InvalidRequest("lossy", self.lossy, "no --url: it looks into the engine")
        if self.url is None:
            if self.concurrency > 1:
                raise InvalidRequest("concurrency", self.concurrency, "1 without --url")
            if self.api_key is not None:
                raise InvalidRequest("api_key", "<hidden>", "--url beside it")
        else:
            options.refuse_engine_options(self.engine, options.DEFAULTS)

    def run(self) -> int:
        prompts = load_prompts(self.prompts)
        console = Console(highlight=False)
        if self.url is not None:
            return asyncio.run(self._over_http(console, self.url, prompts))
        llm = show.load(console, self.engine)
        ask = InProcess(llm, self.sampling)
        if self.lossy is not None:
            return self._show_lossy(console, llm, prompts, ask, self.lossy)
        pairs = asyncio.run(compare(prompts, ask, self.runs, self.speculation.stated))
        return self._show_pairs(console, pairs, f"{self.engine.model}, in process")

    def _show_lossy(
        self,
        console: Console,
        llm: LLM,
        prompts: list[BenchPrompt],
        ask: InProcess,
        budgets: Sequence[float],
    ) -> int:
        lossless = lossy.answer_all(llm, self.sampling, prompts, 0.0)
        levels = []
        for epsilon in budgets:
            speculative = {"lossy": epsilon, **self.speculation.lengths}
            pairs = asyncio.run(compare(prompts, ask, self.runs, speculative))
            texts = lossy.answer_all(llm, self.sampling, prompts, epsilon)
            levels.append(lossy.level(epsilon, pairs, texts, lossless))
        temperature = f"T = {self.sampling.temperature:g}"
        title = f"{self.engine.model}, {temperature}: speed and quality by budget"
        console.print(lossy.level_table(levels, title))
        if self.svg is not None:
            x_label = "perplexity of the text under the target ÷ lossless"
            drawing = scatter(lossy.points(levels), Labels(title, x_label, "speedup over AR"))
            self.svg.write_text(drawing, encoding="utf-8")
        return 0

    async def _over_http(self, console: Console, url: str, prompts: list[BenchPrompt]) -> int:
        model = self.model or await served_model(url, self.api_key)
        client = self._client(url, model)
        speculative = self.speculation.stated
        try:
            if self.concurrency == 1:
                pairs = await compare(prompts, client, self.runs, speculative)
                return self._show_pairs(console, pairs, f"{model} at {url}")
            await client(prompts[0], speculative)  # what is lazy is paid for before it is timed
            off, on = await compare_load(
                prompts,
                client,
                runs=self.runs,
                concurrency=self.concurrency,
                speculative=speculative,
            )
        finally:
            await client.close()
        title = f"{model} at {url}: {len(off.answers)} requests, {self.concurrency} at once"
        console.print(tables.load_table(off, on, title))
        for line in tables.undrafted(on.answers):
            console.print(line, style="bold yellow")
        same = same_text(off, on)
        console.print(tables.same_text_line(same))
        return 0 if same else 1

    def _client(self, url: str, model: str) -> ChatClient:
        params = self.sampling
        names = ("top_k", "top_p", "min_p", "repetition_penalty")
        return ChatClient(
            url,
            model=model,
            api_key=self.api_key,
            max_tokens=params.max_tokens or MAX_TOKENS,
            temperature=params.temperature,
            seed=params.seed or 0,
            extra={name: getattr(params, name) for name in names},
        )

    def _show_pairs(self, console: Console, pairs: list[Pair], title: str) -> int:
        if self.record is not None:
            write_arrivals(self.record, pairs)
        for shown in comparison(pairs, title):
            console.print(shown)
        return 0 if all(pair.same_text for pair in pairs) else 1


async def compare(
    prompts: Sequence[BenchPrompt],
    ask: Ask,
    runs: int,
    speculative: object = None,
    seconds: float = math.inf,
) -> list[Pair]:
    """Compare speculation off and on under a progress bar, after what is lazy is paid for."""
    await ask(prompts[0], speculative)
    with show.progress() as bars:
        task = bars.add_task("measuring", total=runs * len(prompts))
        return await paired.compare(
            prompts,
            ask,
            runs=runs,
            speculative=speculative,
            seconds=seconds,
            progress=lambda pair, run: bars.advance(task),
        )


def comparison(pairs: Sequence[Pair], title: str) -> Iterator[RenderableType]:
    """Yield the tables and lines of a paired comparison."""
    yield tables.pair_table(pairs, title)
    for line in tables.notes(pairs):
        yield Text(line, style="dim")
    yield from tables.parts_tables(pairs)
    yield from map(Text, tables.speedup_lines(pairs))
    for line in tables.undrafted(answer for pair in pairs for answer in pair.on):
        yield Text(line, style="bold yellow")
    same = all(pair.same_text for pair in pairs)
    yield Text(tables.same_text_line(same), style="bold green" if same else "bold red")

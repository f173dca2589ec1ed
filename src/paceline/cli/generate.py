"""`paceline generate`: complete prompts once, offline."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

from paceline.cli import show
from paceline.cli.options import DEFAULTS, MODEL_HELP, Argument, EngineCommand, ModelOption, Strings
from paceline.core import InvalidRequest, SamplingParams
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Several


@checked
class GenerateCommand(EngineCommand):
    """Complete prompts once, offline.

    The text goes to stdout, statistics to stderr.
    """

    prompts: Annotated[tuple[str, ...], Several, Argument(positional=True, metavar="PROMPT")] = (
        about("a prompt; - reads stdin")
    )
    chat: bool = about("send each prompt as a user's message of a chat", False)
    stop: Strings = about("end before this string, repeatable", ())
    n: Annotated[int, Argument(flags=("-n",))] = about("answers per prompt", 1)
    logprobs: int | None = about("with --json: top log-probabilities per token", None)
    json: bool = about("print everything, as JSON", False)
    model: ModelOption = about(MODEL_HELP, DEFAULTS.model)
    sampling: SamplingParams = SamplingParams(max_tokens=256, temperature=0.0)

    def __post_init__(self) -> None:
        if self.logprobs is not None and not self.json:
            raise InvalidRequest("logprobs", self.logprobs, "--json beside it, which shows them")

    def run(self) -> int:
        prompts = [read_stdin() if prompt == "-" else prompt for prompt in self.prompts]

        from paceline.llm import LLM

        llm = LLM(config=self.engine)
        if self.chat:
            conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
            results = llm.chat(conversations, self.sampling, self.speculation.stated)
        else:
            results = llm.generate(prompts, self.sampling, self.speculation.stated)
        if self.json:
            written = [dataclasses.asdict(result) for result in results]
            print(json.dumps(written, ensure_ascii=False))
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

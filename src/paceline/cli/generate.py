"""`paceline generate`: complete prompts once."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import show
from paceline.cli.loading import open_model
from paceline.cli.option import Argument
from paceline.cli.options import ASKED_MODEL, DEFAULTS, AskCommand, ModelOption, Strings
from paceline.core import InvalidRequest, SamplingParams
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Several

if TYPE_CHECKING:
    from paceline.cli.remote import RemoteModel


@checked
class GenerateCommand(AskCommand):
    """Complete prompts once.

    Loads a model, or asks the running server of --url. The text goes to stdout, statistics to
    stderr.
    """

    prompts: Annotated[tuple[str, ...], Several, Argument(positional=True, metavar="PROMPT")] = (
        about("a prompt; - reads stdin")
    )
    chat: bool = about("send each prompt as a user's message of a chat", False)
    stop: Strings = about("end before this string, repeatable", ())
    n: Annotated[int, Argument(flags=("-n",))] = about("answers per prompt", 1)
    logprobs: int | None = about("with --json: top log-probabilities per token", None)
    json: bool = about("print everything as JSON; with --url what the server sent", False)
    model: ModelOption | None = about(ASKED_MODEL, None, DEFAULTS.model)
    sampling: SamplingParams = SamplingParams(max_tokens=256, temperature=0.0)

    def __post_init__(self) -> None:
        AskCommand.__post_init__(self)
        if self.logprobs is not None and not self.json:
            raise InvalidRequest("logprobs", self.logprobs, "--json beside it, which shows them")

    def run(self) -> int:
        prompts = [read_stdin() if prompt == "-" else prompt for prompt in self.prompts]
        model = self.server()
        if model is not None:
            return self._show_answers([self._ask(model, prompt) for prompt in prompts])

        llm = open_model(self.engine)
        if self.chat:
            conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
            results = llm.chat(conversations, self.sampling, self.speculation.stated)
        else:
            results = llm.generate(prompts, self.sampling, self.speculation.stated)
        if self.json:
            written = [dataclasses.asdict(result) for result in results]
            print(json.dumps(written, ensure_ascii=False))
            return 0
        for result in results:
            for choice in result.choices:
                print(choice.text)
                _tell(show.Figures.of(len(choice.token_ids), choice.stats, choice.metrics))
        return 0

    def _ask(self, model: RemoteModel, prompt: str) -> dict[str, Any]:
        speculative, count = self.speculation.stated, self.logprobs
        if not self.chat:
            return model.complete(prompt, self.sampling, speculative=speculative, logprobs=count)
        wanted = {} if count is None else {"logprobs": True, "top_logprobs": count}
        messages = [{"role": "user", "content": prompt}]
        return model.chat(messages, self.sampling, speculative=speculative, **wanted)

    def _show_answers(self, answers: list[dict[str, Any]]) -> int:
        if self.json:
            print(json.dumps(answers, ensure_ascii=False))
            return 0
        for answer in answers:
            for choice in answer["choices"]:
                print(_said(choice["message"]) if self.chat else choice["text"])
            _tell(show.Figures.of_answer(answer))
        return 0


def _said(message: Mapping[str, Any]) -> str:
    """Return the text of a server's message: the reasoning, where it tells it apart, and the
    answer, which is null where max_tokens cut the reasoning."""
    parts = (message.get("reasoning_content"), message["content"])
    return "\n\n".join(part for part in parts if part)


def _tell(figures: show.Figures) -> None:
    show.stderr_console().print(show.statistics_line(figures), style="dim", soft_wrap=True)


def read_stdin() -> str:
    """Return the prompt on stdin, without the newline that `echo` and editors end it with."""
    return sys.stdin.read().removesuffix("\n")

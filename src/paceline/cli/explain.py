"""`paceline explain`: show what each round of a request did, and why."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from rich.console import Console

from paceline.bench.load.client import get_json
from paceline.bench.report import rounds
from paceline.cli import options
from paceline.core import InvalidRequest, SamplingParams, SpeculativeParams
from paceline.core.document_help import about
from paceline.core.documents import checked


@checked
class ExplainCommand(options.EngineCommand):
    """Show, round by round, what was drafted, accepted, forced and cut.

    Explains a request that a server has answered, given its id and --url, if it had "explain":
    true; or answers a --prompt here and explains that.
    """

    id: options.Positional | None = about("with --url: the id of the answer, as chatcmpl-…", None)
    url: str | None = about("a running server, as http://127.0.0.1:8000", None)
    api_key: str | None = about("with --url: the API key that sent the request", None)
    prompt: str | None = about("a user's message to answer and explain here", None)
    html: options.OutputFile | None = about("write a timeline as HTML too", None)
    json: bool = about("print the rounds as JSON", False)
    model: options.ModelOption = about(options.MODEL_HELP, options.DEFAULTS.model)
    sampling: SamplingParams = SamplingParams(max_tokens=64, temperature=0.0)

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.id is None):
            raise InvalidRequest("id", self.id, "the id of an answer, or --prompt; one of the two")
        if (self.id is None) != (self.url is None):
            raise InvalidRequest("url", self.url, "a server's URL beside an id, and only there")

    def run(self) -> int:
        if self.url is None:
            answer = self._answer(self.prompt or "")
        else:
            path = f"/v1/requests/{self.id}/rounds"
            answer = asyncio.run(get_json(self.url, path, self.api_key))
        if self.json:
            print(json.dumps(answer, ensure_ascii=False))
        else:
            console = Console(highlight=False)
            for choice in answer["choices"]:
                console.print(rounds.table(choice))
                console.print(rounds.summary(choice), style="dim")
            console.print(rounds.legend())
        if self.html is not None:
            self.html.write_text(rounds.page(answer), encoding="utf-8")
        return 0

    def _answer(self, prompt: str) -> dict[str, Any]:
        from paceline.llm import LLM
        from paceline.server.rounds import round_shown
        from paceline.server.tokens import TokenTexts

        llm = LLM(config=self.engine)
        engine, texts = llm.engine, TokenTexts(llm.tokenizer)
        ids = llm.encode_chat([{"role": "user", "content": prompt}])
        speculation = SpeculativeParams.parse(self.speculation.stated)
        (request,) = engine.make_requests(
            ids, self.sampling, speculation, request_id="explained", explain=True
        )
        deltas = list(llm.driver.run([request]))
        shown = [round_shown(delta, texts) for delta in deltas if delta.explained]
        choice = {
            "index": 0,
            "finish_reason": request.finish_reason,
            "rounds": shown,
            "rounds_left_out": 0,
        }
        return {"id": "explained", "model": engine.model_name, "choices": [choice]}

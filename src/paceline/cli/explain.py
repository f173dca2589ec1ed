"""`paceline explain`: show what each round of a request did, and why."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from paceline.bench.report import rounds
from paceline.cli import options
from paceline.cli.loading import open_model
from paceline.core import InvalidRequest, SamplingParams, SpeculativeParams
from paceline.core.document_help import about
from paceline.core.documents import checked


@checked
class ExplainCommand(options.AskCommand):
    """Show, round by round, what was drafted, accepted, forced and cut.

    Answers a --prompt, here or on the running server of --url, and explains the answer; or explains
    a request that the server has answered, given its id, if it had "explain": true.
    """

    id: options.Positional | None = about("with --url: the id of the answer, as chatcmpl-…", None)
    prompt: str | None = about("a user's message to answer and explain", None)
    html: options.OutputFile | None = about("write a timeline as HTML too", None)
    json: bool = about("print the rounds as JSON", False)
    model: options.ModelOption | None = about(options.ASKED_MODEL, None, options.DEFAULTS.model)
    sampling: SamplingParams = SamplingParams(max_tokens=64, temperature=0.0)

    def __post_init__(self) -> None:
        options.AskCommand.__post_init__(self)
        if (self.prompt is None) == (self.id is None):
            raise InvalidRequest("id", self.id, "the id of an answer, or --prompt; one of the two")
        if self.id is not None and self.url is None:
            raise InvalidRequest("url", self.url, "the URL of the server that answered the id")

    def run(self) -> int:
        answer = self._explained()
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

    def _explained(self) -> dict[str, Any]:
        model, request_id = self.server(), self.id
        if model is None:
            return self._answer(self.prompt or "")
        if request_id is None:
            messages = [{"role": "user", "content": self.prompt or ""}]
            speculative = self.speculation.stated
            answer = model.chat(messages, self.sampling, explain=True, speculative=speculative)
            request_id = answer["id"]
        return model.rounds(request_id)

    def _answer(self, prompt: str) -> dict[str, Any]:
        llm = open_model(self.engine)
        from paceline.server.rounds import round_shown
        from paceline.server.tokens import TokenTexts

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

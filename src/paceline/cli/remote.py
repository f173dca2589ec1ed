"""A running server that `chat`, `generate` and `explain` ask, in place of a model of their own."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import httpx

from paceline.bench.load.address import ServerAddress
from paceline.cli.show import Figures
from paceline.core import PacelineError, SamplingParams, TokenKind
from paceline.core.names import find_name, unknown_name

ANSWER_SECONDS = 600.0
Json = dict[str, Any]  # an object that the server sends
Messages = Sequence[Mapping[str, str]]
Speculative = Mapping[str, object] | str | None  # as a request states it
# Fields of SamplingParams that the API takes under the same name.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "n")


class AnswerPiece(NamedTuple):
    """A piece of an answer, and where its tokens came from. Reasoning that a server tells apart
    `is_thought`: the conversation goes on without it."""

    text: str
    kind: TokenKind
    is_thought: bool = False


class RemoteModel:
    """One model of a server. `figures` are those of the latest streamed answer.

    `name` is an id of the server in any case, or the start of one; by default its first. Raises
    InvalidRequest for a model that the server does not have, and PacelineError where no server
    answers or it refuses.
    """

    def __init__(self, url: str, api_key: str | None, name: str | None) -> None:
        self._address, self.figures = ServerAddress.parse(url), Figures(0)
        self.url = self._address.shown
        self._http = httpx.Client(
            base_url=self._address.base_url,
            transport=self._address.transport(),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=10),
            trust_env=False,  # a proxy for the internet must not stand between us and the server
        )
        ids = [str(model["id"]) for model in self._ask("GET", "/v1/models")["data"]]
        if not ids:
            raise PacelineError(f"the server at {self.url} has no model")
        self.name = ids[0] if name is None else _id_of(name, ids, self.url)

    def chat(self, messages: Messages, params: SamplingParams, **fields: object) -> Json:
        """Return the answer to a conversation, as the server sends it."""
        body = {"messages": [*messages], "max_completion_tokens": params.max_tokens}
        return self._ask("POST", "/v1/chat/completions", self._body(body, params, fields))

    def complete(self, prompt: str, params: SamplingParams, **fields: object) -> Json:
        """Return the continuation of a text, as the server sends it."""
        body = {"prompt": prompt, "max_tokens": params.max_tokens}
        return self._ask("POST", "/v1/completions", self._body(body, params, fields))

    def rounds(self, request_id: str) -> Json:
        """Return what each round of an answer did, if it was asked with `explain`."""
        return self._ask("GET", f"/v1/requests/{request_id}/rounds")

    def stream(
        self, messages: Messages, params: SamplingParams, speculative: Speculative
    ) -> Generator[AnswerPiece, None, None]:
        """Yield the pieces of an answer."""
        body = {
            "messages": [*messages],
            "max_completion_tokens": params.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True, "include_rounds": True},
        }
        sent = self._body(body, params, {"explain": True, "speculative": speculative})
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=sent) as response:
                if response.status_code != 200:
                    response.read()
                    raise PacelineError(self._address.refusal(response))
                for line in response.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if line.startswith("data:") and data != "[DONE]":
                        yield from self._pieces(json.loads(data))
        except httpx.HTTPError as error:
            raise PacelineError(f"the server at {self.url} broke off: {error}") from error

    def _pieces(self, event: Json) -> Iterator[AnswerPiece]:
        if "error" in event:
            raise PacelineError(f"the server failed: {event['error'].get('message')}")
        if event.get("usage"):
            self.figures = Figures.of_answer(event)
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            committed = (choice.get("round") or {}).get("committed_tokens", [])
            tokens = [(token["text"], TokenKind(token["kind"])) for token in committed]
            for field, is_thought in (("reasoning_content", True), ("content", False)):
                text = delta.get(field) or ""
                if text and "".join(piece for piece, _ in tokens) == text:
                    yield from (AnswerPiece(*token, is_thought) for token in tokens)
                elif text:  # a character of several tokens, or text that was held back
                    kind = tokens[-1][1] if tokens else TokenKind.BONUS
                    yield AnswerPiece(text, kind, is_thought)

    def _body(
        self, body: Mapping[str, object], params: SamplingParams, fields: Mapping[str, object]
    ) -> Json:
        sampling: Json = {name: getattr(params, name) for name in SAMPLING}
        stated = {"model": self.name, **body, **sampling, "stop": [*params.stop] or None, **fields}
        return {name: value for name, value in stated.items() if value is not None}

    def _ask(self, method: str, path: str, body: Json | None = None) -> Json:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise PacelineError(f"no server at {self.url}: {error}") from error
        if response.status_code != 200:
            raise PacelineError(self._address.refusal(response))
        try:
            answer: Json = response.json()
        except ValueError:
            raise PacelineError(f"{response.url}: the answer is no JSON") from None
        return answer


def _id_of(name: str, ids: Sequence[str], url: str) -> str:
    spellings = {identifier: identifier for identifier in ids}
    found = find_name("model", name, spellings)
    if found is None:
        expected = f"one of the models at {url}: {', '.join(ids)}"
        raise unknown_name("model", name, spellings, expected)
    return found

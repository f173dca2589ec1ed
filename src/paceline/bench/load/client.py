"""A streaming client of the server's chat endpoint that notes when each token arrives."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from paceline.bench.load.address import UNLIMITED, ServerAddress
from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.prompts import BenchPrompt
from paceline.core import PacelineError

ANSWER_SECONDS = 600.0
Json = dict[str, Any]  # an object that the server sends


class ServerError(PacelineError):
    """The server answered with an error; the message holds its status and text."""


class ChatClient:
    """Asks one server. `extra` is merged into every request body.

    Every request gets a new cache salt: no prefix hit and no remembered answer helps it.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str | None = None,
        max_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self._address = ServerAddress.parse(url)
        self._http = _http(self._address, api_key, ANSWER_SECONDS)
        self._body = {
            "model": model,
            "max_completion_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **(extra or {}),
        }

    async def close(self) -> None:
        await self._http.aclose()

    async def __call__(self, prompt: BenchPrompt, speculative: object) -> MeasuredAnswer:
        """Answer one prompt; `speculative` as in the API (None leaves the field out).

        Raises ServerError for an answer that is no stream of tokens, breaks off, or stays out for
        ANSWER_SECONDS.
        """
        body = {**self._body, "messages": list(prompt.messages), "cache_salt": uuid.uuid4().hex}
        if speculative is not None:
            body["speculative"] = speculative
        answer = MeasuredAnswer(started=time.perf_counter())
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                await _check(self._address, response)
                async for event in _events(response):
                    _take(answer, event)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__  # a timeout has no text
            where = f"the server at {self._address.shown}"
            raise ServerError(f"{where} broke off at the prompt {prompt.name!r}: {why}") from error
        if not answer.arrivals:
            where = f"the server at {self._address.shown}"
            raise ServerError(f"{where} sent no token ids for the prompt {prompt.name!r}")
        return answer


async def served_model(url: str, api_key: str | None = None) -> str:
    """Return the id of the first model that the server offers."""
    return str((await get_json(url, "/v1/models", api_key))["data"][0]["id"])


async def get_json(url: str, path: str, api_key: str | None = None) -> Json:
    """Return the JSON that the server answers to GET. Raises ServerError."""
    address = ServerAddress.parse(url)
    async with _http(address, api_key, 10) as http:
        try:
            response = await http.get(path)
        except httpx.HTTPError as error:
            raise ServerError(f"no server at {address.shown}: {error}") from error
    await _check(address, response)
    answer: Json = response.json()
    return answer


def _http(address: ServerAddress, api_key: str | None, timeout: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=address.base_url,
        transport=address.async_transport(),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(timeout, connect=10),
        limits=UNLIMITED,
        trust_env=False,  # a proxy set for the internet must not stand between us and the server
    )


async def _check(address: ServerAddress, response: httpx.Response) -> None:
    if response.status_code != 200:
        await response.aread()
        raise ServerError(address.refusal(response))


async def _events(response: httpx.Response) -> AsyncIterator[Json]:
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def _take(answer: MeasuredAnswer, event: Json) -> None:
    if "error" in event:
        raise ServerError(str(event["error"].get("message", event["error"])))
    for choice in event.get("choices", ()):
        text = choice.get("delta", {}).get("content")
        answer.extend(choice.get("token_ids") or [], text or "")
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    counts = (event.get("metrics") or {}).get("speculative_decoding")
    if counts:
        answer.drafted = _counts(counts)
        answer.parts = {name: _counts(part) for name, part in counts.get("parts", {}).items()}


def _counts(part: Mapping[str, int]) -> DraftCounts:
    drafted, accepted = part["num_draft_tokens"], part["num_accepted_draft_tokens"]
    return DraftCounts(part["num_spec_steps"], drafted, accepted)

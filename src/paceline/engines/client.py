"""Asks a running engine over HTTP, through the adapter of its kind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from paceline.bench.load.address import UNLIMITED, ServerAddress
from paceline.core import InvalidRequest, PacelineError
from paceline.engines.answers import EngineAnswer, EngineAsk, Json
from paceline.engines.kind import EngineDescription, EngineKind
from paceline.engines.metrics import EngineMetrics

ANSWER_SECONDS = 600.0


class EngineError(PacelineError):
    """The engine refused, broke off or is gone; the message says which and where."""


class EngineRefused(EngineError):
    """The engine refused one request; it goes on serving others."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class EngineClient:
    """One running engine.

    `kinds` are tried in order until one describes the server as its own. Raises InvalidRequest
    (field `url`) for no address or a server of no known kind, and EngineError where none answers.
    """

    def __init__(self, url: str, kinds: Sequence[EngineKind], api_key: str | None = None) -> None:
        self._address = ServerAddress.parse(url)
        self.url = self._address.shown
        self._http = httpx.Client(
            base_url=self._address.base_url,
            transport=self._address.transport(),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=10),
            limits=UNLIMITED,
            trust_env=False,  # a proxy for the internet must not stand between us and the server
        )
        self.kind, self.description = self._recognise(kinds)

    def _recognise(self, kinds: Sequence[EngineKind]) -> tuple[EngineKind, EngineDescription]:
        for kind in kinds:
            description = kind.describe(self)
            if description is not None:
                return kind, description
        names = ", ".join(kind.name for kind in kinds)
        raise InvalidRequest("url", self.url, f"a running server of {names}")

    @property
    def model(self) -> str:
        return self.description.model

    def ask(self, ask: EngineAsk) -> EngineAnswer:
        """Answer one request. Raises EngineRefused or EngineError."""
        path, body = self.kind.request(ask, self.model)
        answer = EngineAnswer()
        try:
            with self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise EngineRefused(response.status_code, self._address.refusal(response))
                for event in _events(response):
                    if "error" in event:
                        error = event["error"]
                        message = error.get("message") if isinstance(error, dict) else error
                        raise EngineError(f"the engine at {self.url} failed: {message}")
                    self.kind.take(answer, event)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__  # a timeout has no text
            raise EngineError(f"the engine at {self.url} broke off: {why}") from error
        return answer

    def ask_all(self, asks: Sequence[EngineAsk], at_once: int = 1) -> list[EngineAnswer]:
        """Answer requests, `at_once` at a time, in their order. The first error ends all."""
        if at_once == 1:
            return [self.ask(ask) for ask in asks]
        with ThreadPoolExecutor(at_once) as pool:
            futures = [pool.submit(self.ask, ask) for ask in asks]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def metrics(self) -> EngineMetrics:
        """Read the engine's metrics of now. Raises EngineError where it tells none."""
        text = self.get_text("/metrics")
        try:
            return self.kind.read_metrics(text)
        except ValueError as error:
            raise EngineError(f"the engine at {self.url} tells no metrics: {error}") from error

    def is_healthy(self) -> bool:
        """Return whether the engine takes requests."""
        return answers(self.url)

    def get_json(self, path: str) -> Json | None:
        """Return what the engine answers to GET; None for a path that it does not have."""
        response = self._get(path)
        if response.status_code == 404:
            return None
        self._check(response)
        try:
            value = response.json()
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def post_json(self, path: str, body: Json) -> Json:
        """Return what the engine answers to POST. Raises EngineRefused."""
        try:
            response = self._http.post(path, json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"no engine at {self.url}: {error}") from error
        self._check(response)
        answer: Json = response.json()
        return answer

    def get_text(self, path: str) -> str:
        response = self._get(path)
        self._check(response)
        return response.text

    def close(self) -> None:
        self._http.close()

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._http.get(path, timeout=10)
        except httpx.HTTPError as error:
            raise EngineError(f"no engine at {self.url}: {error}") from error

    def _check(self, response: httpx.Response) -> None:
        if response.status_code != 200:
            raise EngineRefused(response.status_code, self._address.refusal(response))


def answers(url: str) -> bool:
    """Return whether the engine at `url` takes requests, by its /health."""
    address = ServerAddress.parse(url)
    try:
        with httpx.Client(
            base_url=address.base_url, transport=address.transport(), trust_env=False, timeout=5
        ) as http:
            return http.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def _events(response: httpx.Response) -> Iterator[Json]:
    """Yield the events of a stream; an answer that is not streamed is one."""
    if response.headers.get("content-type", "").startswith("application/json"):
        yield json.loads(response.read())
        return
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)

"""Answers from OpenAI-compatible servers: one or a fleet, vLLM, SGLang or Paceline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from paceline.core import InvalidRequest, PacelineError
from paceline.synth.answer import Ask, Speed, TargetAnswer
from paceline.synth.wire import ChatReply, Wire

CONCURRENCY, TIMEOUT = 64, 600.0  # requests in flight over all servers; seconds of one
TRIES = 8  # of one request, over all servers
FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds that a server is left alone after failures
FATAL = (401, 403, 404)  # a refusal of every request
BUSY = (408, 429)


class EndpointDown(PacelineError):
    """No server answers any more. Finished shards are kept, and the run can be resumed."""


class Refused(PacelineError):
    """A server refuses a request with this status; `after` seconds it may be asked again."""

    def __init__(self, status: int, text: str, after: str = "") -> None:
        self.status = status
        self.after = float(after) if after.isdecimal() else None
        super().__init__(f"status {status}: {' '.join(text.split())[:300]}")


@dataclass(slots=True)
class ChatServer:
    """A server by its URL. After failures it rests, twice as long each time, until it answers
    again."""

    url: str
    http: httpx.AsyncClient
    in_flight: int = 0
    failures: int = 0
    rests_until: float = 0.0

    @property
    def rest(self) -> float:
        """Seconds for which the server still rests."""
        return max(0.0, self.rests_until - time.monotonic())

    def failed(self, after: float | None) -> None:
        if self.rest:
            return  # requests that were under way when the rest began fail with it
        rest = FIRST_REST * 2**self.failures if after is None else after
        self.failures += 1
        self.rests_until = time.monotonic() + min(LONGEST_REST, rest)

    def answered(self) -> None:
        self.failures, self.rests_until = 0, 0.0


class EndpointAnswerer:
    """Keeps `concurrency` requests in flight over all servers.

    wait() raises EndpointDown when a request fails on every try. A request that a server refuses
    for its content is a fault of that request.
    """

    def __init__(
        self,
        wire: Wire,
        urls: Sequence[str],
        *,
        api_key: str | None = None,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self.what = f"endpoint: {wire.model}"
        self._wire, self._concurrency, self._token_ids = wire, concurrency, True
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._loop = asyncio.new_event_loop()
        self._servers = [
            ChatServer(
                url,
                httpx.AsyncClient(
                    base_url=url.rstrip("/").removesuffix("/v1"),
                    headers=headers,
                    timeout=httpx.Timeout(TIMEOUT, connect=10),
                    limits=httpx.Limits(max_connections=None),
                    trust_env=False,
                ),
            )
            for url in urls
        ]
        self._tasks: set[asyncio.Task[TargetAnswer]] = set()
        self._started: float | None = None
        self._tokens = self._prompt_tokens = 0
        self._busy = 0.0  # seconds of all requests that have ended
        self._begun: dict[int, float] = {}  # when each request under way was sent, by its index

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    @property
    def capacity(self) -> int:
        return self._concurrency - self.in_flight

    def probe(self, ask: Ask) -> None:
        """Ask every server once, before time is spent.

        Raises InvalidRequest (field `url`) for one that cannot be reached, refuses, renders another
        prompt than the target's own tokenizer does, or ignores the grammar.
        """
        for server in self._servers:
            try:
                reply = self._loop.run_until_complete(self._first(server, ask))
                answer = self._wire.answer(ask, reply)
            except PacelineError as error:
                expected = f"a server that answers a chat: {error}"
                raise InvalidRequest("url", server.url, expected) from error
            if answer.fault is not None and answer.fault != "not_retokenised":
                raise InvalidRequest("url", server.url, self._meaning(answer.fault, ask, reply))
            if ask.bound and self._wire.app.bounds.tools and reply.token_ids is None:
                expected = "a server that returns token ids: the text of a call is not all it says"
                raise InvalidRequest("url", server.url, expected)

    def submit(self, ask: Ask) -> None:
        self._started = self._started or time.perf_counter()
        self._tasks.add(self._loop.create_task(self._ask(ask)))

    def wait(self) -> list[TargetAnswer]:
        if not self._tasks:
            return []
        waiting = asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finished, _ = self._loop.run_until_complete(waiting)
        self._tasks -= finished
        return [task.result() for task in finished]

    def speed(self) -> Speed:
        now = time.perf_counter()
        seconds = 0.0 if self._started is None else now - self._started
        busy = self._busy + sum(now - begun for begun in self._begun.values())
        batch = busy / seconds if seconds else 0.0
        return Speed(self._tokens, self._prompt_tokens, seconds, batch)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._close())
            self._loop.close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for server in self._servers:
            await server.http.aclose()

    async def _first(self, server: ChatServer, ask: Ask) -> ChatReply:
        try:
            return await self._reply(ask, [server], probe=True)
        except Refused as refused:
            if refused.status not in (400, 422) or not self._token_ids:
                raise
            self._token_ids = False  # perhaps the server does not know that field
            return await self._reply(ask, [server], probe=True)

    async def _ask(self, ask: Ask) -> TargetAnswer:
        self._begun[ask.index] = time.perf_counter()
        try:
            reply = await self._reply(ask, self._servers)
        except Refused as refused:
            if refused.status in FATAL:
                raise EndpointDown(f"a server refuses to answer: {refused}") from refused
            return TargetAnswer(ask.index, fault="refused_by_server")
        finally:
            self._busy += time.perf_counter() - self._begun.pop(ask.index)
        answer = self._wire.answer(ask, reply)
        self._tokens += reply.completion_tokens or len(answer.ids)
        self._prompt_tokens += len(ask.prompt_ids)
        return answer

    async def _reply(
        self, ask: Ask, servers: Sequence[ChatServer], *, probe: bool = False
    ) -> ChatReply:
        """Try servers in turn; those that rest come last. Raises Refused where another try would
        not help, and EndpointDown. A probe does not wait for a server that cannot be reached."""
        failure = ""
        for _ in range(TRIES):
            server = min(servers, key=lambda server: (server.rest, server.in_flight))
            await asyncio.sleep(server.rest)
            after = None
            try:
                reply = await self._post(server, ask)
            except Refused as refused:
                if refused.status < 500 and refused.status not in BUSY:
                    raise
                failure, after = f"{server.url}: {refused}", refused.after
            except httpx.HTTPError as error:
                failure = f"{server.url}: {error or type(error).__name__}"
                if probe:
                    raise EndpointDown(failure) from error
            else:
                server.answered()
                return reply
            server.failed(after)
        raise EndpointDown(
            f"no server answers after {TRIES} tries, the last one: {failure}. Finished shards are "
            "kept; run the same command again to go on"
        )

    async def _post(self, server: ChatServer, ask: Ask) -> ChatReply:
        body = self._wire.body(ask, token_ids=self._token_ids)
        server.in_flight += 1
        try:
            response = await server.http.post("/v1/chat/completions", json=body)
        finally:
            server.in_flight -= 1
        if response.status_code != 200:
            after = response.headers.get("Retry-After", "")
            raise Refused(response.status_code, response.text, after)
        try:
            return ChatReply.model_validate(response.json())
        except ValueError as error:
            raise Refused(502, f"no chat completion ({error})") from error

    def _meaning(self, fault: str, ask: Ask, reply: ChatReply) -> str:
        """Return the meaning of a fault of the probe."""
        if fault in ("prompt_mismatch", "not_in_vocabulary"):
            variables = self._wire.app.chat_template_kwargs
            ignored = ", or chat_template_kwargs ignored" if variables else ""
            return (
                f"a server of {self._wire.app.model}: it reads the application's prompt as "
                f"{reply.prompt_tokens} tokens, other than the {len(ask.prompt_ids)} of the "
                f"target's own tokenizer and chat template (tokenizer mismatch{ignored})"
            )
        if fault == "grammar_ignored":
            return "a server that keeps to the application's grammar; this one did not"
        if fault == "reasoning_apart":
            parser = "started without its reasoning parser, which took words out of the text"
            return f"a server that returns token ids, or one {parser}"
        return f"a server that answers a chat; this one: {fault}"

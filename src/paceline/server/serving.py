"""From a checked request to a job that the engine runs."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from paceline import __version__
from paceline.core import InvalidRequest, SamplingParams
from paceline.engine.async_engine import AsyncEngine, Stream
from paceline.engine.room import Place
from paceline.server.errors import SHUTTING_DOWN, ApiError, invalid
from paceline.server.gate import bearer
from paceline.server.grammars import Bounds, GrammarReader
from paceline.server.job import Job
from paceline.server.live import Live
from paceline.server.metrics import ServerMetrics
from paceline.server.prompts import PromptEncoder
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.rounds import RoundStore, shown
from paceline.server.settings import ServerSettings
from paceline.server.shapes import ChatShape, CompletionShape, Shape
from paceline.server.streaming import EventStream
from paceline.server.tally import Traffic
from paceline.server.tokens import TokenTexts

CLIENT_CLOSED_REQUEST = 499  # nobody reads it; access logs know it


class Serving:
    """What the endpoints share: the engine, and what is made once for all requests."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings) -> None:
        self.engine, self.settings = engine, settings
        self.models = settings.served_model_names or (engine.engine.model_name,)
        self.started = int(time.time())
        self.metrics = ServerMetrics(self.models[0], engine.stats)
        self._traffic = Traffic()
        self.live = Live(engine.stats, self._traffic)
        self.encoder = PromptEncoder(engine.engine.tokenizer)
        compiler = engine.engine.grammars.compiler
        self._grammars = GrammarReader(engine.engine.tokenizer, compiler.compile)
        self.encoder.soon(compiler.warm_up)
        self._rounds = RoundStore()
        self._texts = TokenTexts(engine.engine.tokenizer)
        self._fingerprint = _fingerprint(engine)

    async def chat(self, body: ChatRequest, http: Request) -> Response:
        return await self._answer(ChatShape, body, lambda: self.encoder.chat(body), http)

    async def complete(self, body: CompletionRequest, http: Request) -> Response:
        return await self._answer(CompletionShape, body, lambda: self.encoder.prompts(body), http)

    def rounds(self, request_id: str, http: Request) -> dict[str, Any]:
        """What each round of a request did that asked for it. Raises ApiError (404)."""
        return shown(self._rounds.find(request_id, self._owner(http)), self._texts)

    def facts(self) -> dict[str, Any]:
        """What the page needs to know before it asks for anything."""
        engine = self.engine.engine
        config = engine.config
        return {
            "models": list(self.models),
            "max_model_len": engine.max_model_len,
            "drafters": [
                {"name": name, "version": drafter.version, "max_draft_len": drafter.max_draft_len}
                for name, drafter in engine.drafters.items()
            ],
            "default_drafter": engine.default_drafter,
            "draft_policy": config.draft_policy,
            "rule": config.rule,
            "holdback": config.holdback,
            "max_num_seqs": config.max_num_seqs,
        }

    def check_model(self, name: str) -> None:
        if name not in self.models:
            known = ", ".join(self.models)
            message = f"model: no model {name!r} here; this server has {known}"
            raise ApiError(404, message, param="model", code="model_not_found")

    # -- inside -----------------------------------------------------------------------------------

    def _owner(self, http: Request) -> str:
        return bearer(http.headers) if self.settings.api_keys else ""

    async def _answer(
        self,
        shape_of: type[Shape],
        body: ChatRequest | CompletionRequest,
        encode: Callable[[], Awaitable[list[list[int]]]],
        http: Request,
    ) -> Response:
        self.check_model(body.model)
        params = body.params()
        self._check_draining()
        salt = _salt(self._owner(http), body.cache_salt)
        with self.engine.reserve(params.n, body.num_prompts) as place:
            bounds = await self.encoder.off_loop(lambda: self._grammars.bounds(body))
            params = bound(params, bounds)
            job = self._start(shape_of.kind, body, params, await encode(), salt, place)
        if body.explain:
            self._rounds.keep(job, self._owner(http))
        shape = shape_of(
            job,
            self._texts,
            self._fingerprint,
            bool(body.return_token_ids),
            bounds.calls,
            rounds=body.include_rounds,
        )
        if body.stream:
            return EventStream(
                shape,
                include_usage=body.include_usage,
                continuous_usage=body.continuous_usage,
                spans=self.engine.engine.spans.lane(f"stream {job.id}"),
            )
        await job.finish(http.receive)
        return (
            Response(status_code=CLIENT_CLOSED_REQUEST)
            if job.gone
            else JSONResponse(shape.answer())
        )

    def _start(
        self,
        kind: str,
        body: ChatRequest | CompletionRequest,
        params: SamplingParams,
        prompts: list[list[int]],
        salt: bytes,
        place: Place,
    ) -> Job:
        """Submits every prompt or none."""
        self._check_draining()  # a drain may have begun while the prompts were being encoded
        wish = body.speculative_params()
        answer_id = f"{kind}-{uuid.uuid4().hex}"
        streams: list[Stream] = []
        try:
            for index, prompt in enumerate(prompts):
                stream = self.engine.submit(
                    prompt,
                    params,
                    wish,
                    request_id=f"{answer_id}-{index}",
                    salt=salt,
                    explain=bool(body.explain),
                    cohort=body.model,  # what an app calls the model tells apps apart
                    place=place,
                )
                streams.append(stream)
        except BaseException as error:
            for stream in streams:
                stream.abort()
            if isinstance(error, InvalidRequest):
                raise self._renamed(error, body, params, prompts) from None
            raise
        drafter, bound = _drafting(streams)
        return Job(
            id=answer_id,
            model=body.model,
            prompts=prompts,
            n=params.n,
            streams=streams,
            metrics=self.metrics,
            traffic=self._traffic,
            spec_metrics=self.settings.spec_metrics,
            draft_bound=bound,
            drafter=drafter,
            grammar=params.grammar is not None,
            lossy=wish.lossy,
        )

    def _check_draining(self) -> None:
        if self.engine.draining:
            raise ApiError(503, SHUTTING_DOWN, code="shutting_down", retry_after=1)

    def _renamed(
        self,
        error: InvalidRequest,
        body: ChatRequest | CompletionRequest,
        params: SamplingParams,
        prompts: list[list[int]],
    ) -> ApiError:
        """The engine's refusal, with the field's name as this endpoint has it."""
        names = {"prompt": body.prompt_field, "max_tokens": body.max_tokens_field}
        longest = max(len(prompt) for prompt in prompts)
        too_long = longest + (params.max_tokens or 1) > self.engine.engine.max_model_len
        code = "context_length_exceeded" if error.field in names and too_long else None
        field = names.get(error.field, error.field)
        return invalid(InvalidRequest(field, error.value, error.expected), code)


def bound(params: SamplingParams, bounds: Bounds) -> SamplingParams:
    """The same wishes under a grammar. Calls are told apart by tokens that a text may hide."""
    if bounds.grammar is None:
        return params
    skip = params.skip_special_tokens and bounds.calls is None
    return replace(params, grammar=bounds.grammar, skip_special_tokens=skip)


def _drafting(streams: list[Stream]) -> tuple[str | None, int | None]:
    """The drafter that serves these streams, and the longest draft it may make; none where all of
    them run without (some may have been held back)."""
    for stream in streams:
        for request in stream.requests:
            if request.drafter is not None:
                return request.drafter, request.max_draft_len
    return None, None


def _salt(api_key: str, cache_salt: str | None) -> bytes:
    """The scope of cached prefixes: who shares it may see, by timing, what others have sent."""
    if not api_key and cache_salt is None:
        return b""
    scope = f"{len(api_key)}:{api_key}:{cache_salt or ''}"
    return hashlib.blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _fingerprint(engine: AsyncEngine) -> str:
    """Changes when the same seed might give another text."""
    made_of = f"{__version__}:{engine.engine.model_name}:{engine.engine.vocab_size}"
    return "fp_" + hashlib.blake2b(made_of.encode(), digest_size=6).hexdigest()

"""Requests become jobs of the engine, and jobs become answers."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from paceline.core import InvalidRequest, SamplingParams
from paceline.core.errors import shown as quoted
from paceline.engine.async_engine import AsyncEngine, Stream
from paceline.engine.reservations import Reservation
from paceline.server.bodies import BodyReader
from paceline.server.errors import SHUTTING_DOWN, ApiError, invalid
from paceline.server.gate import bearer, client_of
from paceline.server.grammars import AnswerForm, GrammarReader
from paceline.server.job import Job
from paceline.server.live import Live
from paceline.server.metrics import ServerMetrics
from paceline.server.prompt_size import PromptSize
from paceline.server.prompts import PromptEncoder
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.responses import write_json
from paceline.server.rounds import RoundStore, shown
from paceline.server.settings import ServerSettings
from paceline.server.shapes import ChatShape, CompletionShape, Shape
from paceline.server.streaming import EventStream
from paceline.server.tally import Traffic
from paceline.server.tokens import TokenTexts
from paceline.server.wire import Frames, Padding
from paceline.version import __version__

CLIENT_CLOSED_REQUEST = 499  # nobody reads it; access logs know it


@dataclass(frozen=True, slots=True)
class Scope:
    """The cache scope of a request. `share_answers` lets its drafts come from others' answers in
    the scope, and theirs from its answer; `tells_cached` shows cached tokens in the usage.
    """

    salt: bytes
    share_answers: bool
    tells_cached: bool


class Serving:
    """The engine, and all that is made once for the endpoints."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings) -> None:
        self.engine, self.settings = engine, settings
        self.models = settings.served_model_names or (engine.model_name,)
        self.started = int(time.time())
        self.metrics = ServerMetrics(self.models[0], engine.stats)
        self._traffic = Traffic()
        self.live = Live(engine.stats, self._traffic)
        size = PromptSize(engine.tokenizer, engine.max_model_len)
        self.bodies = BodyReader(size, settings)
        self.encoder = PromptEncoder(engine.tokenizer, size)
        compiler = engine.compiler
        self._grammars = GrammarReader(engine.tokenizer, compiler)
        compiler.warm_up()
        self._rounds = RoundStore()
        self._texts = TokenTexts(engine.tokenizer)
        self._fingerprint = _fingerprint(engine)

    async def chat(self, body: ChatRequest, http: Request) -> Response:
        client = client_of(http, self.settings)
        return await self._answer(ChatShape, body, lambda: self.encoder.chat(body, client), http)

    async def complete(self, body: CompletionRequest, http: Request) -> Response:
        client = client_of(http, self.settings)
        encode = lambda: self.encoder.prompts(body, client)  # noqa: E731
        return await self._answer(CompletionShape, body, encode, http)

    def rounds(self, request_id: str, http: Request) -> dict[str, Any]:
        """Return the rounds of a request that had `explain` set. Raises ApiError (404)."""
        return shown(self._rounds.find(request_id, self._owner(http)), self._texts)

    def facts(self) -> dict[str, Any]:
        """Return what the page needs to know about the server."""
        engine, config = self.engine, self.engine.config
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
            names = ", ".join(self.models)
            message = f"model: no model {quoted(name)} here; this server has {names}"
            raise ApiError(404, message, param="model", code="model_not_found")

    # -- inside -----------------------------------------------------------------------------------

    def _scope(self, body: ChatRequest | CompletionRequest, http: Request) -> Scope:
        names, setting = body.scope_names, self.settings.share_answers
        is_named = any(name is not None for name in names)
        return Scope(
            salt=scope_salt(self._owner(http) or None, names),
            share_answers=setting == "always" or (setting == "named" and is_named),
            tells_cached=setting == "always" or is_named,
        )

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
        scope = self._scope(body, http)
        with self.engine.reserve(params.n, body.num_prompts) as reservation:
            form = await self._grammars.form(body, _body_size(http))
            params = with_form(params, form)
            job = self._start(shape_of.kind, body, params, await encode(), scope, reservation)
        if body.explain:
            job.log = self._rounds.open(
                job.id,
                self._owner(http),
                created=job.created,
                model=job.model,
                choices=len(job.choices),
            )
        shape = shape_of(
            job,
            self._texts,
            self._fingerprint,
            bool(body.return_token_ids),
            form.calls,
            rounds=bool(body.streaming.include_rounds),
        )
        if body.stream:
            return self._stream(body, shape, params)
        await job.finish(http.receive)
        if job.gone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return Response(write_json(shape.answer()), media_type="application/json")

    def _stream(
        self, body: ChatRequest | CompletionRequest, shape: Shape, params: SamplingParams
    ) -> EventStream:
        sizes, job = shape.event_sizes(params.logprobs), shape.job
        padding = frames = None
        if body.streaming.include_obfuscation:
            padding = Padding(sizes.unit((job.draft_bound or 0) + 1))
        seconds = self.settings.steady_stream / 1e3
        if seconds:
            at_once = min(len(job.choices), self.engine.config.max_num_seqs)
            frames = Frames(sizes.frame(seconds, at_once))
        return EventStream(
            shape,
            include_usage=bool(body.streaming.include_usage),
            continuous_usage=bool(body.streaming.continuous_usage_stats),
            padding=padding,
            frames=frames,
            frame_seconds=seconds,
            spans=self.engine.spans.lane(f"stream {job.id}"),
        )

    def _start(
        self,
        kind: str,
        body: ChatRequest | CompletionRequest,
        params: SamplingParams,
        prompts: list[list[int]],
        scope: Scope,
        reservation: Reservation,
    ) -> Job:
        """Submit every prompt or none."""
        self._check_draining()  # a drain may have begun while the prompts were being encoded
        speculative = body.speculative_params()
        answer_id = f"{kind}-{uuid.uuid4().hex}"
        streams: list[Stream] = []
        try:
            for index, prompt in enumerate(prompts):
                stream = self.engine.submit(
                    prompt,
                    params,
                    speculative,
                    request_id=f"{answer_id}-{index}",
                    salt=scope.salt,
                    share_answers=scope.share_answers,
                    explain=bool(body.explain),
                    cohort=body.model,  # what an app calls the model tells apps apart
                    reservation=reservation,
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
            lossy=speculative.lossy,
            tells_cached=scope.tells_cached,
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
        """Return the engine's refusal with this endpoint's name of the field."""
        names = {"prompt": body.prompt_field, "max_tokens": body.max_tokens_field}
        longest = max(len(prompt) for prompt in prompts)
        too_long = longest + (params.max_tokens or 1) > self.engine.max_model_len
        code = "context_length_exceeded" if error.field in names and too_long else None
        field = names.get(error.field, error.field)
        return invalid(InvalidRequest(field, error.value, error.expected), code)


def _body_size(http: Request) -> float:
    """Return the bytes of the body by its header; a body without one waits behind all others."""
    return float(http.headers.get("content-length", "inf"))


def with_form(params: SamplingParams, form: AnswerForm) -> SamplingParams:
    """Return `params` with the grammar of `form`. Calls need their special tokens in the text."""
    if form.grammar is None:
        return params
    skip = params.skip_special_tokens and form.calls is None
    return replace(params, grammar=form.grammar, skip_special_tokens=skip)


def _drafting(streams: list[Stream]) -> tuple[str | None, int | None]:
    """Return the drafter of these streams and their longest draft, or twice None where none of them
    drafts: some of them may have been held back."""
    for stream in streams:
        for request in stream.requests:
            if request.drafter is not None:
                return request.drafter, request.max_draft_len
    return None, None


def scope_salt(api_key: str | None, names: Sequence[str | None]) -> bytes:
    """Return the scope of cached prefixes and answers; requests share them if all parts agree.

    Requests in one scope can learn, by timing, what others in it have sent.
    """
    parts = (api_key, *names)
    if not any(part is not None for part in parts):
        return b""
    return hashlib.blake2b(_joined(parts), digest_size=16).digest()


def _joined(parts: Sequence[str | None]) -> bytes:
    """Join parts so that different parts give different bytes: a length or a dash leads each."""
    encoded = (None if part is None else part.encode("utf-8", "surrogatepass") for part in parts)
    return b"".join(b"-" if part is None else b"%d:%b" % (len(part), part) for part in encoded)


def _fingerprint(engine: AsyncEngine) -> str:
    """Return a name that changes when the same seed might give another text."""
    made_of = f"{__version__}:{engine.model_name}:{engine.vocab_size}"
    return "fp_" + hashlib.blake2b(made_of.encode(), digest_size=6).hexdigest()

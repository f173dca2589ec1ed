"""Requests become jobs of the engine, and jobs become answers."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from paceline.core import InvalidRequest, SamplingParams
from paceline.core.errors import shown as quoted
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.reservations import Reservation
from paceline.engine.routes import RouteKey
from paceline.engine.stream import Stream
from paceline.server.access import record_of
from paceline.server.bodies import BodyReader
from paceline.server.capture import capture_of
from paceline.server.cohort_metrics import capture_metrics, cohort_metrics
from paceline.server.cohorts import Caller, Callers
from paceline.server.drafter_metrics import DrafterMetrics
from paceline.server.errors import ApiError, invalid, shutting_down
from paceline.server.gate import bearer, client_of
from paceline.server.grammars import AnswerForm, GrammarReader
from paceline.server.job import Job
from paceline.server.live import Live
from paceline.server.metrics import ServerMetrics
from paceline.server.page_answers import RecentRequests, ServingFacts
from paceline.server.prompt_size import PromptSize
from paceline.server.prompts import PromptEncoder
from paceline.server.protocol import ChatRequest, CompletionRequest, RequestBody
from paceline.server.responses import write_json
from paceline.server.rounds import RoundStore
from paceline.server.settings import ServerSettings
from paceline.server.shapes import ChatShape, CompletionShape, Shape
from paceline.server.streaming import EventStream, StreamWriting, encoded
from paceline.server.tally import Traffic
from paceline.server.tokens import TokenTexts
from paceline.server.wire import EventSizes, Frames
from paceline.version import __version__

CLIENT_CLOSED_REQUEST = 499  # nobody reads it; access logs know it


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """A job that runs, the form of its answer, and the texts of the prompts that it repeats."""

    job: Job
    form: AnswerForm
    echo: list[str]


class Serving:
    """The engine, and all that is made once for the endpoints."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings) -> None:
        self.engine, self.settings = engine, settings
        self.models = settings.served_model_names or (engine.model_name,)
        self.started = int(time.time())
        self.callers = Callers(settings.keys_by_name)
        self._traffic = Traffic()
        self.capture = capture_of(settings)
        sources = [cohort_metrics(self._traffic)]
        if self.capture is not None:
            capture = self.capture
            sources.append(capture_metrics(self.models[0], lambda: capture.counts))
        self.metrics = ServerMetrics(self.models[0], engine.stats, sources)
        self._by_drafter = DrafterMetrics(self.models[0], engine.versions, self._traffic.by_version)
        self.metrics.add(self._by_drafter)
        self.live = Live(
            engine.stats,
            self._traffic,
            lambda: {(each.name, each.version) for each in engine.versions.list()},
        )
        size = PromptSize(engine.tokenizer, engine.max_model_len)
        self.bodies = BodyReader(size, settings)
        self.encoder = PromptEncoder(engine.tokenizer, size)
        self._grammars = GrammarReader(engine.tokenizer, engine.compiler)
        self.texts = TokenTexts(engine.tokenizer)
        self._rounds = RoundStore(self.texts)
        # changes when the same seed might give another text
        made_of = f"{__version__}:{engine.model_name}:{engine.vocab_size}"
        self._fingerprint = "fp_" + hashlib.blake2b(made_of.encode(), digest_size=6).hexdigest()

    async def answer(self, body: ChatRequest | CompletionRequest, http: Request) -> Response:
        """Answer a request, whole or as a stream. Raises InvalidRequest or ApiError."""
        shape_of = ChatShape if isinstance(body, ChatRequest) else CompletionShape
        opened = await self.open(body, http, f"{shape_of.kind}-")
        job = opened.job
        shape = shape_of(
            job,
            self.texts,
            self._fingerprint,
            bool(body.return_token_ids),
            opened.form.format,
            rounds=bool(body.streaming.include_rounds),
            id_labels=bool(body.return_tokens_as_token_ids),
        )
        if isinstance(shape, CompletionShape):
            shape.echo = opened.echo
        if body.stream:
            return self._stream(body, shape, job.params)

        def written(shape: Shape) -> bytes:
            return write_json(shape.answer())

        return await answered(
            job, http, lambda: encoded(written, shape, is_large=job.tells_logprobs)
        )

    async def open(
        self, body: ChatRequest | CompletionRequest, http: Request, kind: str
    ) -> OpenedJob:
        """Start what a request asks for; its id begins with `kind`.

        Raises InvalidRequest or ApiError.
        """
        self.settle_model(body)
        if self.settings.lenient and isinstance(body, ChatRequest):
            body, unread = self.encoder.conversations.without_unread(body)
            record_of(http.scope).ignored += unread
        params = body.params
        self._check_draining()
        owner, client = self.owner(http), client_of(http, self.settings)
        caller = self.callers.of(body, http.headers, record_of(http.scope).key)
        with self.engine.reserve(params.n, body.num_prompts) as reservation:
            # a body of unknown size waits behind all others
            size = float(http.headers.get("content-length", "inf"))
            prompts = await self.encoder.encode(body, client)
            body.check_prompts(prompts)
            form = await self._grammars.form(body, size, prompts[0])
            params = with_form(params, form)
            echo = await self._echo(body, prompts, client)
            job = self._start(kind, body, params, prompts, owner, caller, reservation)
        record_of(http.scope).job = job
        if body.explain:
            job.log = self._rounds.open(
                job.id, owner, created=job.created, model=job.model, choices=len(job.choices)
            )
        return OpenedJob(job, form, echo)

    @contextmanager
    def turn(self, http: Request) -> Iterator[str]:
        """Reserve room for a request that only has something encoded, and give its client, for
        taking turns: what waits is bounded as the queue is. Raises QueueFull."""
        with self.engine.reserve(1):
            yield client_of(http, self.settings)

    async def _echo(
        self, body: ChatRequest | CompletionRequest, prompts: list[list[int]], client: str
    ) -> list[str]:
        """Return the texts of prompts that are echoed, as they were sent."""
        if isinstance(body, ChatRequest) or not body.echo:
            return []
        special = body.skip_special_tokens is False
        sent = [[] if isinstance(text, str) else text for text in body.prompts]
        decoded = await self.encoder.texts(sent, client, special=special)
        pairs = zip(body.prompts, decoded, strict=True)
        return [sent if isinstance(sent, str) else text for sent, text in pairs]

    async def rounds(self, request_id: str, http: Request) -> bytes:
        """Return the RequestRounds of a request that had `explain` set, as JSON. Raises ApiError
        (404)."""
        return await run_in_threadpool(self._rounds.find(request_id, self.owner(http)).writer())

    def recent(self, http: Request) -> RecentRequests:
        """Return the client's latest requests that had `explain` set."""
        return {"requests": self._rounds.latest(self.owner(http))}

    def facts(self) -> ServingFacts:
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

    def settle_model(self, body: RequestBody) -> None:
        """Give a request without a model that of this server. Raises ApiError (404)."""
        body.model = body.model or self.models[0]
        self.check_model(body.model)

    def check_model(self, name: str) -> None:
        if name not in self.models:
            names = ", ".join(self.models)
            message = f"model: no model {quoted(name)} here; this server has {names}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def owner(self, http: Request) -> str:
        """Return whose request it is: the API key, or nothing on an open server."""
        return bearer(http.headers) if self.settings.api_keys else ""

    def _stream(
        self, body: ChatRequest | CompletionRequest, shape: Shape, params: SamplingParams
    ) -> EventStream:
        options, sizes = body.streaming, shape.event_sizes(params.logprobs)
        return EventStream(
            shape,
            self.writing(shape.job, sizes, padded=bool(options.include_obfuscation)),
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.continuous_usage_stats),
        )

    def writing(self, job: Job, sizes: EventSizes, *, padded: bool) -> StreamWriting:
        """Return how to write events of `sizes`, all of one size if `padded`."""
        seconds = self.settings.steady_stream / 1e3
        at_once = min(len(job.choices), self.engine.config.max_num_seqs)
        return StreamWriting(
            unit=sizes.unit((job.draft_bound or 0) + 1) if padded else 1,
            frames=Frames(sizes.frame(seconds, at_once)) if seconds else None,
            frame_seconds=seconds,
            spans=self.engine.spans.lane(f"stream {job.id}"),
            step_spans=self.engine.spans,
        )

    def _start(
        self,
        kind: str,
        body: ChatRequest | CompletionRequest,
        params: SamplingParams,
        prompts: list[list[int]],
        owner: str,
        caller: Caller,
        reservation: Reservation,
    ) -> Job:
        """Submit every prompt or none."""
        self._check_draining()  # a drain may have begun while the prompts were being encoded
        names, sharing = body.scope_names, self.settings.share_answers
        is_named = any(name is not None for name in names)
        answer_id = f"{kind}{uuid.uuid4().hex}"
        route_key = RouteKey(caller.cohort, caller.session or answer_id)
        streams: list[Stream] = []
        try:
            for index, prompt in enumerate(prompts):
                stream = self.engine.submit(
                    prompt,
                    params,
                    body.speculative_params(),
                    request_id=f"{answer_id}-{index}",
                    salt=scope_salt(owner or None, names),
                    share_answers=sharing == "always" or (sharing == "named" and is_named),
                    key=caller.key.name if caller.key else "",
                    explain=bool(body.explain),
                    cohort=caller.counted.label,
                    route_key=route_key,
                    reservation=reservation,
                )
                streams.append(stream)
                self._by_drafter.note(stream.requests)
        except BaseException as error:
            for stream in streams:
                stream.abort()
            if isinstance(error, InvalidRequest):
                raise self._renamed(error, body, params, prompts) from None
            raise
        return Job(
            answer_id,
            body.model,
            caller,
            streams,
            self.metrics,
            self._traffic,
            spec_metrics=self.settings.spec_metrics,
            tells_cached=sharing == "always" or is_named,
            capture=self.capture,
        )

    def _check_draining(self) -> None:
        if self.engine.draining:
            raise shutting_down()

    def _renamed(
        self,
        error: InvalidRequest,
        body: ChatRequest | CompletionRequest,
        params: SamplingParams,
        prompts: list[list[int]],
    ) -> ApiError:
        """Return the engine's refusal with this endpoint's name of the field."""
        names = {"prompt": body.prompt_field, "max_tokens": body.max_tokens_field}
        too_long = max(map(len, prompts)) + (params.max_tokens or 1) > self.engine.max_model_len
        code = "context_length_exceeded" if error.field in names and too_long else None
        field = names.get(error.field, error.field)
        return invalid(InvalidRequest(field, error.value, error.expected), code)


async def answered(job: Job, http: Request, write: Callable[[], Awaitable[bytes]]) -> Response:
    """Return the answer of a job, encoded by `write`, when the job has ended. Raises ApiError."""
    await job.finish(http.receive)
    if job.gone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return Response(await write(), media_type="application/json")


def with_form(params: SamplingParams, form: AnswerForm) -> SamplingParams:
    """Return `params` with the grammar of `form`, and special tokens in the text for its parser."""
    skip = params.skip_special_tokens and not form.has_specials
    if form.grammar is None and skip == params.skip_special_tokens:
        return params
    return replace(params, grammar=form.grammar, skip_special_tokens=skip)


def scope_salt(api_key: str | None, names: Sequence[str | None]) -> bytes:
    """Return the scope of cached prefixes and answers; requests share them if all parts agree.

    Requests in one scope can learn, by timing, what others in it have sent.
    """
    parts = (api_key, *names)
    if not any(part is not None for part in parts):
        return b""
    # a length or a dash leads each part, so that different parts give different bytes
    encoded = (None if part is None else part.encode("utf-8", "surrogatepass") for part in parts)
    joined = b"".join(b"-" if part is None else b"%d:%b" % (len(part), part) for part in encoded)
    return hashlib.blake2b(joined, digest_size=16).digest()

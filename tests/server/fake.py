"""An engine that answers at once, the same every time: what protocol tests need of the real one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import cycle
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.core import (
    FinishReason,
    OutputDelta,
    Request,
    RequestMetrics,
    Round,
    SamplingParams,
    SpeculationStats,
    SpeculativeParams,
    TokenKind,
    TokenLogprobs,
)
from paceline.core.spans import OFF
from paceline.engine.admission import Admission
from paceline.engine.async_engine import EngineDead
from paceline.engine.config import EngineConfig, EngineStats
from paceline.engine.grammar import Compiler
from paceline.engine.reservations import Reservation, StreamLimit
from paceline.engine.routes import RouteKey, Routes
from paceline.engine.stream import Stream
from paceline.engine.versions import LoadCounts

REPLY = "Ein Gruß 🚴! "  # several bytes in two of its characters, which bursts of 3 tokens cut
BURST = 3
END = "<|im_end|>"
TEMPLATE = (  # drops roles it does not know and reads one variable, as many real ones do
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% if m.content == 'refuse' %}{{ raise_exception('no such talk') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if think %}<think>{{ think }}</think>{% endif %}"
)


@cache
def byte_tokenizer() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", END])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.chat_template = TEMPLATE
    return fast


@cache
def compiler() -> Compiler:
    tokenizer = byte_tokenizer()
    return Compiler(tokenizer, len(tokenizer), {tokenizer.eos_token_id})


TOLD = (
    "config", "model_name", "max_model_len", "vocab_size", "tokenizer", "drafters",
    "default_drafter", "spans",
)  # fmt: skip


class FakeAsyncEngine:
    """AsyncEngine's interface. Every stream repeats REPLY, `BURST` tokens per step.

    `step` is the seconds between two steps; `capacity` how many streams fit, `others` how many of
    those places are taken already; `fail` ends streams with an error, as a dying engine does.
    `part` names the part of the drafter that drafts. `bursts` are the tokens of each step in turn,
    in place of BURST; every token more makes its step longer by `token_time` seconds.
    `submitted` and `aborted` note what came in and what was freed.
    """

    def __init__(
        self,
        *,
        step: float = 0.0,
        capacity: int = 64,
        max_model_len: int = 512,
        fail: bool = False,
        drafter: bool = True,
        part: str | None = None,
        reply: str = REPLY,
        bursts: Sequence[int] = (BURST,),
        token_time: float = 0.0,
    ) -> None:
        tokenizer = byte_tokenizer()
        drafters = {"ngram": SimpleNamespace(max_draft_len=4, version="1")} if drafter else {}
        self.engine = SimpleNamespace(
            model_name="fake-model",
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            vocab_size=len(tokenizer),
            spans=OFF,
            drafters=drafters,
            default_drafter=next(iter(drafters), None),
            eos_ids=frozenset({tokenizer.eos_token_id}),
            grammars=SimpleNamespace(compiler=compiler()),
            config=EngineConfig(),
        )
        self.step, self.fail, self.others, self.part = step, fail, 0, part
        self.reply, self.bursts, self.token_time = reply, bursts, token_time
        self.room = StreamLimit(capacity, lambda: len(self._running) + self.others, lambda: 0)
        self.draining, self.alive = False, True
        self.error: BaseException | None = None
        self.submitted: list[Request] = []
        self.aborted: list[str] = []
        self._admission = Admission(
            len(tokenizer),
            max_model_len,
            self.engine.eos_ids,
            drafters,
            Routes(default=self.engine.default_drafter),
        )
        self.versions = SimpleNamespace(
            list=list, used=Counter, counts=LoadCounts(), routes=self._admission.routes
        )
        # What stats() says beside what the streams do: tests write their own numbers here.
        self.counts: dict[str, Any] = {"kv_blocks_total": 100, "kv_blocks_free": 100}
        self.speculation = SpeculationStats()
        self._finished: dict[str, int] = {}
        self._running: dict[str, tuple[Request, Stream]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        """Return what AsyncEngine tells of its engine."""
        if name == "compiler":
            return self.engine.grammars.compiler
        if name not in TOLD:
            raise AttributeError(name)
        return getattr(self.engine, name)

    def start(self) -> None:
        pass

    def shutdown(self) -> None:
        self.alive = False

    async def died(self) -> BaseException:
        while self.error is None:
            await asyncio.sleep(0.005)
        return self.error

    def reserve(self, n: int, prompts: int = 1) -> Reservation:
        if not self.alive:
            raise EngineDead("the engine has stopped")
        return self.room.reserve(n, prompts)

    def submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        speculative: SpeculativeParams | None = None,
        *,
        request_id: str,
        salt: bytes = b"",
        share_answers: bool = True,
        key: str = "",
        cohort: str = "",
        route_key: RouteKey | None = None,
        explain: bool = False,
        reservation: Reservation | None = None,
    ) -> Stream:
        assert reservation is not None, "the server reserves room before it encodes a prompt"
        requests = self._admission.make_requests(
            prompt_ids,
            params,
            speculative,
            request_id=request_id,
            salt=salt,
            share_answers=share_answers,
            key=key,
            cohort=cohort,
            route_key=route_key,
        )
        reservation.take(len(requests))
        assert not any(request.id in self._running for request in requests)
        stream = Stream(self.abort, requests)
        self.submitted += requests
        for request in requests:
            request.arrival = reservation.arrival
            self._running[request.id] = (request, stream)
        task = asyncio.get_running_loop().create_task(self._generate(requests))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if request_id in self._running:
                self.aborted.append(request_id)
                self._end(request_id, FinishReason.ABORT, OutputDelta(request_id="", choice=0))

    def stats(self) -> EngineStats:
        counts = {"running": len(self._running), "requests_finished": self._finished, **self.counts}
        return EngineStats(speculation=self.speculation.copy(), **counts)

    async def drain(self, timeout: float) -> None:
        self.draining = True
        end = time.monotonic() + timeout
        while self._running and time.monotonic() < end:
            await asyncio.sleep(0.005)
        self.abort(list(self._running))

    # -- inside -----------------------------------------------------------------------------------

    async def _generate(self, requests: list[Request]) -> None:
        reply = self.engine.tokenizer(self.reply, add_special_tokens=False)["input_ids"]
        for burst in cycle(self.bursts):
            if not any(request.id in self._running for request in requests):
                return
            await asyncio.sleep(self.step + burst * self.token_time)
            for request in requests:
                if request.id in self._running:
                    self._advance(request, reply, burst)

    def _advance(self, request: Request, reply: list[int], burst: int) -> None:
        if self.fail:
            delta = OutputDelta(request_id="", choice=0, error="boom")
            return self._end(request.id, FinishReason.ERROR, delta)
        scored = None
        if request.prompt_logprobs is not None:
            request.prompt_logprobs = None
            top = tuple((t, -0.5 - t) for t in range(request.params.prompt_logprobs or 0))
            scored = tuple(TokenLogprobs(token, -1.0, top) for token in request.prompt_ids[1:])
        if request.prompt_only:
            delta = OutputDelta(request_id="", choice=0, prompt_logprobs=scored)
            return self._end(request.id, FinishReason.LENGTH, delta)
        room = request.max_tokens - request.output_len
        before, reason = request.output_len, None
        count = min(burst, room) if request.drafter else 1
        tokens = [reply[(before + i) % len(reply)] for i in range(count)]
        if not request.params.ignore_eos and before + count > 3 * len(reply):
            tokens, reason = [self.engine.tokenizer.eos_token_id], FinishReason.STOP
        request.tokens += tokens
        request.first_token = request.first_token or time.monotonic()
        if request.output_len >= request.max_tokens:
            reason = reason or FinishReason.LENGTH
        drafted = min(4, count) if request.drafter else 0
        round = Round(before, drafted, count - 1, part=self.part if drafted else None)
        self.speculation.add(round)
        logprobs = None
        if request.params.logprobs is not None:
            top = tuple((t, -0.5 - t) for t in range(request.params.logprobs))
            logprobs = tuple(TokenLogprobs(token, -0.25, top) for token in tokens)
        delta = OutputDelta(
            request_id="",
            choice=0,
            token_ids=tuple(tokens),
            kinds=(TokenKind.ACCEPTED,) * (len(tokens) - 1) + (TokenKind.BONUS,),
            text=self._fresh_text(request, before, last=reason is not None),
            logprobs=logprobs,
            prompt_logprobs=scored,
            round=round,
        )
        if reason is not None:
            return self._end(request.id, reason, delta)
        _give(self._running[request.id][1], self._filled(request, delta))

    def _fresh_text(self, request: Request, before: int, *, last: bool) -> str:
        """Text since `before`, whole characters only, as the real engine gives it."""
        given = self._whole(request.output_ids[:before])
        now = self._decode(request.output_ids) if last else self._whole(request.output_ids)
        return now[len(given) :]

    def _whole(self, ids: list[int]) -> str:
        return self._decode(ids).rstrip("�")

    def _decode(self, ids: list[int]) -> str:
        return self.engine.tokenizer.decode(ids, skip_special_tokens=True)

    def _end(self, request_id: str, reason: FinishReason, delta: OutputDelta) -> None:
        request, stream = self._running.pop(request_id)
        request.finish_reason, request.finished = reason, time.monotonic()
        self._finished[reason] = self._finished.get(reason, 0) + 1
        _give(stream, self._filled(request, delta))

    def _filled(self, request: Request, delta: OutputDelta) -> OutputDelta:
        metrics = None
        if request.finish_reason is not None:
            first, end, count = request.first_token, time.monotonic(), request.output_len
            ttft = None if first is None else first - request.arrival
            tpot = None if first is None or count < 2 else (end - first) / (count - 1)
            metrics = RequestMetrics(0.001, ttft, tpot, end - request.arrival)
        return delta._replace(
            request_id=request.id,
            choice=request.choice,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            prompt_tokens=request.prompt_len,
            cached_tokens=request.prompt_len // 2,
            completion_tokens=request.output_len,
            seed=request.seed,
            metrics=metrics,
        )


def _give(stream: Stream, delta: OutputDelta) -> None:
    """Deliver as AsyncEngine does, on one thread."""
    left = stream.offer([delta])
    if left is not None:
        stream.put(left)

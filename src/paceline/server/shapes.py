"""The answers of the two endpoints, whole or as chunks of a stream, made of tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar, cast

from paceline.core import FinishReason, OutputDelta, TokenLogprobs
from paceline.engine.tool_calls import ToolFormat
from paceline.server.calls import Call, CallParser, Piece
from paceline.server.job import Job, StreamRecord
from paceline.server.responses import (
    AnswerHead,
    AssistantMessage,
    CallMade,
    CallPiece,
    ChatLogprob,
    ChatLogprobs,
    ChunkBody,
    ChunkChoice,
    CompletionLogprobs,
    Finish,
    FunctionPiece,
    MessageDelta,
    TopLogprob,
    write_json,
)
from paceline.server.rounds import round_shown
from paceline.server.tokens import TokenTexts
from paceline.server.wire import EventSizes, joined

LOWEST = -9999.0  # JSON has no infinity; OpenAI writes this for a probability of 0
# stand for the text and the token ids in a chunk that is encoded once
MARK, NO_IDS = "\0text\0", [-1]


class Shape:
    """Base of both endpoints' answers. One object writes one answer."""

    kind: ClassVar[str]  # prefix of the id
    answer_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(
        self,
        job: Job,
        texts: TokenTexts,
        fingerprint: str,
        token_ids: bool,
        calls: ToolFormat | None = None,
        *,
        rounds: bool = False,
    ) -> None:
        self._parsers = [CallParser(calls) for _ in job.choices] if calls is not None else None
        self.job, self._texts, self._token_ids, self._rounds = job, texts, token_ids, rounds
        self._head: AnswerHead = {
            "id": job.id,
            "created": job.created,
            "model": job.model,
            "system_fingerprint": fingerprint,
        }
        self._chunk_head = write_json({"object": self.chunk_object, **self._head})
        self._offsets = [0] * len(job.choices)
        self._has_templates = not (rounds or calls)
        self._templates: list[tuple[bytes, bytes, bytes]] = []

    def event_sizes(self, logprobs: int | None) -> EventSizes:
        """Return the usual sizes of the events, with `logprobs` alternatives to each token."""
        return EventSizes.of(
            len(self._chunk_head), logprobs=logprobs, token_ids=self._token_ids, rounds=self._rounds
        )

    def answer(self) -> dict[str, object]:
        """Return the answer of a job that has finished: a ChatCompletion or a Completion."""
        return {
            **self._head,
            "object": self.answer_object,
            "choices": [self._choice(*numbered) for numbered in enumerate(self.job.choices)],
            "usage": self.job.usage(),
            "metrics": self.job.measured(),
        }

    # -- chunks of a stream -----------------------------------------------------------------------

    def chunk_json(self, body: ChunkBody) -> bytes:
        """Encode a chunk: `body` behind the head of this answer."""
        return joined(self._chunk_head, write_json(body))

    def text_json(self, index: int, delta: OutputDelta) -> bytes | None:
        """Encode the chunk of a delta that adds text and perhaps token ids; None for other deltas.

        It equals chunk_json(chunk()) and takes a third of the time.
        """
        if not self._has_templates or delta.logprobs is not None or not delta.text:
            return None
        if not self._templates:
            self._templates = [self._template(place) for place in range(len(self._offsets))]
        before, middle, after = self._templates[index]
        ids = str(list(delta.token_ids)).encode() if self._token_ids else b""
        return before + json.dumps(delta.text).encode() + middle + ids + after

    def first(self, index: int) -> ChunkBody | None:
        """Return the chunk that opens a choice, None where the endpoint needs none."""
        raise NotImplementedError

    def chunk(self, index: int, delta: OutputDelta) -> ChunkBody | None:
        """Return the chunk with a delta's tokens, None where there is nothing to show yet."""
        choice = self._added(index, delta)
        if choice is None:
            return None
        if delta.logprobs is not None:
            choice["logprobs"] = self._logprobs(index, delta.logprobs)
        if self._token_ids:
            choice["token_ids"] = list(delta.token_ids)
        if self._rounds and delta.explained is not None:
            choice["round"] = round_shown(delta, self._texts)
        return {"choices": [choice]}

    def last(self, index: int, delta: OutputDelta) -> ChunkBody:
        """Return the chunk that says why a choice ended."""
        choice = self._ended(index)
        choice["finish_reason"] = self._reason(index, delta.finish_reason)
        choice["stop_reason"] = delta.stop_reason
        return {"choices": [choice]}

    def usage(self) -> ChunkBody:
        """Return the chunk without choices that ends a stream which asked for its usage."""
        return {"choices": [], "usage": self.job.usage(), "metrics": self.job.measured()}

    # -- members that the endpoints name differently ----------------------------------------------

    def _content(self, index: int, text: str) -> dict[str, object]:
        raise NotImplementedError

    def _text(self, index: int, text: str) -> ChunkChoice:
        raise NotImplementedError

    def _ended(self, index: int) -> ChunkChoice:
        return self._text(index, "")

    def _logprobs(
        self, index: int, rows: Sequence[TokenLogprobs]
    ) -> ChatLogprobs | CompletionLogprobs:
        raise NotImplementedError

    def _template(self, index: int) -> tuple[bytes, bytes, bytes]:
        """Return the JSON of a chunk up to its text, from there to its token ids, and the rest."""
        choice = self._text(index, MARK)
        if self._token_ids:
            choice["token_ids"] = NO_IDS
        chunk = self.chunk_json({"choices": [choice]})
        before, _, rest = chunk.rpartition(json.dumps(MARK).encode())
        middle, _, after = rest.partition(str(NO_IDS).encode())
        return before, middle, after

    def _added(self, index: int, delta: OutputDelta) -> ChunkChoice | None:
        return self._text(index, delta.text) if delta.text or self._tells_tokens(delta) else None

    def _tells_tokens(self, delta: OutputDelta) -> bool:
        return bool(delta.token_ids and (self._token_ids or self._rounds or delta.logprobs))

    def _reason(self, index: int, reason: FinishReason | None) -> Finish:
        called = self._parsers is not None and self._parsers[index].calls
        return cast(Finish, "tool_calls" if called and reason is FinishReason.STOP else reason)

    def _choice(self, index: int, choice: StreamRecord) -> dict[str, object]:
        rows, last = choice.logprobs, choice.last
        shown = {
            "index": index,
            **self._content(index, choice.text),
            "logprobs": None if rows is None else self._logprobs(index, rows),
            "finish_reason": self._reason(index, last.finish_reason if last else None),
            "stop_reason": last.stop_reason if last else None,
        }
        return {**shown, "token_ids": choice.token_ids} if self._token_ids else shown


class ChatShape(Shape):
    """The answer to a conversation."""

    kind, answer_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def answer(self) -> dict[str, object]:
        answer = super().answer()
        return {**answer, "prompt_token_ids": self.job.prompts[0]} if self._token_ids else answer

    def first(self, index: int) -> ChunkBody:
        delta: MessageDelta = {"role": "assistant", "content": "", "refusal": None}
        body: ChunkBody = {"choices": [_chat_choice(index, delta)]}
        if self._token_ids:
            body["prompt_token_ids"] = self.job.prompts[0]
        return body

    def _text(self, index: int, text: str) -> ChunkChoice:
        return _chat_choice(index, {"content": text})

    def _ended(self, index: int) -> ChunkChoice:
        return _chat_choice(index, {})

    def _added(self, index: int, delta: OutputDelta) -> ChunkChoice | None:
        """With tools, put all that the text adds to the content and to calls into one chunk, since
        its logprobs and token ids belong to all of them."""
        if self._parsers is None:
            return super()._added(index, delta)
        parser = self._parsers[index]
        pieces = parser.feed(delta.text, last=delta.finished)
        message: MessageDelta = {}
        if content := "".join(piece.content for piece in pieces):
            message["content"] = content
        if calls := [_call_piece(parser.calls, piece) for piece in pieces if piece.index >= 0]:
            message["tool_calls"] = calls
        return _chat_choice(index, message) if message or self._tells_tokens(delta) else None

    def _logprobs(self, index: int, rows: Sequence[TokenLogprobs]) -> ChatLogprobs:
        content: list[ChatLogprob] = [
            {
                **self._labelled(row.token, row.logprob),
                "top_logprobs": [self._labelled(token, logprob) for token, logprob in row.top],
            }
            for row in rows
        ]
        return {"content": content, "refusal": None}

    def _labelled(self, token: int, logprob: float) -> TopLogprob:
        text, raw = self._texts[token]
        return {"token": text, "logprob": max(logprob, LOWEST), "bytes": list(raw)}

    def _content(self, index: int, text: str) -> dict[str, object]:
        message: AssistantMessage = {"role": "assistant", "content": text, "refusal": None}
        if self._parsers is not None:
            parser = self._parsers[index]
            content = "".join(piece.content for piece in parser.feed(text, last=True))
            if parser.calls:
                message["content"] = content or None
                message["tool_calls"] = [_call(call) for call in parser.calls]
        return {"message": message}


class CompletionShape(Shape):
    """The continuations of prompts."""

    kind, answer_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def first(self, index: int) -> ChunkBody | None:
        if not self._token_ids:
            return None
        return {"choices": [{**self._text(index, ""), "prompt_token_ids": self._prompt(index)}]}

    def _text(self, index: int, text: str) -> ChunkChoice:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def _logprobs(self, index: int, rows: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        tokens = [self._texts[row.token][0] for row in rows]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [max(row.logprob, LOWEST) for row in rows],
            "top_logprobs": [self._top(row) for row in rows],
            "text_offset": offsets,
        }

    def _top(self, row: TokenLogprobs) -> dict[str, float]:
        pairs = [*row.top, (row.token, row.logprob)]
        return {self._texts[token][0]: max(logprob, LOWEST) for token, logprob in pairs}

    def _content(self, index: int, text: str) -> dict[str, object]:
        prompt = {"prompt_token_ids": self._prompt(index)} if self._token_ids else {}
        return {"text": text, **prompt}

    def _prompt(self, index: int) -> list[int]:
        return self.job.prompts[index // self.job.n]


def _chat_choice(index: int, delta: MessageDelta) -> ChunkChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _call(call: Call) -> CallMade:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _call_piece(calls: Sequence[Call], piece: Piece) -> CallPiece:
    if not piece.begins:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    call = calls[piece.index]
    function: FunctionPiece = {"name": call.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": call.id, "type": "function", "function": function}

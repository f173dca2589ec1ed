"""The answers of the two endpoints, whole or as chunks of a stream, made of tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import ClassVar, cast

from paceline.core import FinishReason, OutputDelta, TokenLogprobs
from paceline.server.job import Job, StreamRecord
from paceline.server.parsing import AnswerFormat, Call, Piece
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
from paceline.server.tokens import TokenIdLabels, TokenLabels, TokenTexts
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
        form: AnswerFormat | None = None,
        *,
        rounds: bool = False,
        id_labels: bool = False,
    ) -> None:
        self._labels: TokenLabels = TokenIdLabels(texts) if id_labels else texts
        self._parsers = None if form is None else [form.parser() for _ in job.choices]
        self.job, self._texts, self._token_ids, self._rounds = job, texts, token_ids, rounds
        self._head: AnswerHead = {
            "id": job.id,
            "created": job.created,
            "model": job.model,
            "system_fingerprint": fingerprint,
        }
        self._chunk_head = write_json({"object": self.chunk_object, **self._head})
        self._offsets = [0] * len(job.choices)
        self._templates: dict[str, list[tuple[bytes, bytes, bytes]]] = {}  # by member of a message

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

    def delta_json(self, index: int, delta: OutputDelta) -> bytes:
        """Encode chunk(), nothing for none.

        Where a delta adds to one text, a template takes a third of the time.
        """
        added = self._added(index, delta)
        if len(added) != 1 or "tool_calls" in added or self._rounds or delta.logprobs is not None:
            body = self._chunk(index, delta, added)
            return b"" if body is None else self.chunk_json(body)
        ((name, text),) = cast(dict[str, str], added).items()
        if name not in self._templates:
            places = range(len(self._offsets))
            self._templates[name] = [self._template(place, name) for place in places]
        before, middle, after = self._templates[name][index]
        ids = f"[{','.join(map(str, delta.token_ids))}]".encode() if self._token_ids else b""
        return before + encode_basestring_ascii(text).encode() + middle + ids + after

    def first(self, index: int, delta: OutputDelta) -> ChunkBody | None:
        """Return the chunk that opens a choice whose first delta is `delta`, None where the
        endpoint needs none."""
        raise NotImplementedError

    def chunk(self, index: int, delta: OutputDelta) -> ChunkBody | None:
        """Return the chunk with a delta's tokens, None where there is nothing to show yet."""
        return self._chunk(index, delta, self._added(index, delta))

    def _chunk(self, index: int, delta: OutputDelta, added: MessageDelta) -> ChunkBody | None:
        if not added and not self._tells_tokens(delta):
            return None
        choice = self._adding(index, added)
        if delta.logprobs is not None:
            choice["logprobs"] = self._logprobs(index, delta.logprobs)
        if self._token_ids:
            choice["token_ids"] = list(delta.token_ids)
        if self._rounds and delta.explained is not None:
            choice["round"] = round_shown(delta, self._texts)
        return {"choices": [choice]}

    def last(self, index: int, delta: OutputDelta) -> ChunkBody:
        """Return the chunk that says why a choice ended."""
        choice = self._adding(index, {})
        choice["finish_reason"] = self._reason(index, delta)
        choice["stop_reason"] = delta.stop_reason
        return {"choices": [choice]}

    def usage(self) -> ChunkBody:
        """Return the chunk without choices that ends a stream which asked for its usage."""
        return {"choices": [], "usage": self.job.usage(), "metrics": self.job.measured()}

    # -- members that the endpoints name differently ----------------------------------------------

    def _content(self, index: int, text: str) -> dict[str, object]:
        raise NotImplementedError

    def _adding(self, index: int, added: MessageDelta) -> ChunkChoice:
        """Return the choice of a chunk that adds to its message."""
        raise NotImplementedError

    def _logprobs(
        self, index: int, rows: Sequence[TokenLogprobs]
    ) -> ChatLogprobs | CompletionLogprobs:
        raise NotImplementedError

    def _template(self, index: int, name: str) -> tuple[bytes, bytes, bytes]:
        """Return the JSON of a chunk up to its text, from there to its token ids, and the rest."""
        choice = self._adding(index, cast(MessageDelta, {name: MARK}))
        if self._token_ids:
            choice["token_ids"] = NO_IDS
        chunk = self.chunk_json({"choices": [choice]})
        before, _, rest = chunk.rpartition(json.dumps(MARK).encode())
        middle, _, after = rest.partition(str(NO_IDS).encode())
        return before, middle, after

    def _added(self, index: int, delta: OutputDelta) -> MessageDelta:
        """Return what a delta adds to its message. All that it adds is in one chunk, since its
        logprobs and token ids belong to all of it."""
        if self._parsers is None:
            return {"content": delta.text} if delta.text or self._tells_tokens(delta) else {}
        parser = self._parsers[index]
        pieces = parser.feed(delta.text, last=delta.finished)
        message: MessageDelta = {}
        if reasoning := "".join(piece.reasoning for piece in pieces):
            message["reasoning_content"] = reasoning
        if content := "".join(piece.content for piece in pieces):
            message["content"] = content
        if calls := _call_pieces(parser.calls, pieces):
            message["tool_calls"] = calls
        return message

    def _tells_tokens(self, delta: OutputDelta) -> bool:
        return bool(delta.token_ids and (self._token_ids or self._rounds or delta.logprobs))

    def _reason(self, index: int, last: OutputDelta | None) -> Finish:
        """Return why a choice ended: "tool_calls" only where its calls can be run."""
        if last is None:
            return cast(Finish, None)
        calls = self._parsers[index].calls if self._parsers is not None else []
        cut = isinstance(last.stop_reason, str)  # a text of `stop` may stand within a call
        called = bool(calls) and calls[-1].complete and not cut
        is_call = called and last.finish_reason is FinishReason.STOP
        return cast(Finish, "tool_calls" if is_call else last.finish_reason)

    def _rows(self, index: int, choice: StreamRecord) -> Sequence[TokenLogprobs] | None:
        """Return the log-probabilities that a choice shows."""
        return choice.logprobs

    def _choice(self, index: int, choice: StreamRecord) -> dict[str, object]:
        rows, last = self._rows(index, choice), choice.last
        shown = {
            "index": index,
            **self._content(index, choice.text),
            "logprobs": None if rows is None else self._logprobs(index, rows),
            "finish_reason": self._reason(index, last),
            "stop_reason": last.stop_reason if last else None,
        }
        return {**shown, "token_ids": choice.token_ids} if self._token_ids else shown


class ChatShape(Shape):
    """The answer to a conversation."""

    kind, answer_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def answer(self) -> dict[str, object]:
        answer = super().answer()
        return {**answer, "prompt_token_ids": self.job.prompts[0]} if self._token_ids else answer

    def first(self, index: int, delta: OutputDelta) -> ChunkBody:
        message: MessageDelta = {"role": "assistant", "content": "", "refusal": None}
        body: ChunkBody = {"choices": [self._adding(index, message)]}
        if self._token_ids:
            body["prompt_token_ids"] = self.job.prompts[0]
        return body

    def _adding(self, index: int, added: MessageDelta) -> ChunkChoice:
        return {"index": index, "delta": added, "logprobs": None, "finish_reason": None}

    def _logprobs(self, index: int, rows: Sequence[TokenLogprobs]) -> ChatLogprobs:
        return {"content": chat_logprobs(self._labels, rows), "refusal": None}

    def _content(self, index: int, text: str) -> dict[str, object]:
        message: AssistantMessage = {"role": "assistant", "content": text, "refusal": None}
        if self._parsers is not None:
            parser = self._parsers[index]
            pieces = parser.feed(text, last=True)
            content = "".join(piece.content for piece in pieces)
            reasoning = "".join(piece.reasoning for piece in pieces)
            message["content"] = content or (None if parser.calls or reasoning else "")
            if reasoning:
                message["reasoning_content"] = reasoning
            if parser.calls:
                message["tool_calls"] = [_call(call) for call in parser.calls]
        return {"message": message}


class CompletionShape(Shape):
    """The continuations of prompts. `echo` is the text of each prompt, where answers begin with
    it."""

    kind, answer_object, chunk_object = "cmpl", "text_completion", "text_completion"
    echo: Sequence[str] = ()

    def first(self, index: int, delta: OutputDelta) -> ChunkBody | None:
        if not self._token_ids and not self.echo:
            return None
        choice = self._adding(index, {"content": self._echoed(index)})
        if delta.prompt_logprobs is not None:
            choice["logprobs"] = self._logprobs(index, self._scored(index, delta.prompt_logprobs))
        if self._token_ids:
            choice["prompt_token_ids"] = self._prompt(index)
        return {"choices": [choice]}

    def _echoed(self, index: int) -> str:
        return self.echo[index // self.job.n] if self.echo else ""

    def _rows(self, index: int, choice: StreamRecord) -> Sequence[TokenLogprobs] | None:
        if choice.prompt_logprobs is None:
            return choice.logprobs
        return [*self._scored(index, choice.prompt_logprobs), *(choice.logprobs or ())]

    def _scored(self, index: int, rows: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
        """Return the rows of an echoed prompt: nothing is known of its first token."""
        return [TokenLogprobs(self._prompt(index)[0], math.nan), *rows]

    def _adding(self, index: int, added: MessageDelta) -> ChunkChoice:
        text = added.get("content", "")
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def _logprobs(self, index: int, rows: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        offsets = []
        for row in rows:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(self._texts[row.token][0])
        return {
            "tokens": [self._labels[row.token][0] for row in rows],
            "token_logprobs": [
                None if math.isnan(row.logprob) else max(row.logprob, LOWEST) for row in rows
            ],
            "top_logprobs": [self._top(row) for row in rows],
            "text_offset": offsets,
        }

    def _top(self, row: TokenLogprobs) -> dict[str, float] | None:
        if math.isnan(row.logprob):
            return None
        pairs = [*row.top, (row.token, row.logprob)]
        return {self._labels[token][0]: max(logprob, LOWEST) for token, logprob in pairs}

    def _content(self, index: int, text: str) -> dict[str, object]:
        prompt = {"prompt_token_ids": self._prompt(index)} if self._token_ids else {}
        return {"text": self._echoed(index) + text, **prompt}

    def _prompt(self, index: int) -> list[int]:
        return self.job.prompts[index // self.job.n]


def chat_logprobs(labels: TokenLabels, rows: Sequence[TokenLogprobs]) -> list[ChatLogprob]:
    """Return the log-probabilities of tokens with their labels."""

    def labelled(token: int, logprob: float) -> TopLogprob:
        label, raw = labels[token]
        return {"token": label, "logprob": max(logprob, LOWEST), "bytes": list(raw)}

    return [
        {
            **labelled(row.token, row.logprob),
            "top_logprobs": [labelled(token, logprob) for token, logprob in row.top],
        }
        for row in rows
    ]


def _call(call: Call) -> CallMade:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _call_pieces(calls: Sequence[Call], pieces: Sequence[Piece]) -> list[CallPiece]:
    """Return what `pieces` add to each call, once for a call: some clients read only the first."""
    added: dict[int, CallPiece] = {}
    for piece in pieces:
        if piece.index in added:
            added[piece.index]["function"]["arguments"] += piece.arguments
        elif piece.index >= 0:
            added[piece.index] = _call_piece(calls, piece)
    return list(added.values())


def _call_piece(calls: Sequence[Call], piece: Piece) -> CallPiece:
    if not piece.begins:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    call = calls[piece.index]
    function: FunctionPiece = {"name": call.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": call.id, "type": "function", "function": function}

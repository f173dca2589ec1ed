"""How tokens look in the answers of the two endpoints: whole, or as chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.core import FinishReason, OutputDelta, TokenLogprobs
from paceline.engine.tool_calls import ToolFormat
from paceline.server.calls import CallParser, Piece
from paceline.server.job import Job, StreamRecord
from paceline.server.rounds import KeptRound, round_shown
from paceline.server.tokens import TokenTexts
from paceline.server.wire import EventSizes

LOWEST = -9999.0  # JSON has no infinity; OpenAI's stand-in for a probability of 0


class Shape:
    """What both endpoints share. One object writes one answer."""

    kind: ClassVar[str]  # prefix of the id
    whole: ClassVar[str]  # the answer's `object`
    part: ClassVar[str]  # a chunk's

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
        self.job, self._texts, self._token_ids = job, texts, token_ids
        self._fingerprint, self._rounds = fingerprint, rounds
        head = json.dumps(self._head(self.part))
        self._start = f'data: {head[:-1]}, "choices": [{{"index": '
        self._offsets = [0] * len(job.choices)

    def event_sizes(self, logprobs: int | None) -> EventSizes:
        """What its chunks take, with so many alternatives to each token or without logprobs."""
        return EventSizes.of(
            len(self._start), logprobs=logprobs, token_ids=self._token_ids, rounds=self._rounds
        )

    def _head(self, kind: str) -> dict[str, Any]:
        job = self.job
        return {
            "id": job.id,
            "object": kind,
            "created": job.created,
            "model": job.model,
            "system_fingerprint": self._fingerprint,
        }

    def answer(self) -> dict[str, Any]:
        """The whole answer of a job that has finished."""
        job = self.job
        choices = [self._choice(index, choice) for index, choice in enumerate(job.choices)]
        body = {
            **self._head(self.whole),
            "choices": choices,
            "usage": job.usage(),
            "metrics": job.measured(),
        }
        return {**body, **self._prompt_ids()}

    def first(self, index: int) -> str:
        """What opens the stream of one choice; may be nothing."""
        raise NotImplementedError

    def delta(self, index: int, delta: OutputDelta) -> str:
        """The chunk that carries a delta's tokens; nothing when it has nothing to show yet."""
        if not (delta.text or self._tells(delta)):
            return ""
        return self._chunk(index, delta, self._text(delta.text))

    def _tells(self, delta: OutputDelta) -> bool:
        """Whether there is something to say of its tokens beside their text."""
        wanted = self._token_ids or self._rounds or delta.logprobs
        return bool(delta.token_ids and wanted)

    def _chunk(self, index: int, delta: OutputDelta, shown: str) -> str:
        """A chunk of a delta that shows what `shown` says, as a piece of JSON."""
        logprobs = "null"
        if delta.logprobs is not None:
            logprobs = json.dumps(self.logprobs(index, delta.logprobs))
        more = f', "token_ids": {list(delta.token_ids)}' if self._token_ids else ""
        if self._rounds and delta.explained is not None:
            more += f', "round": {json.dumps(round_shown(KeptRound.of(delta), self._texts))}'
        return (
            f'{self._start}{index}, {shown}, "logprobs": {logprobs}, "finish_reason": null{more}}}]'
        )

    def last(self, index: int, delta: OutputDelta) -> str:
        """The chunk that says why a choice ended."""
        reason = json.dumps(self._reason(index, delta.finish_reason))
        stop = json.dumps(delta.stop_reason)
        return (
            f'{self._start}{index}, {self._end}, "logprobs": null, "finish_reason": {reason}'
            f', "stop_reason": {stop}}}]'
        )

    def usage(self) -> str:
        """The chunk without choices that ends a stream which asked for its usage; open, as all."""
        body = {
            **self._head(self.part),
            "choices": [],
            "usage": self.job.usage(),
            "metrics": self.job.measured(),
        }
        return f"data: {json.dumps(body)[:-1]}"

    def logprobs(self, index: int, rows: Sequence[TokenLogprobs]) -> dict[str, Any]:
        raise NotImplementedError

    # -- what the endpoints write in their own way ------------------------------------------------

    _end: ClassVar[str]

    def _text(self, text: str) -> str:
        raise NotImplementedError

    def _choice(self, index: int, choice: StreamRecord) -> dict[str, Any]:
        raise NotImplementedError

    def _prompt_ids(self) -> dict[str, Any]:
        return {}

    def _reason(self, index: int, reason: FinishReason | None) -> str | None:
        called = self._parsers is not None and self._parsers[index].calls
        return "tool_calls" if called and reason is FinishReason.STOP else reason

    def _ending(self, index: int, choice: StreamRecord) -> dict[str, Any]:
        last = choice.last
        ids = {"token_ids": choice.token_ids} if self._token_ids else {}
        return {
            "finish_reason": self._reason(index, last.finish_reason if last else None),
            "stop_reason": last and last.stop_reason,
            **ids,
        }


class ChatShape(Shape):
    kind, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"
    _end = '"delta": {}'

    def first(self, index: int) -> str:
        opening = '"delta": {"role": "assistant", "content": "", "refusal": null}'
        ids = ""
        if self._token_ids:
            ids = f', "prompt_token_ids": {self.job.prompts[0]}'
        return f'{self._start}{index}, {opening}, "logprobs": null, "finish_reason": null}}]{ids}'

    def logprobs(self, index: int, rows: Sequence[TokenLogprobs]) -> dict[str, Any]:
        content = [
            {
                **self._labelled(row.token, row.logprob),
                "top_logprobs": [self._labelled(token, logprob) for token, logprob in row.top],
            }
            for row in rows
        ]
        return {"content": content, "refusal": None}

    def _labelled(self, token: int, logprob: float) -> dict[str, Any]:
        text, raw = self._texts[token]
        return {"token": text, "logprob": max(logprob, LOWEST), "bytes": list(raw)}

    def _text(self, text: str) -> str:
        return f'"delta": {{"content": {json.dumps(text)}}}'

    def delta(self, index: int, delta: OutputDelta) -> str:
        """With tools, what the text adds to content and calls, and a chunk for each."""
        if self._parsers is None:
            return super().delta(index, delta)
        pieces = self._parsers[index].feed(delta.text, last=delta.finished)
        return self._merged(index, delta, pieces)

    def _merged(self, index: int, delta: OutputDelta, pieces: list[Piece]) -> str:
        """One chunk for all the pieces of a delta: its logprobs and token ids belong to all."""
        content = "".join(piece.content for piece in pieces)
        shown: dict[str, Any] = {"content": content} if content else {}
        calls = [self._call_piece(index, piece) for piece in pieces if piece.index >= 0]
        if calls:
            shown["tool_calls"] = calls
        if not (shown or self._tells(delta)):
            return ""
        return self._chunk(index, delta, f'"delta": {json.dumps(shown)}')

    def _call_piece(self, index: int, piece: Piece) -> dict[str, Any]:
        assert self._parsers is not None
        function: dict[str, str] = {"arguments": piece.arguments}
        if not piece.begins:
            return {"index": piece.index, "function": function}
        call = self._parsers[index].calls[piece.index]
        function = {"name": call.name, **function}
        return {"index": piece.index, "id": call.id, "type": "function", "function": function}

    def _choice(self, index: int, choice: StreamRecord) -> dict[str, Any]:
        rows = choice.logprobs
        return {
            "index": index,
            "message": self._message(index, choice.text),
            "logprobs": None if rows is None else self.logprobs(index, rows),
            **self._ending(index, choice),
        }

    def _message(self, index: int, text: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._parsers is not None:
            parser = self._parsers[index]
            content = "".join(piece.content for piece in parser.feed(text, last=True))
            if parser.calls:
                message["content"] = content or None
                message["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in parser.calls
                ]
        return message

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.job.prompts[0]} if self._token_ids else {}


class CompletionShape(Shape):
    kind, whole, part = "cmpl", "text_completion", "text_completion"
    _end = '"text": ""'

    def first(self, index: int) -> str:
        if not self._token_ids:
            return ""
        ids = self.job.prompts[index // self.job.n]
        return (
            f'{self._start}{index}, "text": "", "logprobs": null, "finish_reason": null'
            f', "prompt_token_ids": {ids}}}]'
        )

    def logprobs(self, index: int, rows: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """`text_offset` counts the characters of the choice's tokens before."""
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

    def _text(self, text: str) -> str:
        return f'"text": {json.dumps(text)}'

    def _choice(self, index: int, choice: StreamRecord) -> dict[str, Any]:
        rows = choice.logprobs
        ids = {}
        if self._token_ids:
            ids = {"prompt_token_ids": self.job.prompts[index // self.job.n]}
        return {
            "index": index,
            "text": choice.text,
            "logprobs": None if rows is None else self.logprobs(index, rows),
            **self._ending(index, choice),
            **ids,
        }

"""One answer as a response of OpenAI's Responses API, or as its events."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from paceline.core import FinishReason, OutputDelta, TokenLogprobs
from paceline.server.block_stream import Event
from paceline.server.blocks import AnswerBlocks, Block, BlockEvent, BlockKind, merged
from paceline.server.errors import ApiError
from paceline.server.job import Job
from paceline.server.parsing import AnswerFormat
from paceline.server.responses import ChatLogprob
from paceline.server.responses_api.objects import (
    ItemStatus,
    OutputPart,
    OutputText,
    ReasoningPart,
    ResponseObject,
    ResponseUsage,
)
from paceline.server.responses_api.request import ResponsesRequest
from paceline.server.responses_api.token_parts import TokenParts
from paceline.server.shapes import chat_logprobs
from paceline.server.tokens import TokenTexts

PREFIXES = {BlockKind.TEXT: "msg", BlockKind.CALL: "fc", BlockKind.REASONING: "rs"}
NAMES = {BlockKind.TEXT: "output_text", BlockKind.REASONING: "reasoning_text"}


class ResponseWriter:
    """Writes one response. `keep` is called with it when it is complete; `count` returns how many
    tokens a text has."""

    def __init__(
        self,
        body: ResponsesRequest,
        job: Job,
        form: AnswerFormat | None,
        texts: TokenTexts,
        *,
        keep: Callable[[ResponseObject], Awaitable[None]],
        count: Callable[[str], Awaitable[int]],
    ) -> None:
        self.blocks = AnswerBlocks(form)
        self._body, self._job, self._texts = body, job, texts
        self._keep, self._count = keep, count
        self._ids: list[str] = []
        self._logprobs: dict[int, list[ChatLogprob]] = {}
        self._untold: dict[int, list[ChatLogprob]] = {}
        self._pending: list[TokenLogprobs] = []
        is_split = form is not None and job.params.logprobs is not None
        self._parts = TokenParts(texts) if is_split else None
        self._sequence = 0

    async def whole(self) -> dict[str, object]:
        """Return the response of a job that has ended."""
        choice = self._job.choices[0]
        if choice.logprobs is None:
            self._feed(choice.text, (), last=True)
        else:  # each token and its alternatives get their texts, which takes long
            rows = choice.logprobs
            await run_in_threadpool(lambda: self._feed(choice.text, rows, last=True))
        return {**await self._completed()}

    # -- events of a stream -----------------------------------------------------------------------

    def begin(self) -> list[Event]:
        response = self._response("in_progress", [])
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def add(self, delta: OutputDelta) -> list[Event]:
        """Return the events of a delta. The log-probabilities of its tokens go with their text."""
        changes = merged(self._feed(delta.text, delta.logprobs or (), last=delta.finished))
        return [event for change in changes for event in self._change(change)]

    async def end(self) -> list[Event]:
        response = await self._completed()
        return [self._event(f"response.{response['status']}", response=response)]

    def failed(self, error: ApiError) -> list[Event]:
        code = error.code or "server_error"
        response = self._bare("failed", self._items("incomplete"))
        response["error"] = {"code": code, "message": str(error)}
        return [
            self._event("error", code=code, message=str(error), param=error.param),
            self._event("response.failed", response=response),
        ]

    def _change(self, change: BlockEvent) -> list[Event]:
        block, index = change.block, change.block.index
        if change.step == "begin":
            item = self._item(block, "in_progress")
            if block.kind is BlockKind.CALL:
                item["arguments"] = ""
            else:
                item["content"] = []
            added = self._event("response.output_item.added", output_index=index, item=item)
            return [added, *self._content(block, "added")]
        if change.step == "add":
            return [self._delta(block, change.text)]
        status: ItemStatus = "incomplete" if self._cut_short(block) else "completed"
        events = [*self._done(block), *self._content(block, "done")]
        item = self._item(block, status)
        return [*events, self._event("response.output_item.done", output_index=index, item=item)]

    def _delta(self, block: Block, text: str) -> Event:
        if block.kind is BlockKind.CALL:
            name = "response.function_call_arguments.delta"
            return self._event(name, **self._place(block), delta=text)
        place = {**self._place(block), "content_index": 0}
        if block.kind is BlockKind.TEXT:
            place["logprobs"] = self._untold.pop(block.index, [])
        return self._event(f"response.{NAMES[block.kind]}.delta", **place, delta=text)

    def _done(self, block: Block) -> list[Event]:
        place = self._place(block)
        if block.kind is BlockKind.CALL:
            assert block.call is not None
            name = "response.function_call_arguments.done"
            return [self._event(name, **place, name=block.call.name, arguments=block.text)]
        place["content_index"] = 0
        if block.kind is BlockKind.TEXT:
            place["logprobs"] = self._logprobs.get(block.index, [])
        return [self._event(f"response.{NAMES[block.kind]}.done", **place, text=block.text)]

    def _content(self, block: Block, step: str) -> list[Event]:
        """Return the event of the one part that a message or a reasoning has."""
        if block.kind is BlockKind.CALL:
            return []
        name = f"response.content_part.{step}"
        part = self._part(block if step == "done" else Block(-1, block.kind))
        return [self._event(name, **self._place(block), content_index=0, part=part)]

    def _place(self, block: Block) -> dict[str, object]:
        return {"item_id": self._id(block), "output_index": block.index}

    def _event(self, kind: str, /, **fields: object) -> Event:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    # -- parts of the response --------------------------------------------------------------------

    def _feed(self, text: str, rows: Sequence[TokenLogprobs], *, last: bool) -> list[BlockEvent]:
        """Return what a text does to the blocks; its tokens have the log-probabilities `rows`."""
        if self._parts is None:
            return self._noted(rows, self.blocks.feed(text, last=last))
        changes: list[BlockEvent] = []
        for part in self._parts.feed(text, rows, last=last):
            changes += self._noted(part.rows, self.blocks.feed(part.text))
        return [*changes, *self._noted((), self.blocks.feed("", last=True))] if last else changes

    def _noted(self, rows: Sequence[TokenLogprobs], changes: list[BlockEvent]) -> list[BlockEvent]:
        """Give log-probabilities to the block of text that their tokens add to, if they do."""
        self._pending += rows
        if not changes:
            return changes
        final = changes[-1]
        if any(change.block.kind is not BlockKind.TEXT for change in changes):
            self._pending = list(rows)  # those before are of reasoning, a call or a mark
        if final.block.kind is not BlockKind.TEXT:
            self._pending = []
        elif final.step != "begin":
            told = chat_logprobs(self._texts, self._pending)
            for noted in (self._logprobs, self._untold):
                noted.setdefault(final.block.index, []).extend(told)
            self._pending = []
        return changes

    def _id(self, block: Block) -> str:
        while len(self._ids) <= block.index:
            kind = self.blocks.blocks[len(self._ids)].kind
            self._ids.append(f"{PREFIXES[kind]}_{uuid.uuid4().hex}")
        return self._ids[block.index]

    def _part(self, block: Block) -> OutputText | ReasoningPart:
        if block.kind is BlockKind.REASONING:
            return {"type": "reasoning_text", "text": block.text}
        told = self._logprobs.get(block.index, [])
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": told}

    def _item(self, block: Block, status: ItemStatus) -> Any:
        item: dict[str, object] = {"id": self._id(block), "status": status}
        if block.kind is BlockKind.CALL:
            assert block.call is not None
            call = {"call_id": block.call.id, "name": block.call.name, "arguments": block.text}
            return {**item, "type": "function_call", **call}
        item["content"] = [self._part(block)]
        if block.kind is BlockKind.REASONING:
            return {**item, "type": "reasoning", "summary": [], "encrypted_content": None}
        return {**item, "type": "message", "role": "assistant"}

    def _items(self, last: ItemStatus) -> list[OutputPart]:
        blocks = self.blocks.blocks
        return [self._item(block, last if block is blocks[-1] else "completed") for block in blocks]

    def _cut_short(self, block: Block) -> bool:
        last = self._job.choices[0].last
        ended = last is not None and last.finish_reason is FinishReason.LENGTH
        return ended and block is self.blocks.blocks[-1]

    async def _completed(self) -> ResponseObject:
        """Return the response of an answer that has ended, and keep it."""
        cut = self._cut_short(self.blocks.blocks[-1])
        status: ItemStatus = "incomplete" if cut else "completed"
        response = self._response(status, self._items(status))
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["usage"] = await self._usage()
        response["metrics"] = self._job.measured()
        await self._keep(response)
        return response

    async def _usage(self) -> ResponseUsage:
        usage = self._job.usage()
        cached = usage["prompt_tokens_details"]
        thought = [block.text for block in self.blocks.of_kind(BlockKind.REASONING)]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached["cached_tokens"] if cached else 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": sum([await self._count(text) for text in thought])
            },
            "total_tokens": usage["total_tokens"],
        }

    def _response(self, status: Any, output: list[OutputPart]) -> ResponseObject:
        """Return the response with what the request said."""
        body, choice = self._body, self._body.tool_choice or "auto"
        response = self._bare(status, output)
        if body.text:
            response["text"] |= body.text.model_dump(exclude_none=True, by_alias=True)
        if body.reasoning:
            response["reasoning"]["effort"] = body.reasoning.effort
        response["instructions"], response["user"] = body.instructions, body.user
        response["metadata"] = body.metadata or {}
        response["tools"] = [tool.model_dump() for tool in body.tools or ()]
        response["tool_choice"] = choice if isinstance(choice, str) else choice.model_dump()
        return response

    def _bare(self, status: Any, output: list[OutputPart]) -> ResponseObject:
        """Return the response without texts of the request: nothing in it can fail to be written,
        whatever the request was."""
        body = self._body
        return {
            "id": self._job.id,
            "object": "response",
            "created_at": self._job.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": self._job.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": body.keeps,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": None,
        }

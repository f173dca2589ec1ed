"""One answer as a message of Anthropic's API, or as its events."""

from __future__ import annotations

import json
from typing import Any

from paceline.core import FinishReason, OutputDelta
from paceline.server.block_stream import Event
from paceline.server.blocks import AnswerBlocks, Block, BlockEvent, BlockKind
from paceline.server.errors import ApiError
from paceline.server.job import Job
from paceline.server.messages_api.objects import (
    BlockOut,
    MessageObject,
    MessageUsage,
    StopReason,
)
from paceline.server.parsing import AnswerFormat

DELTAS = {
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


class MessageWriter:
    """Writes one message."""

    def __init__(self, job: Job, form: AnswerFormat | None) -> None:
        self.blocks = AnswerBlocks(form)
        self._job = job

    async def whole(self) -> dict[str, object]:
        """Return the message of a job that has ended."""
        self.blocks.feed(self._job.choices[0].text, last=True)
        content = [_block_out(block) for block in self.blocks.blocks]
        return {**self._message(content, *self._stop()), "metrics": self._job.measured()}

    # -- events of a stream -----------------------------------------------------------------------

    def begin(self) -> list[Event]:
        return [{"type": "message_start", "message": self._message([])}]

    def add(self, delta: OutputDelta) -> list[Event]:
        changes = self.blocks.feed(delta.text, last=delta.finished)
        return [event for change in changes for event in self._change(change)]

    async def end(self) -> list[Event]:
        reason, sequence = self._stop()
        stop = {"stop_reason": reason, "stop_sequence": sequence}
        more = {"usage": self._usage(), "metrics": self._job.measured()}
        return [{"type": "message_delta", "delta": stop, **more}, {"type": "message_stop"}]

    def failed(self, error: ApiError) -> list[Event]:
        return [error.messages_body()]

    def _change(self, change: BlockEvent) -> list[Event]:
        block, place = change.block, {"index": change.block.index}
        if change.step == "begin":
            opened = _block_out(block, empty=True)
            return [{"type": "content_block_start", **place, "content_block": opened}]
        if change.step == "add":
            kind, name = DELTAS[block.kind]
            return [_delta(place, kind, name, change.text)]
        end: Event = {"type": "content_block_stop", **place}
        if block.kind is BlockKind.REASONING:
            return [_delta(place, "signature_delta", "signature", ""), end]
        return [end]

    # -- parts of the message ---------------------------------------------------------------------

    def _message(
        self,
        content: list[BlockOut],
        reason: StopReason | None = None,
        sequence: str | None = None,
    ) -> MessageObject:
        return {
            "id": self._job.id,
            "type": "message",
            "role": "assistant",
            "model": self._job.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": self._usage(),
        }

    def _stop(self) -> tuple[StopReason, str | None]:
        last = self._job.choices[0].last
        if last is not None and last.finish_reason is FinishReason.LENGTH:
            return "max_tokens", None
        if last is not None and isinstance(last.stop_reason, str):
            return "stop_sequence", last.stop_reason
        return "tool_use" if self.blocks.of_kind(BlockKind.CALL) else "end_turn", None

    def _usage(self) -> MessageUsage:
        usage = self._job.usage()
        details = usage["prompt_tokens_details"]
        cached = details["cached_tokens"] if details else 0
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }


def _delta(place: dict[str, int], kind: str, name: str, text: str) -> Event:
    return {"type": "content_block_delta", **place, "delta": {"type": kind, name: text}}


def _block_out(block: Block, *, empty: bool = False) -> BlockOut:
    """Return a block as the API writes it; `empty` where it only begins."""
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking", "thinking": "" if empty else block.text, "signature": ""}
    if block.kind is BlockKind.TEXT:
        return {"type": "text", "text": "" if empty else block.text, "citations": None}
    assert block.call is not None
    stated: Any = {} if empty else _arguments(block.text)
    return {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": stated}


def _arguments(text: str) -> dict[str, object]:
    """Return the arguments of a call; none where max_tokens cut them off."""
    try:
        arguments = json.loads(text)
        # a model may escape half a surrogate pair, which no answer could hold
        whole = json.dumps(arguments, ensure_ascii=False).encode("utf-16", "surrogatepass")
        arguments = json.loads(whole.decode("utf-16", "replace"))
    except (ValueError, RecursionError):  # a small model may open brackets to the end
        return {}
    return arguments if isinstance(arguments, dict) else {}

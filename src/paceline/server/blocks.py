"""The parts of an assistant's answer as blocks, which begin, grow and end one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from paceline.server.parsing import AnswerFormat, Call, Piece


class BlockKind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(slots=True, eq=False)
class Block:
    """One part of an answer. `text` grows while it streams: of a call it is the arguments, JSON."""

    index: int
    kind: BlockKind
    call: Call | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block begins, gets more `text`, or ends."""

    step: Literal["begin", "add", "end"]
    block: Block
    text: str = ""


class AnswerBlocks:
    """Makes the blocks of one answer from its text, whole or in pieces."""

    def __init__(self, form: AnswerFormat | None) -> None:
        self.blocks: list[Block] = []
        self._parser = None if form is None else form.parser()

    def feed(self, text: str, *, last: bool = False) -> list[BlockEvent]:
        """Return what `text` does to the blocks. An answer without any gets an empty text at its
        end."""
        if self._parser is None:
            pieces = [Piece(content=text)] if text else []
        else:
            pieces = self._parser.feed(text, last=last)
        events = [event for piece in pieces for event in self._piece(piece)]
        if last:
            if not self.blocks:
                events.append(self._begin(BlockKind.TEXT))
            events.append(BlockEvent("end", self.blocks[-1]))
        return events

    def of_kind(self, kind: BlockKind) -> list[Block]:
        return [block for block in self.blocks if block.kind is kind]

    def _piece(self, piece: Piece) -> Iterator[BlockEvent]:
        if piece.index >= 0:
            assert self._parser is not None
            kind, text, call = BlockKind.CALL, piece.arguments, self._parser.calls[piece.index]
        elif piece.reasoning:
            kind, text, call = BlockKind.REASONING, piece.reasoning, None
        else:
            kind, text, call = BlockKind.TEXT, piece.content, None
        open_block = self.blocks[-1] if self.blocks else None
        if open_block is None or open_block.kind is not kind or piece.begins:
            if open_block is not None:
                yield BlockEvent("end", open_block)
            yield self._begin(kind, call)
        if text:
            self.blocks[-1].text += text
            yield BlockEvent("add", self.blocks[-1], text)

    def _begin(self, kind: BlockKind, call: Call | None = None) -> BlockEvent:
        self.blocks.append(Block(len(self.blocks), kind, call))
        return BlockEvent("begin", self.blocks[-1])


def merged(events: Iterable[BlockEvent]) -> list[BlockEvent]:
    """Return events with the texts that follow each other in one block as one event."""
    joined: list[BlockEvent] = []
    for event in events:
        before = joined[-1] if joined else None
        if before and before.step == event.step == "add" and before.block is event.block:
            joined[-1] = BlockEvent("add", event.block, before.text + event.text)
        else:
            joined.append(event)
    return joined

"""Reasoning, content and tool calls in the text of a model, found while the text streams."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from paceline.engine.tool_calls import Thinking
from paceline.engine.tool_formats import CHANNELS, ReasoningFormat, ToolFormat
from paceline.server.call_arguments import ArgumentSchemas, JsonArguments, TaggedArguments

NAME = r"([A-Za-z0-9_.-]+)"


@dataclass(slots=True)
class Call:
    """A call of a tool: `arguments` is JSON text, whole where `complete`."""

    name: str
    id: str
    arguments: str = ""
    complete: bool = False


@dataclass(slots=True)
class Piece:
    """Text added to the reasoning, to the content, or to the arguments of call `index`. `begins`
    marks a call's first piece."""

    content: str = ""
    reasoning: str = ""
    index: int = -1
    arguments: str = ""
    begins: bool = False


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The parts of an answer's text: how it marks reasoning, and how it writes calls.

    thinking   whether the prompt ends within the reasoning
    arguments  the schemas of each function's arguments, where the format writes them between tags
    """

    calls: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    thinking: Thinking = Thinking.DONE
    arguments: Mapping[str, ArgumentSchemas] = field(default_factory=dict)

    def parser(self) -> AnswerParser:
        """Return a parser for one answer."""
        return (ChannelParser if self.reasoning is CHANNELS else TextParser)(self)

    def parse(self, text: str) -> ParsedAnswer:
        """Return the parts of a whole answer."""
        parser = self.parser()
        pieces = parser.feed(text, last=True)
        content = "".join(piece.content for piece in pieces)
        return ParsedAnswer(content, "".join(piece.reasoning for piece in pieces), parser.calls)


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The parts of an assistant's answer."""

    content: str
    reasoning: str
    calls: list[Call]


class AnswerParser:
    """Splits one stream of text into reasoning, content and calls.

    Each state is a method. It moves text out of `_pending` and returns whether the next state may
    read on; False waits for more text.
    """

    def __init__(self, form: AnswerFormat) -> None:
        self.calls: list[Call] = []
        self._form, self._format = form, form.calls
        self._pending = ""
        self._pieces: list[Piece] = []
        self._state: Callable[[], bool] = self._begin
        self._arguments = JsonArguments().feed

    def feed(self, text: str, *, last: bool = False) -> list[Piece]:
        """Return the pieces that `text` completes; with `last`, also all that is left."""
        self._pending += text
        self._pieces = []
        while self._pending and self._state():
            pass
        if last:
            self._finish()
            self._pending = ""
        return self._pieces

    def _begin(self) -> bool:
        raise NotImplementedError

    def _finish(self) -> None:
        """Give what is pending at the end of the text."""
        raise NotImplementedError

    # -- what every form of answer has ------------------------------------------------------------

    def _open_call(self, name: str) -> None:
        form = self._format
        assert form is not None, "a call is looked for where there are tools"
        self.calls.append(Call(name, form.new_id()))
        self._pieces.append(Piece(index=len(self.calls) - 1, begins=True))
        tags = form.tags
        schemas = self._form.arguments.get(name, {})
        self._arguments = (TaggedArguments(tags, schemas) if tags else JsonArguments()).feed

    def _read_arguments(self) -> bool:
        """Move the call's arguments out of `_pending`; return whether they have ended."""
        text, self._pending, ended = self._arguments(self._pending)
        if text:
            self.calls[-1].arguments += text
            self._pieces.append(Piece(index=len(self.calls) - 1, arguments=text))
        self.calls[-1].complete = ended
        return ended

    def _give_until(self, mark: str, give: Callable[[str], None]) -> bool:
        """Give the text before `mark` and skip the mark; return whether it was there. What may
        become the mark, and spaces before it, are held back."""
        text, found, rest = self._pending.partition(mark)
        if found:
            give(text.rstrip())
            self._pending = rest
            return True
        begun = next(n for n in range(len(mark), -1, -1) if text.endswith(mark[:n]))
        certain = text[: len(text) - begun].rstrip()
        give(certain)
        self._pending = text[len(certain) :]
        return False

    def _give(self, text: str) -> None:
        if text:
            self._pieces.append(Piece(content=text))

    def _give_reasoning(self, text: str) -> None:
        if text:
            self._pieces.append(Piece(reasoning=text))


class TextParser(AnswerParser):
    """The parser of answers that are text, with marks around reasoning and calls."""

    def _begin(self) -> bool:
        thinking = self._form.thinking if self._form.reasoning else Thinking.DONE
        if thinking is Thinking.OPEN:
            self._state = self._thought_start
        elif thinking is Thinking.MAYBE:
            self._state = self._opening
        else:
            self._state = self._start
        return True

    def _opening(self) -> bool:
        assert self._form.reasoning is not None
        opening, text = self._form.reasoning.opening, self._pending.lstrip()
        if opening.startswith(text) and text != opening:
            return False
        if text.startswith(opening):
            self._pending, self._state = text.removeprefix(opening), self._thought_start
        else:
            self._state = self._start
        return True

    def _thought_start(self) -> bool:
        return self._skip_space(self._thought)

    def _thought(self) -> bool:
        assert self._form.reasoning is not None
        if not self._give_until(self._form.reasoning.closing, self._give_reasoning):
            return False
        self._state = self._answer_start
        return True

    def _answer_start(self) -> bool:
        return self._skip_space(self._start)

    def _skip_space(self, state: Callable[[], bool]) -> bool:
        self._pending = self._pending.lstrip()
        if self._pending:
            self._state = state
        return bool(self._pending)

    def _start(self) -> bool:
        form = self._format
        if form is None or not form.optional_mark:
            self._state = self._text
            return True
        if form.mark.startswith(self._pending) and self._pending != form.mark:
            return False
        self._pending = self._pending.removeprefix(form.mark)
        self._state = self._head if self._pending[:1] in ("{", "") else self._text
        return True

    def _text(self) -> bool:
        if self._format is None or self._format.optional_mark:
            self._give(self._pending)
            self._pending = ""
            return False
        if not self._give_until(self._format.mark, self._give):
            return False
        self._state = self._head
        return True

    def _head(self) -> bool:
        assert self._format is not None
        head = _head(self._format).match(self._pending)
        if head is None:
            return False
        self._pending = self._pending[head.end() :]
        self._open_call(head[1])
        self._state = self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        if not self._read_arguments():
            return False
        self._state = self._tail
        return True

    def _tail(self) -> bool:
        """Skip the end of a call and the separator before the next call."""
        assert self._format is not None
        end = _tail(self._format).match(self._pending)
        if end is None:
            return False
        self._pending, self._state = self._pending[end.end() :], self._head
        return True

    def _finish(self) -> None:
        if self._state == self._thought:
            self._give_reasoning(self._pending.rstrip())
        elif self._state == self._in_arguments and self._format and self._format.tags:
            self._pending += "\n"  # a closing tag at the end of the text lacks its line break
            self._read_arguments()
        elif self._state == self._head and not self.calls:
            form = self._format
            assert form is not None
            self._give(self._pending if form.optional_mark else form.mark + self._pending)
        elif self._state == self._tail:
            assert self._format is not None
            end = _end(self._format).match(self._pending)
            self._give("" if end is None else self._pending[end.end() :].strip())
        elif self._state in (self._opening, self._start, self._text):
            self._give(self._pending)


class ChannelParser(AnswerParser):
    """The parser of gpt-oss's answers: messages with headers, each on a channel.

    A header ends at <|message|> and names the channel, and the function that a call is to. The
    analysis is reasoning, and all other messages without a function are content.
    """

    def _begin(self) -> bool:
        if self._form.thinking is Thinking.DONE:  # the prompt ends within the final message
            self._state = self._content
            return True
        return self._header()

    def _header(self) -> bool:
        header, found, rest = self._pending.partition("<|message|>")
        if not found:
            return False
        self._pending = rest
        function = re.search(r"to=functions\." + NAME, header)
        if function is not None and self._format is not None:
            self._open_call(function[1])
            self._state = self._call
        elif "<|channel|>analysis" in header:
            self._state = self._analysis
        else:
            self._state = self._content
        return True

    def _analysis(self) -> bool:
        return self._message(self._give_reasoning)

    def _content(self) -> bool:
        return self._message(self._give)

    def _call(self) -> bool:
        if not self._read_arguments():
            return False
        self._state = self._rest
        return True

    def _rest(self) -> bool:
        return self._message(lambda text: None)

    def _message(self, give: Callable[[str], None]) -> bool:
        if self._give_until("<|end|>", give):
            self._state = self._header
            return True
        return False

    def _finish(self) -> None:
        if self._state == self._analysis:
            self._give_reasoning(self._pending.rstrip())
        elif self._state == self._content:
            self._give(self._pending)
        elif self._state == self._begin and "<|channel|>" not in self._pending:
            self._give(self._pending)  # a text without headers; a header that was cut is no text


@cache
def _head(form: ToolFormat) -> re.Pattern[str]:
    """Return the expression of what stands before a call's arguments."""
    lead = f"(?:{_loose(form.lead)})?" if form.lead else ""
    return re.compile(rf"\s*{lead}{_loose(form.before)}{NAME}{_loose(form.between)}")


@cache
def _tail(form: ToolFormat) -> re.Pattern[str]:
    """Return the expression of what stands between the arguments of two calls."""
    return re.compile(rf"\s*{_loose(form.after)}{_loose(form.separator or chr(0))}")


@cache
def _end(form: ToolFormat) -> re.Pattern[str]:
    """Return the expression of what stands behind the arguments of the last call."""
    return re.compile(rf"\s*{_loose(form.after)}{_loose(form.end)}")


def _loose(text: str) -> str:
    """Return an expression for `text` with any white space where it has some."""
    return r"\s*".join(map(re.escape, re.split(r"\s+", text)))

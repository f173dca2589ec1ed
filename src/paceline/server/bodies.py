"""Request bodies: from bytes to a checked request, without holding up anybody else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from paceline.core.errors import Amount, InvalidRequest
from paceline.core.field_types import AtMost, annotation_of, field_names
from paceline.core.refusals import Path, unknown_field, written
from paceline.server.access import record_of
from paceline.server.errors import ApiError, invalid
from paceline.server.extra_fields import read_body
from paceline.server.fields import JsonObject
from paceline.server.gate import client_of
from paceline.server.outline import JsonText, Outline
from paceline.server.prompt_size import PromptSize
from paceline.server.protocol import RequestBody
from paceline.server.settings import ServerSettings
from paceline.server.turns import Turns

R = TypeVar("R", bound=RequestBody)

Refuse = Callable[[JsonText], ApiError]  # makes the error for a body that holds too much
LARGE = 32 * 1024  # bytes; smaller bodies are read on the event loop, in a few milliseconds
CONVERSATIONS = ("messages", "input")  # fields with the messages of a conversation
MAX_DEPTH = 200  # levels of nesting
MAX_VALUES = 2**19  # numbers, texts, lists and so on: 64 prompts of 8,192 token ids
MAX_PARTS = 140_000  # lists, objects, their members, decimals: a logit_bias of 65,536 decimals fits
MAX_CONTAINERS = 2**15  # lists and objects: Python's collector walks them all while others wait
SIGNS = MAX_CONTAINERS  # brackets, commas and colons of texts that are not counted exactly
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half a pair, escaped; emoji are whole pairs
WRITABLE = "text that can be written as UTF-8"
BOUNDS = (
    f"at most {MAX_VALUES} values, "
    f"{MAX_PARTS} of them lists, objects, their members or decimals, "
    f"and {MAX_CONTAINERS} of them lists or objects"
)
MOST = f"a body of {BOUNDS}"


class ReadsBodies(Protocol):
    """Reads the body of a request as a model, and refuses what is none."""

    async def read(self, http: Request, model: Any) -> Any: ...


class BodyReader:
    """Reads request bodies: short ones on the event loop, long ones in fair turns on a thread."""

    def __init__(self, size: PromptSize, settings: ServerSettings) -> None:
        self._size, self._settings = size, settings
        self._turns = Turns("paceline-bodies")

    async def read(self, http: Request, model: type[R]) -> R:
        """Read the body of `http` as a `model`. Raises ApiError (400), naming the field."""
        try:
            raw = await http.body()
        except ClientDisconnect:
            raise ApiError(400, "the client hung up before the body had ended") from None
        if len(raw) <= LARGE:
            body, ignored = self._parse(raw, model)
        else:
            parse = partial(self._parse, raw, model)
            client = client_of(http, self._settings)
            body, ignored = await self._turns.run(parse, client=client, cost=len(raw))
        record_of(http.scope).ignored = ignored
        return body

    def _parse(self, raw: bytes, model: type[R]) -> tuple[R, list[str]]:
        """Return the request in `raw`, and the names of the fields that were left out."""
        stated = read_object(raw, lambda text: self._too_much(text, model))
        if SURROGATE.search(raw):
            _refuse_halves(stated)
        for field in CONVERSATIONS:
            if isinstance(messages := stated.get(field), list):
                self._size.refuse_messages(field, len(messages))
        body, ignored = self._read(stated, model)
        body.note_size(len(raw))
        if len(raw) > LARGE:
            body.check()  # here, because long lists take long to check there as well
        return body, ignored

    def _read(self, stated: JsonObject, model: type[R]) -> tuple[R, list[str]]:
        try:
            return read_body(stated, model, lenient=self._settings.lenient)
        except InvalidRequest as error:
            raise invalid(error) from None

    def _too_much(self, text: JsonText, model: type[BaseModel]) -> ApiError:
        names, member = field_names(model), text.largest()
        # the largest too, as it may come behind fields that are given twice
        for name in [*text.names(len(names) + 1), *([member.name] if member else [])]:
            if name not in names:
                return invalid(unknown_field((name,), {}, model))
        if member is None:
            return too_much(text)
        if member.name in CONVERSATIONS:
            self._size.refuse_messages(member.name, member.items)
        bound = annotation_of(model.model_fields[member.name], AtMost)
        if bound is None or member.items <= bound.most:
            return too_much(text)
        return invalid(InvalidRequest(member.name, Amount(f"{member.items} items"), bound.expected))


def read_object(
    raw: bytes, refusal_of: Refuse, *, parse_constant: Callable[[str], object] | None = None
) -> JsonObject:
    """Parse the JSON object in `raw`. `refusal_of` makes the error for one that holds too much.

    Raises ApiError (400). Run it on a thread where `raw` has more than LARGE bytes.
    """
    if len(raw) > LARGE or raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_outline(JsonText(raw), refusal_of)
    try:
        stated = json.loads(raw.decode("utf-8-sig"), parse_constant=parse_constant)
    except json.JSONDecodeError as error:
        raise _no_json(f"no JSON: {error.msg} at character {error.pos}") from None
    except UnicodeDecodeError as error:
        raise _no_json(f"no UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:  # a constant, or Python's bound on the digits of whole numbers
        raise _no_json(f"no JSON: {str(error).partition(';')[0]}") from None
    if not isinstance(stated, dict):
        raise _no_object()
    return stated


def read_objects(texts: Mapping[str, str]) -> dict[str, JsonObject]:
    """Parse the JSON objects that stand as text in fields, given by the fields' names.

    All of them together are bounded as one body is. Raises InvalidRequest. Run it on a thread.
    """
    _check_outlines(texts)
    objects = {}
    for field, text in texts.items():
        try:
            stated = json.loads(text)
        except ValueError:
            stated = None
        if not isinstance(stated, dict):
            raise InvalidRequest(field, text, "a JSON object, as text")
        objects[field] = stated
    return objects


def too_much(text: JsonText) -> ApiError:
    """Return the refusal of an object that holds too much, naming its largest member."""
    member = text.largest()
    if member is None:
        return _no_json(f"too much; expected {MOST}")
    return invalid(InvalidRequest(member.name, Amount(f"{member.values} values"), MOST))


def body_route(reader: ReadsBodies) -> type[APIRoute]:
    """Return the class of routes `endpoint(body, http)` whose body `reader` reads.

    FastAPI parses and checks bodies on the event loop, however long they are; its schema of the
    route stays the same.
    """

    class BodyRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[None, None, Response]]:
            assert self.body_field is not None
            model: Any = self.body_field.field_info.annotation

            async def answer(http: Request) -> Response:
                response: Response = await self.endpoint(await reader.read(http, model), http)
                return response

            return answer

    return BodyRoute


def _refuse_halves(stated: JsonObject) -> None:
    """Raise ApiError (400) for text with half a surrogate pair, naming the field: no prompt, answer
    or log could hold it."""
    if _is_writable(json.dumps(stated, ensure_ascii=False)):
        return
    half = _half(stated, ())
    assert half is not None
    place, text = half
    # beyond the first name there are names that the client wrote
    reason = f"{written(place[:1])}: expected {WRITABLE}"
    refused = invalid(InvalidRequest(written(place), text, WRITABLE))
    raise ApiError(400, str(refused), param=refused.param, reason=reason)


def _half(value: object, place: Path) -> tuple[Path, str] | None:
    """Return the place of the first text that cannot be written, and the text."""
    if isinstance(value, str):
        return None if _is_writable(value) else (place, value)
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    for step, item in items:
        below = (*place, step)
        if isinstance(step, str) and not _is_writable(step):
            return below, step
        if half := _half(item, below):
            return half
    return None


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_outlines(texts: Mapping[str, str]) -> None:
    # strings are counted too here, which is quick; so few signs are within every bound
    may_be_large = sum(text.count(sign) for text in texts.values() for sign in "[{,:") > SIGNS
    total = Outline(0, 0, 0, 0)
    for field, text in texts.items():
        if not may_be_large and text.count("[") + text.count("{") <= MAX_DEPTH:
            continue
        outline = JsonText(text.encode(errors="replace")).outline()
        if outline.depth > MAX_DEPTH:
            levels = Amount(f"{outline.depth} levels")
            raise InvalidRequest(field, levels, f"JSON of at most {MAX_DEPTH} levels")
        total = total.plus(outline)
        if _is_too_much(total):
            amount = Amount(f"{total.values} values up to here")
            raise InvalidRequest(field, amount, f"arguments of all calls with {BOUNDS}")


def _check_outline(text: JsonText, refusal_of: Refuse) -> None:
    outline = text.outline()
    if outline.depth > MAX_DEPTH:
        raise _no_json(f"{outline.depth} levels deep; expected at most {MAX_DEPTH}")
    if _is_too_much(outline):
        raise refusal_of(text)


def _is_too_much(outline: Outline) -> bool:
    bounds = (MAX_VALUES, MAX_PARTS, MAX_CONTAINERS)
    counts = (outline.values, outline.parts, outline.containers)
    return any(count > most for count, most in zip(counts, bounds, strict=True))


def _no_json(reason: str) -> ApiError:
    return ApiError(400, f"the body is {reason}", code="bad_json")


def _no_object() -> ApiError:
    return ApiError(400, "the body must be a JSON object", code="bad_json")

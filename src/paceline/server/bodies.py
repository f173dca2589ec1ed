"""Request bodies: from bytes to a checked request, without holding up anybody else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from paceline.core.errors import Amount, InvalidRequest
from paceline.core.field_types import AtMost, annotation_of, field_names
from paceline.core.refusals import refusal, unknown_field
from paceline.server.errors import ApiError, invalid
from paceline.server.fields import JsonObject
from paceline.server.gate import client_of
from paceline.server.outline import JsonText
from paceline.server.prompt_size import PromptSize
from paceline.server.protocol import GenerationRequest
from paceline.server.settings import ServerSettings
from paceline.server.turns import Turns

R = TypeVar("R", bound=GenerationRequest)

Refuse = Callable[[JsonText], ApiError]  # makes the error for a body that holds too much
LARGE = 32 * 1024  # bytes; smaller bodies are read on the event loop, in a few milliseconds
JSON_TYPE = re.compile(r"\s*application/([^;]*\+)?json\s*(;|$)", re.IGNORECASE)
MAX_DEPTH = 200  # levels of nesting
MAX_VALUES = 2**19  # numbers, texts, lists and so on: 64 prompts of 8,192 token ids
MAX_PARTS = 140_000  # lists, objects, their members, decimals: a logit_bias of 65,536 decimals fits
MAX_CONTAINERS = 2**15  # lists and objects: Python's collector walks them all while others wait
MOST = (
    f"a body of at most {MAX_VALUES} values, "
    f"{MAX_PARTS} of them lists, objects, their members or decimals, "
    f"and {MAX_CONTAINERS} of them lists or objects"
)


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
        if not JSON_TYPE.match(http.headers.get("content-type", "")):
            raise _no_object()
        if len(raw) <= LARGE:
            return self._parse(raw, model)
        client = client_of(http, self._settings)
        return await self._turns.run(partial(self._parse, raw, model), client=client, cost=len(raw))

    def _parse(self, raw: bytes, model: type[R]) -> R:
        stated = read_object(raw, lambda text: self._too_much(text, model))
        if isinstance(messages := stated.get("messages"), list):
            self._size.refuse_messages(len(messages))
        try:
            body = model.model_validate(stated)
        except ValidationError as error:
            raise invalid(refusal(error, stated, model)) from None
        body.note_size(len(raw))
        if len(raw) > LARGE:
            _ = body.params  # here, because long lists take long to check there as well
        return body

    def _too_much(self, text: JsonText, model: type[BaseModel]) -> ApiError:
        names, member = field_names(model), text.largest()
        # the largest too, as it may come behind fields that are given twice
        for name in [*text.names(len(names) + 1), *([member.name] if member else [])]:
            if name not in names:
                return invalid(unknown_field((name,), {}, model))
        if member is None:
            return too_much(text)
        if member.name == "messages":
            self._size.refuse_messages(member.items)
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


def too_much(text: JsonText) -> ApiError:
    """Return the refusal of an object that holds too much, naming its largest member."""
    member = text.largest()
    if member is None:
        return _no_json(f"too much; expected {MOST}")
    return invalid(InvalidRequest(member.name, Amount(f"{member.values} values"), MOST))


def body_route(reader: BodyReader) -> type[APIRoute]:
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


def _check_outline(text: JsonText, refusal_of: Refuse) -> None:
    outline = text.outline()
    if outline.depth > MAX_DEPTH:
        raise _no_json(f"{outline.depth} levels deep; expected at most {MAX_DEPTH}")
    bounds = (MAX_VALUES, MAX_PARTS, MAX_CONTAINERS)
    counts = (outline.values, outline.parts, outline.containers)
    if any(count > most for count, most in zip(counts, bounds, strict=True)):
        raise refusal_of(text)


def _no_json(reason: str) -> ApiError:
    return ApiError(400, f"the body is {reason}", code="bad_json")


def _no_object() -> ApiError:
    expected = "a JSON object, sent with Content-Type: application/json"
    return ApiError(400, f"the body must be {expected}", code="bad_json")

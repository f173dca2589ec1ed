"""Every error in OpenAI's shape, naming the field it is about."""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from paceline.core import InvalidRequest, QueueFull
from paceline.core.errors import Amount
from paceline.engine.async_engine import EngineDead
from paceline.server.fields import TOO_MANY, UNKNOWN_FIELD, field_names
from paceline.server.protocol import UNSUPPORTED, ChatRequest, CompletionRequest

log = logging.getLogger(__name__)
LONGEST_NAME = 64  # characters of a field's name that an answer quotes


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: ErrorDetail


class ApiError(Exception):
    """An answer other than 200, ready to be sent."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {} if retry_after is None else {"Retry-After": str(math.ceil(retry_after))}
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"

    def body(self) -> bytes:
        detail = {
            "message": str(self),
            "type": TYPES.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
        }
        # ASCII only: what a user sent, and we quote, need not be encodable
        return json.dumps({"error": detail}).encode()

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, media_type="application/json")


TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
ENGINE_FAILED = "the engine failed on this request; the server's log has the reason"
SHUTTING_DOWN = "the server is shutting down; send the request to another one"


def invalid(error: InvalidRequest, code: str | None = None) -> ApiError:
    return ApiError(400, str(error), param=error.field, code=code)


def install(app: FastAPI) -> None:
    """Makes `app` answer every error in this shape."""

    @app.exception_handler(ApiError)
    async def _api_error(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(InvalidRequest)
    async def _invalid_request(_: Request, error: InvalidRequest) -> Response:
        return invalid(error).response()

    @app.exception_handler(QueueFull)
    async def _queue_full(_: Request, error: QueueFull) -> Response:
        full = ApiError(429, str(error), code="queue_full", retry_after=error.retry_after)
        return full.response()

    @app.exception_handler(EngineDead)
    async def _engine_dead(_: Request, error: EngineDead) -> Response:
        return ApiError(503, "the engine has stopped", code="engine_dead").response()

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        answer = ApiError(error.status_code, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer.response()

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> Response:
        log.error("unexpected error", exc_info=error)
        return ApiError(500, "internal error; the server's log has the reason").response()


def refusal_of(error: ValidationError, body: Any, model: type[BaseModel]) -> ApiError:
    """Says which field of `body` is wrong. A value that fits no branch of a union fails each of
    them; the error that lies deepest belongs to the branch that was meant."""
    errors = error.errors(include_url=False, include_input=False)
    paths = [_path(item["loc"], body, item["type"]) for item in errors]
    field = max((path for path in paths if path[:1] == paths[0][:1]), key=len)
    here = [item for path, item in zip(paths, errors, strict=True) if path == field]
    param, kinds = written(field), {item["type"]: item for item in here}
    if UNKNOWN_FIELD in kinds:
        return unknown_field((*field, kinds[UNKNOWN_FIELD]["ctx"]["name"]), model)
    if "extra_forbidden" in kinds:
        return unknown_field(field, model)
    if UNSUPPORTED in kinds:
        return ApiError(400, f"{param}: {kinds[UNSUPPORTED]['msg']}", param=param)
    if "missing" in kinds:
        return ApiError(400, f"{param}: missing; it is required", param=param)
    if TOO_MANY in kinds:
        amount = Amount(f"{kinds[TOO_MANY]['ctx']['count']} items")
        return invalid(InvalidRequest(param, amount, kinds[TOO_MANY]["msg"]))
    reasons = dict.fromkeys(_reason(item["msg"]) for item in here)
    return invalid(InvalidRequest(param, _value(body, field), " or ".join(reasons)))


def unknown_field(path: Path, model: type[BaseModel]) -> ApiError:
    param, close = written(path), []
    if len(str(path[-1])) <= LONGEST_NAME:
        names = {*field_names(model), *ChatRequest.model_fields, *CompletionRequest.model_fields}
        close = difflib.get_close_matches(str(path[-1]), sorted(names), n=1, cutoff=0.8)
    guess = f"; did you mean {close[0]}?" if close else ""
    return ApiError(400, f"{param}: unknown field{guess}", param=param)


Path = tuple[str | int, ...]


def _path(location: Sequence[str | int], body: Any, kind: str) -> Path:
    """`location` without the names of union branches, which are no keys of the body."""
    path: list[str | int] = []
    for index, step in enumerate(location):
        last = index == len(location) - 1
        inside = isinstance(body, dict) and step in body
        if inside or (isinstance(body, list) and isinstance(step, int) and step < len(body)):
            path.append(step)
            body = body[step]
        elif last and kind == "missing":
            path.append(step)
    return tuple(path)


def written(path: Path) -> str:
    """A field as errors name it. A name that a client made up is cut after LONGEST_NAME."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if len(step) <= LONGEST_NAME else step[:LONGEST_NAME] + "..."
            text += f".{name}" if text else name
    return text


def _value(body: Any, path: Path) -> Any:
    for step in path:
        body = body[step]
    return body


def _reason(message: str) -> str:
    return message.removeprefix("Input should be ").removeprefix("Value error, ")

"""Every error in OpenAI's shape, naming the field it is about."""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from paceline.core import InvalidRequest, QueueFull
from paceline.engine.async_engine import EngineDead
from paceline.server.protocol import UNSUPPORTED, ChatRequest, CompletionRequest

log = logging.getLogger(__name__)


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

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> Response:
        return _from_validation(error).response()

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        answer = ApiError(error.status_code, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer.response()

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> Response:
        log.error("unexpected error", exc_info=error)
        return ApiError(500, "internal error; the server's log has the reason").response()


def _from_validation(error: RequestValidationError) -> ApiError:
    """Says which field is wrong. A value that fits no branch of a union fails each of them; the
    error that lies deepest belongs to the branch that was meant."""
    errors = error.errors()
    if errors[0]["type"] == "json_invalid":
        reason, at = errors[0]["ctx"]["error"], errors[0]["loc"][-1]
        return ApiError(400, f"the body is no JSON: {reason} at character {at}", code="bad_json")
    if not isinstance(error.body, dict):
        expected = "a JSON object, sent with Content-Type: application/json"
        return ApiError(400, f"the body must be {expected}", code="bad_json")
    paths = [_path(item["loc"][1:], error.body, item["type"]) for item in errors]
    field = max((path for path in paths if path[:1] == paths[0][:1]), key=len)
    here = [item for path, item in zip(paths, errors, strict=True) if path == field]
    param, kind = _written(field), here[0]["type"]
    if kind == "extra_forbidden":
        return ApiError(400, f"{param}: unknown field{_guess(field)}", param=param)
    if kind == UNSUPPORTED:
        return ApiError(400, f"{param}: {here[0]['msg']}", param=param)
    if kind == "missing":
        return ApiError(400, f"{param}: missing; it is required", param=param)
    reasons = dict.fromkeys(_reason(item["msg"]) for item in here)
    return invalid(InvalidRequest(param, _value(error.body, field), " or ".join(reasons)))


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


def _written(path: Path) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _value(body: Any, path: Path) -> Any:
    for step in path:
        body = body[step]
    return body


def _reason(message: str) -> str:
    return message.removeprefix("Input should be ").removeprefix("Value error, ")


def _guess(field: Path) -> str:
    known = {**ChatRequest.model_fields, **CompletionRequest.model_fields}
    close = difflib.get_close_matches(str(field[-1]), known, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""

"""Errors in OpenAI's form; each names the field that it is about."""

from __future__ import annotations

import json
import logging
import math

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from paceline.core import InvalidRequest, QueueFull
from paceline.engine.async_engine import EngineDead

log = logging.getLogger(__name__)
TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
ENGINE_FAILED = "the engine failed on this request; the server's log has the reason"


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: ErrorDetail


class ApiError(Exception):
    """An error with its HTTP status, which becomes the answer."""

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


def invalid(error: InvalidRequest, code: str | None = None, status: int = 400) -> ApiError:
    return ApiError(status, str(error), param=error.field, code=code)


def shutting_down() -> ApiError:
    message = "the server is shutting down; send the request to another one"
    return ApiError(503, message, code="shutting_down", retry_after=1)


def install(app: FastAPI) -> None:
    """Make `app` answer every error in this form."""
    for kind in (ApiError, InvalidRequest, QueueFull, EngineDead, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(_: Request, error: Exception) -> Response:
    return _as_api_error(error).response()


def _as_api_error(error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return invalid(error)
        case QueueFull():
            return ApiError(429, str(error), code="queue_full", retry_after=error.retry_after)
        case EngineDead():
            return ApiError(503, "the engine has stopped", code="engine_dead")
        case HTTPException():
            answer = ApiError(error.status_code, str(error.detail))
            answer.headers.update(error.headers or {})
            return answer
    log.error("unexpected error", exc_info=error)
    return ApiError(500, "internal error; the server's log has the reason")

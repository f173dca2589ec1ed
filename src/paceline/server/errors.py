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
    """Make `app` answer every error in this form."""

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

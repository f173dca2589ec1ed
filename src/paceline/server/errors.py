"""Errors in OpenAI's form; each names the field that it is about."""

from __future__ import annotations

import json
import logging
import math
import re

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from paceline.core import InvalidRequest, QueueFull
from paceline.core.errors import Amount, OwnWords
from paceline.core.refusals import MissingField, UnknownField
from paceline.engine.async_engine import EngineDead
from paceline.server.access import record_of

log = logging.getLogger(__name__)
TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
# fields whose names within, or whose errors, may repeat what the client wrote
WRITTEN = frozenset(
    {
        "chat_template_kwargs", "enable_thinking", "input", "instructions", "logit_bias",
        "messages", "metadata", "prompt", "reasoning_effort", "response_format",
        "structured_outputs", "system", "text", "tool_choice", "tools",
    }
)  # fmt: skip
NAMED_BY_CLIENT = ("chat_template_kwargs", "logit_bias", "metadata")  # those with keys of clients
MESSAGES = "/v1/messages"  # Anthropic's API, whose errors have another form
MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
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
    """An error with its HTTP status, which becomes the answer.

    `reason` is what the log says: without what the client wrote.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = message if reason is None else reason
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

    def messages_body(self) -> dict[str, object]:
        """Return the error as Anthropic's API writes it."""
        kind = MESSAGES_TYPES.get(self.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": str(self)}}

    def response(self, path: str = "") -> Response:
        """Return the answer to a request for `path`, in the form of that API."""
        body = self.body()
        if path.startswith(MESSAGES):
            body = json.dumps(self.messages_body()).encode()
        return Response(body, self.status, self.headers, media_type="application/json")


def invalid(error: InvalidRequest, code: str | None = None, status: int = 400) -> ApiError:
    reason = logged_reason(error)
    return ApiError(status, str(error), param=error.field, code=code, reason=reason)


def logged_reason(error: InvalidRequest) -> str:
    """Return what the log says of a refusal. It never has the value, nor what would be right for
    fields where that may repeat what the client wrote."""
    if isinstance(error, UnknownField):
        return f"{error.field}: unknown field"
    if isinstance(error, MissingField):
        return str(error)
    if isinstance(error.value, Amount):  # says how much there was, and the bound
        return str(error)
    if str(error) == f"{error.field}: {error.expected}":
        return str(error)
    root = re.split(r"[.\[]", error.field, maxsplit=1)[0]
    if root not in WRITTEN:
        return f"{error.field}: expected {error.expected}"
    field = root if root in NAMED_BY_CLIENT else error.field
    if isinstance(error.expected, OwnWords):
        return f"{field}: expected {error.expected}"
    return f"{field if root == 'messages' else root}: refused"


def shutting_down() -> ApiError:
    message = "the server is shutting down; send the request to another one"
    return ApiError(503, message, code="shutting_down", retry_after=1)


def install(app: FastAPI) -> None:
    """Make `app` answer every error in this form."""
    for kind in (ApiError, InvalidRequest, QueueFull, EngineDead, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


async def answer(http: Request, error: Exception) -> Response:
    """Return the answer to an error."""
    refusal = _as_api_error(error)
    record_of(http.scope).refusal = refusal
    return refusal.response(http.url.path)


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

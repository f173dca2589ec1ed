"""Refusals of paths and methods that the server does not have: they say what is near."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from paceline.core.errors import shown
from paceline.server.errors import ApiError, answer

# Words in paths of other servers' APIs, and what to say of them.
ABSENT = {
    "embed": "Paceline serves no embeddings: its models generate text",
    "rerank": "Paceline reranks nothing: its models generate text",
    "score": "Paceline serves no scoring models; /v1/completions scores a prompt with echo",
    "pooling": "Paceline serves no pooling models: its models generate text",
    "classify": "Paceline serves no classifiers: its models generate text",
    "audio": "Paceline serves no audio: its models read and write text",
    "images": "Paceline serves no images: its models read and write text",
    "moderations": "Paceline serves no moderation model",
    "batches": "Paceline takes no batches; /v1/completions takes up to 128 prompts at once",
    "files": "Paceline keeps no files",
    "assistants": "Paceline has no assistants; use /v1/responses",
    "threads": "Paceline has no threads; use /v1/responses",
    "api": "this is not Ollama's API; use /v1/chat/completions",
}


def install(app: FastAPI) -> None:
    """Make `app` refuse unknown paths and methods in this form."""

    async def refuse(http: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await answer(http, unknown_path(http, error))

    for status in (404, 405):
        app.add_exception_handler(status, refuse)


def unknown_path(http: Request, error: HTTPException) -> ApiError:
    """Return the refusal of a request that no route takes: 404, or 405 for another method."""
    path = http.url.path
    if error.status_code == 405:
        methods = (error.headers or {}).get("Allow", "another method")
        message = f"{shown(path)} takes {methods}, not {http.method}"
        refusal = ApiError(405, message, code="method_not_allowed")
        refusal.headers.update(error.headers or {})
        return refusal
    return ApiError(404, f"no path {shown(path)} here{_hint(path, http)}", code="unknown_path")


def _hint(path: str, http: Request) -> str:
    words = path.lower().strip("/").split("/")
    for word, reason in ABSENT.items():
        if words[0] == word or any(part.startswith(word) for part in words[-2:] if word != "api"):
            return f"; {reason}"
    near = _near(path, list(dict.fromkeys(_paths(http.app.routes))))
    return f"; did you mean {near}?" if near else ""


def _near(path: str, known: list[str]) -> str | None:
    """Return the path that `path` is a part of, or that is written nearly the same."""
    bare = path.rstrip("/")
    whole = [name for name in known if name == bare or (bare and name.endswith(bare))]
    doubled = [name for name in known if bare.endswith(name)]  # /v1/v1/models: a base URL too long
    around = [name for name in known if bare and f"{bare}/" in name]  # /v1/chat
    if len(around) == 1:
        whole += around
    close = difflib.get_close_matches(bare, known, n=1, cutoff=0.75)
    return next(iter([*whole, *sorted(doubled, key=len, reverse=True), *close]), None)


def _paths(routes: Iterable[BaseRoute]) -> Iterable[str]:
    """Yield the paths of routes that the schema describes."""
    for route in routes:
        included = getattr(route, "original_router", None)  # newer versions of FastAPI nest them
        if included is not None:
            yield from _paths(included.routes)
        if isinstance(route, APIRoute) and route.include_in_schema and "{" not in route.path:
            yield route.path

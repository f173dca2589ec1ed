"""The paths below /v1/responses."""

from __future__ import annotations

import re

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from paceline.core.errors import Amount, InvalidRequest
from paceline.server.block_stream import BlockStream, event_sizes, finished, start
from paceline.server.gate import client_of
from paceline.server.protocol import MAX_MESSAGES
from paceline.server.responses import write_json
from paceline.server.responses_api import objects
from paceline.server.responses_api.answer import ResponseWriter
from paceline.server.responses_api.objects import ResponseObject
from paceline.server.responses_api.request import ResponsesRequest
from paceline.server.responses_api.store import ResponseStore
from paceline.server.responses_api.turn import items_of, stored
from paceline.server.serving import Serving
from paceline.server.statuses import GENERATION, named_events, refusals
from paceline.server.translation import Translation

MOST_LISTED = 100  # items in one answer
LIMIT = re.compile("[0-9]{1,3}")


class ResponsesApi:
    """Creates responses, and keeps them for follow-ups."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        settings = serving.settings
        self.store = ResponseStore(settings.stored_responses, settings.stored_responses_memory)

    async def create(self, body: ResponsesRequest, http: Request) -> Response:
        """Answer a request, whole or as a stream. Raises InvalidRequest or ApiError."""
        serving, owner = self._serving, self._serving.owner(http)
        body.check()
        translation = await self._translated(body, http, owner)
        opened = await start(serving, translation, http, "resp_")
        job = opened.job

        async def keep(response: ResponseObject) -> None:
            if body.keeps:
                entry = await run_in_threadpool(lambda: stored(owner, body, response))
                self.store.put(response["id"], entry)

        async def count(text: str) -> int:
            client = client_of(http, serving.settings)
            return len(await serving.encoder.ids(text, client, special=False))

        writer = ResponseWriter(
            body, job, opened.form.format, serving.texts, keep=keep, count=count
        )
        if not body.stream:
            return await finished(job, writer, translation, http)
        is_padded = body.stream_options is not None and bool(
            body.stream_options.include_obfuscation
        )
        options = serving.writing(job, event_sizes(), padded=is_padded)
        return BlockStream(job, writer, translation, options)

    async def _translated(self, body: ResponsesRequest, http: Request, owner: str) -> Translation:
        if body.previous_response_id is None:
            return body.translation
        serving, chain = self._serving, self.store.chain(body.previous_response_id, owner)
        size = sum(entry.turn_size for entry in chain)
        self._check_length(sum(len(entry.turn) for entry in chain), size)
        with serving.turn(http) as client:
            return await serving.encoder.run(
                lambda: body.translate(items_of(chain), size), client, size
            )

    def _check_length(self, items: int, size: int) -> None:
        """Refuse to go on from a conversation that no request could have as its input."""
        most_bytes = self._serving.settings.max_body_bytes
        most_items = min(MAX_MESSAGES, self._serving.engine.max_model_len)
        for count, most, unit in ((size, most_bytes, "bytes"), (items, most_items, "items")):
            if count > most:
                amount = Amount(f"a conversation of {count} {unit}")
                raise InvalidRequest("previous_response_id", amount, f"at most {most} {unit}")

    def kept(self, response_id: str, http: Request) -> Response:
        """Return a kept response. Raises ApiError (404)."""
        for name, value in http.query_params.items():
            if name != "stream" or value != "false":
                expected = "no parameter, or stream=false: a kept response is not streamed"
                raise InvalidRequest(name, value, expected)
        entry = self.store.find(response_id, self._serving.owner(http))
        return Response(entry.response, media_type="application/json")

    def deleted(self, response_id: str, http: Request) -> Response:
        """Forget a kept response. Raises ApiError (404)."""
        self.store.delete(response_id, self._serving.owner(http))
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    def input_items(self, response_id: str, http: Request) -> Response:
        """Return items of the input of a kept response. Raises InvalidRequest or ApiError (404)."""
        items = self.store.find(response_id, self._serving.owner(http)).input
        asked = {"limit": "20", "order": "desc", "after": "", **http.query_params}
        if unknown := asked.keys() - {"limit", "order", "after"}:
            name = min(unknown)
            raise InvalidRequest(name, asked[name], "one of limit, order and after")
        if asked["order"] not in ("asc", "desc"):
            raise InvalidRequest("order", asked["order"], "asc or desc")
        if not (LIMIT.fullmatch(asked["limit"]) and 1 <= int(asked["limit"]) <= MOST_LISTED):
            expected = f"a whole number from 1 to {MOST_LISTED}"
            raise InvalidRequest("limit", asked["limit"], expected)
        if asked["order"] == "desc":
            items = items[::-1]
        if asked["after"]:
            places = [place for place, item in enumerate(items) if item.id == asked["after"]]
            if not places:
                raise InvalidRequest("after", asked["after"], "the id of an item of this input")
            items = items[places[0] + 1 :]
        page = items[: int(asked["limit"])]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        ends = {"first_id": first, "last_id": last, "has_more": len(items) > len(page)}
        data = b",".join(item.json for item in page)
        body = b'{"object":"list","data":[%b],%b' % (data, write_json(ends)[1:])
        return Response(body, media_type="application/json")


def add_creation(routes: APIRouter, api: ResponsesApi) -> None:
    """Add the path whose body is a request to `routes`, which read bodies."""

    @routes.post(
        "/v1/responses",
        response_model=objects.ResponseObject,
        responses={**GENERATION, **named_events(numbered=True)},
    )
    async def create_response(body: ResponsesRequest, http: Request) -> Response:
        """Answer a turn of a conversation, whole or as a stream."""
        return await api.create(body, http)


def add_lookups(routes: APIRouter, api: ResponsesApi) -> None:
    """Add the paths of kept responses."""
    path, missing = "/v1/responses/{id}", refusals(400, 401, 404)

    @routes.get(path, response_model=objects.ResponseObject, responses=missing)
    async def kept_response(id: str, http: Request) -> Response:
        """Return a response that is kept."""
        return api.kept(id, http)

    @routes.delete(path, response_model=objects.DeletedResponse, responses=missing)
    async def delete_response(id: str, http: Request) -> Response:
        """Forget a response."""
        return api.deleted(id, http)

    @routes.get(f"{path}/input_items", response_model=objects.InputItems, responses=missing)
    async def response_input(id: str, http: Request) -> Response:
        """List the input of a kept response."""
        return api.input_items(id, http)

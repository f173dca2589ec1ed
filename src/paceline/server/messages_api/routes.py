"""The paths below /v1/messages."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from paceline.core import InvalidRequest
from paceline.server.block_stream import BlockStream, event_sizes, finished, start
from paceline.server.errors import ApiError
from paceline.server.messages_api import objects
from paceline.server.messages_api.answer import MessageWriter
from paceline.server.messages_api.request import MessagesRequest, TokenCountRequest
from paceline.server.serving import Serving
from paceline.server.statuses import GENERATION_STATUSES, named_events, refusals


def add_messages(routes: APIRouter, serving: Serving) -> None:
    """Add the paths to `routes`, which read bodies."""

    errors = refusals(*GENERATION_STATUSES, model=objects.MessagesError)

    @routes.post(
        "/v1/messages",
        response_model=objects.MessageObject,
        responses={**named_events(), **errors},
    )
    async def create_message(body: MessagesRequest, http: Request) -> Response:
        """Answer a conversation in Anthropic's form, whole or as a stream."""
        translation = body.translation
        opened = await start(serving, translation, http, "msg_")
        writer = MessageWriter(opened.job, opened.form.format)
        if not body.stream:
            return await finished(opened.job, writer, translation, http)
        writing = serving.writing(opened.job, event_sizes(), padded=False)
        return BlockStream(opened.job, writer, translation, writing)

    @routes.post("/v1/messages/count_tokens", response_model=objects.TokenCount, responses=errors)
    async def count_tokens(body: TokenCountRequest, http: Request) -> Response:
        """Count the tokens of a conversation in Anthropic's form."""
        translation = body.translation
        serving.settle_model(translation.chat)
        with serving.turn(http) as client:
            try:
                (ids,) = await serving.encoder.encode(translation.chat, client)
            except (InvalidRequest, ApiError) as error:
                raise translation.refusal(error) from None
        return JSONResponse({"input_tokens": len(ids)})

"""Bodies and answers of /tokenize and /detokenize, in the form that vLLM gave them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from typing_extensions import TypedDict

from paceline.core.errors import Amount, InvalidRequest
from paceline.core.field_types import AtMost
from paceline.server.fields import JsonObject, TokenIds
from paceline.server.protocol import MAX_MESSAGES, ChatRequest, Message, RequestBody
from paceline.server.responses import write_json
from paceline.server.serving import Serving
from paceline.server.structured import MAX_TOOLS, Tool


class TokenizeRequest(RequestBody):
    """Text, or a conversation for the model's chat template: exactly one of the two."""

    prompt: str | None = None
    messages: (
        Annotated[list[Message], Field(min_length=1), AtMost(MAX_MESSAGES, "messages")] | None
    ) = None
    add_special_tokens: bool | None = None
    """Add the tokens that begin or end every text (default: true for a prompt)."""
    return_token_strs: bool | None = None
    """Return the text of each token too."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[JsonObject, AtMost(64, "variables")] | None = None
    tools: Annotated[list[Tool], AtMost(MAX_TOOLS, "tools")] | None = None

    def check(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            given = "neither" if self.prompt is None else "both"
            raise InvalidRequest("prompt", given, "either prompt or messages")
        if self.messages is None:
            for name in ("add_generation_prompt", "continue_final_message", "tools"):
                if getattr(self, name):
                    raise InvalidRequest(name, getattr(self, name), "null beside a prompt")
        elif self.add_special_tokens:
            expected = "false beside messages: the chat template writes the special tokens"
            raise InvalidRequest("add_special_tokens", True, expected)
        else:
            self.conversation.check()

    @property
    def conversation(self) -> ChatRequest:
        """Return the messages as a request for an answer."""
        names = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
        chat = ChatRequest.model_construct(
            model=self.model,
            messages=self.messages,
            **{name: getattr(self, name) for name in names},
        )
        chat.note_size(self.size)
        return chat


class DetokenizeRequest(RequestBody):
    tokens: TokenIds
    """Token ids."""


class Tokenized(TypedDict):
    """The token ids of a text, and the text of each where it was asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    """The text of token ids, special tokens included."""

    prompt: str


async def tokenize(serving: Serving, body: TokenizeRequest, http: Request) -> bytes:
    """Return the token ids of a text or a conversation, a Tokenized as JSON.

    Raises InvalidRequest or ApiError.
    """
    serving.settle_model(body)
    body.check()
    with serving.turn(http) as client:
        if body.prompt is None:
            (ids,) = await serving.encoder.encode(body.conversation, client)
        else:
            special = body.add_special_tokens is not False
            ids = await serving.encoder.ids(body.prompt, client, special=special)

        def written() -> bytes:
            texts = [serving.texts[token][0] for token in ids] if body.return_token_strs else None
            limit = serving.engine.max_model_len
            answer = Tokenized(count=len(ids), max_model_len=limit, tokens=ids, token_strs=texts)
            return write_json(answer)

        return await run_in_threadpool(written)  # a long text has many tokens


async def detokenize(serving: Serving, body: DetokenizeRequest, http: Request) -> bytes:
    """Return the text of token ids, a Detokenized as JSON. Raises InvalidRequest or ApiError."""
    serving.settle_model(body)
    count, most = len(body.tokens), serving.engine.max_model_len
    if count > most:
        expected = f"at most {most}, the context length"
        raise InvalidRequest("tokens", Amount(f"{count} token ids"), expected)
    last = serving.engine.vocab_size - 1
    if (largest := max(body.tokens, default=0)) > last:
        raise InvalidRequest("tokens", largest, f"token ids from 0 to {last}")
    with serving.turn(http) as client:
        (text,) = await serving.encoder.texts([body.tokens], client, special=True)
        return await run_in_threadpool(lambda: write_json(Detokenized(prompt=text)))

"""Prompts of requests as token ids, made off the event loop so that others' tokens are not late."""

from __future__ import annotations

from functools import partial
from typing import Any

from paceline.core import InvalidRequest
from paceline.server.conversation import Conversations
from paceline.server.prompt_size import PromptSize, token_ids
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.turns import Turns

SHORT = 16384  # bytes of a body, or characters of a prompt, that take some 10 ms to encode


class PromptEncoder:
    """Encodes prompts on two threads, one of them for short prompts, which never wait behind long
    ones. Clients take turns on each.

    What waits for the threads is bounded by whoever calls: reserve room in the engine first.
    """

    def __init__(self, tokenizer: Any, size: PromptSize) -> None:
        self._backend = tokenizer.backend_tokenizer
        # a tokenizer's file may set these two; `tokenizer()` switches them off in each call
        self._backend.no_truncation()
        self._backend.no_padding()
        self._conversations = Conversations(tokenizer)
        self._size = size
        self._short = Turns("paceline-short-prompts")
        self._long = Turns("paceline-long-prompts")

    async def chat(self, request: ChatRequest, client: str) -> list[list[int]]:
        """Return the token ids of a conversation, as a list of one prompt.

        Raises InvalidRequest for what the template cannot show, ApiError for what cannot fit the
        context.
        """
        cost = request.size
        return [await self._turns(cost).run(lambda: self._chat(request), client=client, cost=cost)]

    async def prompts(self, request: CompletionRequest, client: str) -> list[list[int]]:
        """Return the token ids of each prompt; each takes its own turn. Raises as chat() does."""
        ids: list[list[int]] = []
        for prompt in request.prompts:
            if isinstance(prompt, str):
                turns, job = self._turns(len(prompt)), partial(self._text, prompt)
                prompt = await turns.run(job, client=client, cost=len(prompt))
            ids.append(prompt)
        return ids

    def _turns(self, cost: int) -> Turns:
        return self._short if cost <= SHORT else self._long

    def _chat(self, request: ChatRequest) -> list[int]:
        shown = [m.text.strip() for m in request.messages if m.role != "assistant"]
        self._size.refuse_texts("messages", shown)
        return self._ids("messages", self._conversations.render(request), special=False)

    def _text(self, prompt: str) -> list[int]:
        return self._ids("prompt", prompt, special=True)

    def _ids(self, field: str, text: str, *, special: bool) -> list[int]:
        try:
            self._size.refuse_tokens(field, text)
            return token_ids(self._backend, text, special=special)
        except (UnicodeError, TypeError):  # half a surrogate pair, which JSON can escape
            raise InvalidRequest(field, text, "text that can be written as UTF-8") from None

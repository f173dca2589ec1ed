from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from paceline.core import Request, SamplingParams
from paceline.drafters.base import TargetInfo

_ids = count()


@pytest.fixture
def make_request() -> Callable[..., Request]:
    """A running request on a drafter that may draft up to 16 tokens."""

    def make(prompt: list[int], output: list[int] = (), *, temperature=0.0, **fields) -> Request:
        fields.setdefault("max_draft_len", 16)
        fields.setdefault("answers_scope", b"")
        return Request(
            id=f"request-{next(_ids)}",
            prompt_ids=list(prompt),
            params=SamplingParams(temperature=temperature),
            tokens=[*prompt, *output],
            **fields,
        )

    return make


@pytest.fixture
def make_target() -> Callable[..., TargetInfo]:
    def make(**fields) -> TargetInfo:
        info = {"name": "target", "vocab_size": 1000, "hidden_size": 8, "num_layers": 1}
        info |= {"max_model_len": 1024, "block_size": 16, "num_blocks": 64}
        return TargetInfo(**(info | fields))

    return make


@pytest.fixture
def draft_once() -> Callable[..., list[int]]:
    """The draft of one request, alone in the batch."""

    def draft(drafter, request: Request, length: int = 8) -> list[int]:
        return drafter.propose([request], [length]).tokens[0]

    return draft

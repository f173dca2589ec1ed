"""Requests made up from the OpenAPI schema, right and wrong: never a 5xx, never a hang."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from paceline.server.app import create_app
from paceline.server.settings import ServerSettings

from .fake import FakeAsyncEngine
from .test_real_engine import tiny_engine

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# testserver: the Host of the client that schemathesis uses
SETTINGS = ServerSettings(served_model_names=("fake-model",), allow_hosts=("testserver",))
app = create_app(FakeAsyncEngine(max_model_len=64), SETTINGS)
schema = schemathesis.openapi.from_asgi("/openapi.json", app)
QUIET = {
    "deadline": 5000,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
}


def check(case: Any) -> int:
    """The status that the request got."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "fake-model"  # else every request would end at a 404
    return int(case.call_and_validate(checks=CHECKS).status_code)


def leave_out(body: dict[str, Any]) -> None:
    """Grammars and tools: hardly any of those made up at random is one, whatever its type."""
    for field in ("tools", "tool_choice", "structured_outputs", "response_format", "speculative"):
        body.pop(field, None)
    for message in body.get("messages", ()):
        message.pop("tool_calls", None)
        message["content"] = message.get("content") or "Hi"


@schema.parametrize()
@settings(max_examples=12, **QUIET)
def test_fuzz(case: Any) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_fuzz_the_real_engine(path: str, mode: schemathesis.GenerationMode) -> None:
    engine = tiny_engine(max_model_len=64, max_waiting=64)
    engine.start()
    real = schemathesis.openapi.from_asgi("/openapi.json", create_app(engine, SETTINGS))
    strategy = real[path]["POST"].as_strategy(generation_mode=mode)
    seen: Counter[int] = Counter()

    @given(case=strategy)
    @settings(max_examples=300, **QUIET)
    def ask(case: Any) -> None:
        if mode.is_positive and len(case.body) % 3:  # as good as by lot, and the same when repeated
            leave_out(case.body)
        seen[check(case)] += 1

    ask()
    assert engine.alive
    engine.shutdown()
    assert engine.engine.cache.free_blocks == engine.engine.cache.num_blocks
    usual = 200 if mode.is_positive else 400
    assert seen[usual] > 50, seen

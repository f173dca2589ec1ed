"""Traces: a span for each generation, under the caller's, with counts and times and no text."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from paceline.core.packages import MissingPackage
from paceline.server import tracing
from paceline.server.settings import ServerSettings

from .conftest import Client
from .fake import FakeAsyncEngine

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANARY = "zebra-secret"


class TracedClient(Client):
    """A client of a server whose spans are kept."""

    def __init__(self, exporter: InMemorySpanExporter, **engine: Any) -> None:
        settings = ServerSettings(otlp_endpoint="http://collector", api_keys=("team-a s3cret",))
        super().__init__(FakeAsyncEngine(**engine), settings)
        self._exporter = exporter

    def request(self, method: str, path: str, **options: Any) -> Any:
        headers = {"Authorization": "Bearer s3cret", **options.pop("headers", {})}
        return super().request(method, path, headers=headers, **options)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[TracedClient, Any]]:
    def make(**engine: Any) -> tuple[TracedClient, Callable[[], tuple[ReadableSpan, ...]]]:
        exporter, made = InMemorySpanExporter(), list[tracing.Tracing]()
        monkeypatch.setattr(tracing, "exporter_to", lambda _: exporter)
        build = tracing.Tracing.__init__

        def noted(self: tracing.Tracing, exporter: Any) -> None:
            build(self, exporter)
            made.append(self)

        monkeypatch.setattr(tracing.Tracing, "__init__", noted)
        client = TracedClient(exporter, **engine)

        def spans() -> tuple[ReadableSpan, ...]:
            for entry in made:
                entry.provider.force_flush()
            return exporter.get_finished_spans()

        return client, spans

    return make


@pytest.mark.parametrize("stream", [False, True])
def test_a_span_tells_of_a_generation(traced: Any, stream: bool) -> None:
    client, spans = traced()
    answer = client.complete(
        prompt=CANARY, stream=stream, seed=2**64 - 1, temperature=0.5, user=CANARY
    )
    assert answer.status_code == 200
    client.get("/v1/models")
    (span,) = spans()
    shown = dict(span.attributes)
    assert (span.name, span.kind) == ("text_completion fake-model", SpanKind.SERVER)
    assert shown["gen_ai.operation.name"] == "text_completion"
    assert shown["gen_ai.response.id"] == answer.headers["x-request-id"]
    assert shown["gen_ai.usage.input_tokens"] == len(CANARY)
    assert shown["gen_ai.usage.output_tokens"] == 8
    assert shown["gen_ai.response.finish_reasons"] == ("length",)
    assert shown["gen_ai.request.temperature"] == 0.5
    assert shown["gen_ai.request.seed"] == str(2**64 - 1)
    assert shown["http.response.status_code"] == 200
    assert shown["paceline.api_key.name"] == "team-a"
    assert shown["spec.drafter"] == "ngram" and shown["spec.draft_rounds"] == 3
    assert (shown["spec.draft_tokens"], shown["spec.accepted_tokens"]) == (8, 5)
    assert shown["spec.acceptance_length"] == pytest.approx(8 / 3)
    assert 0 < shown["gen_ai.latency.time_to_first_token"] <= shown["gen_ai.latency.e2e"]
    assert span.end_time - span.start_time >= 1e9 * shown["gen_ai.latency.e2e"]
    assert CANARY not in span.to_json()
    assert span.resource.attributes["service.name"] == "paceline"


def test_a_span_of_a_request_without_a_token_has_no_ttft(traced: Any) -> None:
    client, spans = traced()
    assert client.complete(max_tokens=0, echo=True, logprobs=1).status_code == 200
    (span,) = spans()
    shown = dict(span.attributes)
    assert shown["gen_ai.usage.output_tokens"] == 0 and shown["gen_ai.latency.e2e"] > 0
    assert "gen_ai.latency.time_to_first_token" not in shown


def test_the_callers_trace_goes_on(traced: Any) -> None:
    client, spans = traced()
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    for parent in (PARENT, "nonsense"):
        headers = {"traceparent": parent}
        assert client.post("/v1/chat/completions", json=body, headers=headers).is_success
    under, alone = spans()
    assert under.name == "chat fake-model" and alone.parent is None
    assert f"{under.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{under.parent.span_id:016x}" == PARENT.split("-")[2]


def test_a_sampled_out_trace_is_left_out(traced: Any) -> None:
    client, spans = traced()
    headers = {"traceparent": PARENT[:-2] + "00"}
    assert client.post("/v1/completions", json={"prompt": "Hi"}, headers=headers).is_success
    assert spans() == ()


def test_a_failure_is_an_error(traced: Any) -> None:
    client, spans = traced(fail=True)
    assert client.complete().status_code == 500
    (span,) = spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "engine_failed"


def test_refusals_make_no_span(traced: Any) -> None:
    client, spans = traced()
    assert client.complete(temperature=-1).status_code == 400
    assert spans() == ()


def test_a_check_of_the_packages_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    tracing.check_tracing()
    assert threading.active_count() == before
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingPackage, match="traces need"):
        tracing.check_tracing()

"""Traces of requests for OpenTelemetry, off by default: one span for each, without any text.

Attributes follow the GenAI semantic conventions (`gen_ai.*`), with vLLM's names for latencies;
`spec.*` tells of speculation. A span is made when its request has ended, with the times of then.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from paceline.core import FinishReason
from paceline.core.packages import MissingPackage
from paceline.server.access import RequestRecord
from paceline.version import __version__

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExporter

    from paceline.server.job import Job

PROVIDER = "paceline"
EXPORT_SECONDS = 5.0  # that a collector has to take a batch
MOST_INT = 2**63 - 1
Attributes = dict[str, str | int | float | list[str]]
REQUESTED = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "max_tokens", "seed")


class Tracing:
    """Sends a span of each generation to `exporter`, in batches, from a thread of the SDK."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        name = os.environ.get("OTEL_SERVICE_NAME", PROVIDER)
        resource = Resource.create({"service.name": name, "service.version": __version__})
        self.provider = TracerProvider(resource=resource)
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self.provider.get_tracer(PROVIDER, __version__)
        self._propagator = TraceContextTextMapPropagator()

    def note(self, record: RequestRecord, headers: Headers) -> None:
        """Make the span of a generation that has ended; its parent is that of `traceparent`."""
        job = record.job
        if job is None:
            return
        from opentelemetry.trace import SpanKind, StatusCode

        end = time.time_ns()
        start = end - round(1e9 * (time.monotonic() - record.started))
        operation = "text_completion" if record.path == "/v1/completions" else "chat"
        sent = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        span = self._tracer.start_span(
            f"{operation} {job.model}",
            context=self._propagator.extract(sent),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "http.request.method": record.method,
                "url.path": record.path,
                "http.response.status_code": record.status,
                **({"paceline.api_key.name": record.key} if record.key else {}),
                **generation_attributes(job),
            },
            start_time=start,
        )
        failed = record.status >= 500 or FinishReason.ERROR in job.finish_reasons
        if failed:
            code = record.refusal.code if record.refusal else None
            span.set_attribute("error.type", code or str(record.status))
            span.set_status(StatusCode.ERROR)
        span.end(end)


def generation_attributes(job: Job) -> Attributes:
    """Return what a span tells of a job; latencies and AL (incl. bonus) for one choice only."""
    usage, times = job.usage(), job.times
    shown: Attributes = {
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": job.model,
        "gen_ai.response.model": job.model,
        "gen_ai.response.id": job.id,
        "gen_ai.response.finish_reasons": job.finish_reasons,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.request.choice.count": len(job.choices),
        **{f"paceline.cohort.{part}": text for part, text in job.caller.counted.told.items()},
    }
    for name in REQUESTED:
        value = getattr(job.params, name)
        if value is not None:  # OTLP's whole numbers have 64 bits with a sign; seeds need all 64
            shown[f"gen_ai.request.{name}"] = value if value <= MOST_INT else str(value)
    if times is not None:
        shown["gen_ai.latency.time_in_queue"] = times.queue
        shown["gen_ai.latency.e2e"] = times.total
        if times.ttft is not None:
            shown["gen_ai.latency.time_to_first_token"] = times.ttft
    return shown | speculation_attributes(job)


def speculation_attributes(job: Job) -> Attributes:
    stats = job.stats
    shown: Attributes = {
        "spec.drafter": job.drafter or "none",
        "spec.rounds": stats.rounds,
        "spec.draft_rounds": stats.draft_rounds,
        "spec.draft_tokens": stats.draft_tokens,
        "spec.accepted_tokens": stats.accepted_tokens,
    }
    if job.drafter_version is not None and job.route is not None:
        shown["spec.drafter_version"], shown["spec.route"] = job.drafter_version, job.route
    if stats.acceptance_length is not None:
        shown["spec.acceptance_length"] = stats.acceptance_length
    if len(job.choices) == 1 and job.drafter and stats.speedup_vs_ar is not None:
        shown["spec.speedup_vs_ar"] = stats.speedup_vs_ar
    return shown


def tracing_to(endpoint: str | None) -> Tracing | None:
    """Return what sends traces to an OTLP collector over HTTP; None without an address.

    Raises MissingPackage where the packages of the extra `otel` are not installed.
    """
    return None if endpoint is None else Tracing(exporter_to(endpoint))


def check_tracing() -> None:
    """Raise MissingPackage where the packages that send traces are not installed."""
    _exporter_type()


def exporter_to(endpoint: str) -> SpanExporter:
    """Return what sends spans to `endpoint`. Raises MissingPackage."""
    return _exporter_type()(endpoint=endpoint, timeout=EXPORT_SECONDS)


def _exporter_type() -> type[OTLPSpanExporter]:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise MissingPackage("traces need", "opentelemetry-exporter-otlp-proto-http") from None
    return OTLPSpanExporter

"""Traces of what the server answers: counts of every stream, token ids only with consent, no text.

The event loop only hands over what a finished stream leaves behind. Rows, digests and redaction
are the work of the writer's thread.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from paceline.core import FinishReason, InvalidRequest, OutputDelta, Request, Round
from paceline.core.rounds import SpeculationStats
from paceline.dataset.traces.folder import DAY_SECONDS, SessionDigest
from paceline.dataset.traces.records import (
    OWN,
    SHARED,
    RequestTrace,
    RoundTrace,
    Traced,
    arrow_module,
)
from paceline.dataset.traces.retention import Retention
from paceline.dataset.traces.writer import TraceCounts, TraceWriter
from paceline.engine.routes import DEFAULT
from paceline.server.cohorts import Caller
from paceline.server.settings import ServerSettings

log = logging.getLogger(__name__)
Ids = Sequence[int]
Redact = Callable[[list[int], list[int]], tuple[Ids, Ids] | None]
# Rules whose rounds say which tokens were forced; "" is no round at all. Under the others a drafted
# token in such a place counts as accepted.
TELLING = ("", "match")
SCOPES = {"no": "", "own": OWN, "shared": SHARED}  # by the consent of a key
# estimated bytes of what waits for the writer
REQUEST_BYTES, ROUND_BYTES, TOKEN_BYTES = 1000, 250, 8


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream that has ended, or that nobody reads any more; at `forced_places` of its output a
    grammar left no choice."""

    request: Request
    caller: Caller
    session: str
    rounds: tuple[Round, ...]
    stats: SpeculationStats
    last: OutputDelta | None
    time: float  # seconds since the epoch
    forced_places: tuple[int, ...] = ()


class Capture:
    """Writes traces as the settings say. Raises MissingPackage and InvalidRequest."""

    def __init__(self, folder: Path, settings: ServerSettings) -> None:
        check_capture(settings)
        self._settings, self._redact = settings, hook_of(settings)
        self._told = False
        retention = Retention(settings.traces_keep, settings.traces_ttl)
        self._writer = TraceWriter(folder, retention)

    @property
    def counts(self) -> TraceCounts:
        return self._writer.counts

    def take(self, ended: Ended) -> None:
        """Hand a stream over to the writer. Call it once for each, from any thread."""
        kept = len(ended.request.tokens) + len(ended.forced_places)
        tokens = kept if self.scope(ended) else 0
        size = REQUEST_BYTES + ROUND_BYTES * len(ended.rounds) + TOKEN_BYTES * tokens
        self._writer.offer(lambda digest: self.traced(ended, digest), size)

    def close(self) -> None:
        self._writer.close()

    def scope(self, ended: Ended) -> str:
        """Return who may learn from a stream's token ids, "" where they may not be kept."""
        settings, key = self._settings, ended.caller.key
        if not settings.traces_tokens or place_of(ended.request.id) >= settings.traces_sample:
            return ""
        return SHARED if key is None else SCOPES[key.tokens]

    def traced(self, ended: Ended, digest: SessionDigest) -> Traced:
        """Return the rows of a stream."""
        request, last, caller = ended.request, ended.last, ended.caller
        cohort, first = caller.counted, next(iter(ended.rounds), None)
        stream = None if first is None else first.stream
        scope, ids = self._token_ids(ended)
        prompt_ids, output_ids = (None, None) if ids is None else ids
        rule = "" if stream is None else stream.rule
        forced = ended.forced_places if _is_output(ended, output_ids) else None
        if request.params.grammar is not None and rule not in TELLING:
            forced = None
        expires = ended.time + self._settings.traces_ttl * DAY_SECONDS
        row = RequestTrace(
            id=request.id,
            time=ended.time,
            model=cohort.model,
            app=cohort.app,
            language=cohort.language,
            region=cohort.region,
            key="" if caller.key is None else caller.key.name,
            scope=scope,
            session=digest.of(ended.session),
            drafter=request.drafter if stream is None else stream.drafter,
            version=None if stream is None else stream.version,
            route=request.route or DEFAULT,
            spec_off=request.drafter is None and not request.held_back,
            held_back=request.held_back,
            prompt_tokens=request.prompt_len,
            output_tokens=0 if last is None else last.completion_tokens,
            cached_tokens=0 if last is None else last.cached_tokens,
            finish=finish_of(last).value,
            temperature=request.params.temperature,
            grammar=request.params.grammar is not None,
            rule=rule,
            draft_bound=request.max_draft_len,
            prompt_ids=prompt_ids,
            output_ids=output_ids,
            forced_places=forced,
            expires=None if ids is None else expires,
            **_latencies(last),
            **_counts(ended.stats),
        )
        return row, [RoundTrace.of(request.id, round) for round in ended.rounds]

    def _token_ids(self, ended: Ended) -> tuple[str, tuple[Ids, Ids] | None]:
        """Return whose the token ids are, and those of the prompt and the output as the hook leaves
        them; no ids where that fails."""
        scope, request, last = self.scope(ended), ended.request, ended.last
        if not scope or last is None:
            return "", None
        prompt, output = request.tokens[: request.prompt_len], _output_of(ended)
        if self._redact is None:
            return scope, (prompt, output)
        try:
            redacted = self._redact(prompt, output)
            if redacted is not None:
                redacted = _checked_ids(redacted)
        except BaseException:  # whatever users write: the writer's thread must not end by it
            if not self._told:
                self._told = True
                hook = self._settings.traces_redact
                text = "traces_redact: %s failed; token ids are left out wherever it does"
                log.exception(text, hook)
            redacted = None
        return ("", None) if redacted is None else (scope, redacted)


def check_capture(settings: ServerSettings) -> None:
    """Raise InvalidRequest or MissingPackage where traces could not be written as it is said."""
    arrow_module()
    hook_of(settings)
    keys = settings.keys_by_name.values()
    if settings.traces_tokens and keys and all(key.tokens == "no" for key in keys):
        expected = (
            "a key that consents, as `NAME KEY tokens=own` (for drafters that serve this key alone)"
            " or `NAME KEY tokens=shared`; no key does, so no token id could be kept"
        )
        raise InvalidRequest("traces_tokens", True, expected)
    folder = Path(settings.traces or ".")
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest("traces", str(folder), "a folder, which is made if it is not there")


def capture_of(settings: ServerSettings) -> Capture | None:
    """Return what writes the traces of a server; None where it writes none."""
    return None if settings.traces is None else Capture(Path(settings.traces), settings)


def hook_of(settings: ServerSettings) -> Redact | None:
    """Import the redaction hook. Raises InvalidRequest."""
    stated = settings.traces_redact
    if stated is None:
        return None
    module, _, name = stated.partition(":")
    try:
        hook = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        expected = f"a function that Python can import, as mypackage.privacy:redact ({error})"
        raise InvalidRequest("traces_redact", stated, expected) from None
    if not callable(hook):
        raise InvalidRequest("traces_redact", stated, "a function")
    redact: Redact = hook
    return redact


def capture_line(settings: ServerSettings) -> str:
    """Say in one line what is captured."""
    if settings.traces is None:
        return ""
    text = f"Traces go to {settings.traces}: counts and times of every request, no text"
    if not settings.traces_tokens:
        return f"{text}, no token ids."
    keys = settings.keys_by_name.values()
    whose = ", ".join(f"{key.name} ({key.tokens})" for key in keys if key.tokens != "no")
    share = "" if settings.traces_sample == 1 else f"a share of {settings.traces_sample:g} of the "
    of = f"of the keys {whose}" if keys else "of all requests"
    return f"{text}; {share}token ids {of}, for {settings.traces_ttl:g} days."


def finish_of(last: OutputDelta | None) -> FinishReason:
    """Return why a stream ended; one that nobody reads any more is aborted."""
    reason = None if last is None else last.finish_reason
    return reason or FinishReason.ABORT


def place_of(request_id: str) -> float:
    """Return a number in [0, 1) that is always the same for a request, for sampling."""
    digest = blake2b(request_id.encode(), digest_size=8, person=b"traces").digest()
    return int.from_bytes(digest, "little") / 2**64


def _output_of(ended: Ended) -> list[int]:
    """Return the output of a stream as far as it was told."""
    start = ended.request.prompt_len
    told = 0 if ended.last is None else ended.last.completion_tokens
    return ended.request.tokens[start : start + told]


def _is_output(ended: Ended, ids: Ids | None) -> bool:
    """Return whether token ids are the stream's own output: a hook may have changed them, and then
    places in it say nothing."""
    return ids is not None and list(ids) == _output_of(ended)


def _latencies(last: OutputDelta | None) -> dict[str, Any]:
    times = None if last is None else last.metrics
    if times is None:
        return {}
    return {"ttft": times.ttft, "tpot": times.tpot, "total": times.total}


def _counts(stats: SpeculationStats) -> dict[str, Any]:
    positions = stats.by_position()
    return {
        "rounds": stats.rounds,
        "draft_rounds": stats.draft_rounds,
        "drafted": stats.draft_tokens,
        "accepted": stats.accepted_tokens,
        "forced": stats.forced_tokens,
        "drafted_by_position": [drafted for drafted, _ in positions],
        "accepted_by_position": [accepted for _, accepted in positions],
        "seconds": stats.seconds,
        "ar_seconds": stats.ar_seconds,
    }


def _checked_ids(redacted: object) -> tuple[Ids, Ids]:
    """Return what a hook gave. Raises TypeError for anything but two lists of token ids."""
    if isinstance(redacted, tuple) and len(redacted) == 2:
        prompt, output = map(list, redacted)
        if all(type(token) is int and 0 <= token < 2**31 for token in (*prompt, *output)):
            return prompt, output
    raise TypeError("expected (prompt_ids, output_ids), two lists of token ids, or None")

"""Traces of answers from engines elsewhere, in the form that our own server writes.

A script or client that asks vLLM or SGLang through an EngineClient writes them like this:

    writer = TraceWriter(Path("traces"))
    make = answer_trace(answer, ask, id="r-17", cohort=Cohort("Qwen3-8B", "shop"), engine="vllm")
    writer.offer(make, answer_bytes(answer))
    writer.close()
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping

from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort
from paceline.core.rounds import Round, SpeculationStats
from paceline.dataset.traces.folder import DAY_SECONDS, SessionDigest
from paceline.dataset.traces.records import OWN, SHARED, RequestTrace, RoundTrace, Traced
from paceline.dataset.traces.retention import TOKEN_DAYS
from paceline.dataset.traces.writer import Make
from paceline.engines.answers import EngineAnswer, EngineAsk

SCOPES = ("", OWN, SHARED)
# Fields of vLLM's and SGLang's requests that bind an answer.
GRAMMARS = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "json_schema", "regex", "ebnf", "structural_tag",
)  # fmt: skip
REQUEST_BYTES, ROUND_BYTES, TOKEN_BYTES = 1000, 150, 8


def answer_trace(
    answer: EngineAnswer,
    ask: EngineAsk,
    *,
    id: str,
    cohort: Cohort,
    engine: str,
    key: str = "",
    session: str | None = None,
    drafter: str | None = None,
    version: str | None = None,
    draft_bound: int = 0,
    scope: str = "",
    token_days: float = TOKEN_DAYS,
    time: float | None = None,
) -> Make:
    """Return what makes the rows of a whole answer for TraceWriter.offer().

    Token ids are kept with the consent that `scope` states: "own" for drafters that serve `key`
    alone, "shared" for all; by default none are. `time` is when the answer ended, in seconds since
    the epoch; by default now. Of an engine that does not tell what its drafts did, all counts of
    drafts are 0, and AL is unknown. Raises InvalidRequest naming the field.
    """
    if scope not in SCOPES:
        raise InvalidRequest("scope", scope, f"one of {', '.join(map(repr, SCOPES))}")
    if scope == OWN and not key:
        raise InvalidRequest("scope", scope, "the name of its key beside it, by `key`")
    ended = clock.time() if time is None else time
    rounds = [Round(*each) for each in answer.rounds or ()]
    positions = SpeculationStats.of(rounds).by_position()
    kept = bool(scope) and answer.prompt_token_ids is not None

    def make(digest: SessionDigest) -> Traced:
        row = RequestTrace(
            id=id,
            time=ended,
            model=cohort.model,
            app=cohort.app,
            language=cohort.language,
            region=cohort.region,
            key=key,
            scope=scope if kept else "",
            session=digest.of(session or id),
            drafter=drafter,
            version=version,
            spec_off=ask.speculative is False,
            prompt_tokens=_prompt_tokens(answer),
            output_tokens=len(answer.token_ids),
            cached_tokens=answer.cached_tokens or 0,
            ttft=answer.ttft if answer.arrivals else None,
            tpot=answer.tpot,
            total=answer.arrivals[-1] - answer.started if answer.arrivals else None,
            finish=answer.finish_reason or "",
            temperature=ask.temperature,
            grammar=_is_bound(ask.fields),
            # each round commits one token of the target's own
            rounds=len(answer.token_ids) - (answer.accepted or 0),
            draft_rounds=answer.drafts or 0,
            drafted=answer.drafted or 0,
            accepted=answer.accepted or 0,
            drafted_by_position=[drafted for drafted, _ in positions],
            accepted_by_position=[accepted for _, accepted in positions],
            draft_bound=draft_bound,
            prompt_ids=answer.prompt_token_ids if kept else None,
            output_ids=answer.token_ids if kept else None,
            expires=ended + token_days * DAY_SECONDS if kept else None,
            engine=engine,
        )
        return row, [RoundTrace.of(id, round) for round in rounds]

    return make


def answer_bytes(answer: EngineAnswer) -> int:
    """Return about how much memory an answer takes until it is written."""
    tokens = len(answer.token_ids) + len(answer.prompt_token_ids or ())
    return REQUEST_BYTES + ROUND_BYTES * len(answer.rounds or ()) + TOKEN_BYTES * tokens


def _prompt_tokens(answer: EngineAnswer) -> int:
    if answer.prompt_tokens is not None:
        return answer.prompt_tokens
    return len(answer.prompt_token_ids or ())


def _is_bound(fields: Mapping[str, object]) -> bool:
    """Return whether the fields of a request bind its answer to a grammar."""
    form, sampling = fields.get("response_format"), fields.get("sampling_params")
    kind = form.get("type") if isinstance(form, Mapping) else None
    forced = fields.get("tool_choice") not in (None, "none", "auto")
    inner = sampling if isinstance(sampling, Mapping) else {}  # of SGLang's /generate
    stated = any(fields.get(name) or inner.get(name) for name in GRAMMARS)
    return kind not in (None, "text") or forced or stated

"""Admission: a prompt and its options become Requests, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from paceline.core import (
    DraftPolicy,
    Grammar,
    InvalidRequest,
    Request,
    SamplingParams,
    SpeculativeParams,
    draw_seed,
)
from paceline.drafters.base import Drafter
from paceline.engine.config import LOSSLESS_RULES
from paceline.engine.routes import NAMED, RouteKey, Routes, drawn
from paceline.engine.row_edits import RowTables
from paceline.engine.verify import check_budget

THROUGHPUT = DraftPolicy("throughput")


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of an engine, against which requests are made, and the routes to its drafters.

    It does not change: where a drafter comes or goes, another one takes its place.

    `drafters` are those that take requests, `routes` say which one a request gets that names none.
    `seed` is the base for requests that bring none, `policy` that of requests that name none.
    `holdback` is the share of those without `speculative` that run without speculation, to compare
    the others with. `compiled` gives a grammar with its matcher, or raises InvalidRequest.
    """

    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]
    drafters: Mapping[str, Drafter]
    routes: Routes
    seed: int | None = None
    policy: DraftPolicy = THROUGHPUT
    holdback: float = 0.0
    rule: str = "match"
    compiled: Callable[[Grammar], Grammar] = lambda grammar: grammar

    def make_requests(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        speculative: SpeculativeParams | None = None,
        *,
        request_id: str,
        salt: bytes = b"",
        share_answers: bool = True,
        key: str = "",
        cohort: str = "",
        route_key: RouteKey | None = None,
        explain: bool = False,
    ) -> list[Request]:
        """Make one Request per choice, checked against this engine's limits; none is queued yet.

        `salt` is the scope of cached prefixes. With `share_answers` drafts may also be looked up in
        past answers of that scope, and the answer is kept for it. `key` names the API key, which
        says what a drafter's corpus may give. A request whose verification is not lossless shares
        no answers: an accepted draft would put another request's text into its output.

        Acceptance of drafts is counted per `cohort`: give requests that behave alike the same one.
        A request that names no drafter gets that of its `route_key`, or the default without one.
        With `explain` every delta carries its round.

        Raises InvalidRequest naming the field: an empty or too long prompt, token ids outside the
        vocabulary, max_tokens past the context, an unknown drafter.
        """
        silent = speculative is None or speculative == SpeculativeParams()
        speculative = speculative or SpeculativeParams()
        check_budget(self.rule, speculative.lossy)
        max_tokens = self._check_lengths(prompt_ids, params)
        self._check_ids("prompt", prompt_ids)
        self._check_ids("logit_bias", params.logit_bias)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        if params.grammar is not None:
            params = replace(params, grammar=self.compiled(params.grammar))
        drafter, policy, max_draft_len, route = self._choose_drafter(speculative, route_key)
        lossless = self.rule in LOSSLESS_RULES and not speculative.lossy
        held_back = None
        if self.holdback and silent and drafter is not None:
            held_back = drawn(request_id) < self.holdback
        if held_back:
            drafter, max_draft_len, route = None, 0, None
        version = None if drafter is None else self.drafters[drafter].version
        seed = params.seed if params.seed is not None else self.seed
        seed = draw_seed() if seed is None else seed % 2**64
        prepared = RowTables(params, prompt_ids, self.eos_ids)
        requests = [
            Request(
                id=f"{request_id}#{choice}",
                prompt_ids=list(prompt_ids),
                params=params,
                speculative=speculative,
                choice=choice,
                seed=seed,
                salt=salt,
                answers_scope=salt if share_answers and lossless else None,
                key=key,
                lossless=lossless,
                eos_ids=self.eos_ids,
                prepared=prepared,
                max_tokens=max_tokens,
                drafter=drafter,
                drafter_version=version,
                route=route,
                max_draft_len=max_draft_len,
                policy=policy,
                cohort=cohort,
                explain=explain,
                held_back=held_back,
            )
            for choice in range(params.n)
        ]
        for follower in requests[1:]:
            follower.leader = requests[0]
        return requests

    def _choose_drafter(
        self, speculative: SpeculativeParams, key: RouteKey | None
    ) -> tuple[str | None, str, int, str | None]:
        """Return the drafter, the policy, the longest draft and the reason for the drafter."""
        name, reason = speculative.drafter, NAMED
        if name is None:
            name, reason = self.routes.choose(key)
        if name is not None and name not in self.drafters:
            known = ", ".join(self.drafters) or "none; this server has no drafter"
            raise InvalidRequest("speculative.drafter", name, f"one of: {known}")
        own = speculative.policy
        policy = self.policy if own is None else DraftPolicy.parse(own, "speculative.policy")
        off = speculative.off or speculative.max_draft_len == 0 or policy.kind == "off"
        if name is None or off:
            return None, "off", 0, None
        # What routes choose must not decide whether a request is refused.
        able = max([name, *(self.drafters if reason != NAMED else ())], key=self._longest)
        most = self._longest(able)
        asked = speculative.max_draft_len
        expected = f"at most {most}, which drafter {able!r} can draft"
        if asked is not None and asked > most:
            raise InvalidRequest("speculative.max_draft_len", asked, expected)
        if own is not None and policy.length is not None and policy.length > most:
            raise InvalidRequest("speculative.policy", own, expected)
        bounds = [self._longest(name), asked, policy.length]
        longest = min(bound for bound in bounds if bound is not None)
        return name, policy.kind, longest, reason

    def _longest(self, name: str) -> int:
        return self.drafters[name].max_draft_len

    def _check_lengths(self, prompt_ids: list[int], params: SamplingParams) -> int:
        if not prompt_ids:
            raise InvalidRequest("prompt", prompt_ids, "at least one token")
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            expected = f"fewer than {self.max_model_len} tokens, the context length"
            raise InvalidRequest("prompt", f"{len(prompt_ids)} tokens", expected)
        if params.max_tokens is None:
            if params.min_tokens > room:
                raise InvalidRequest("min_tokens", params.min_tokens, f"at most {room}")
            return room
        if params.max_tokens > room:
            taken = f"{self.max_model_len} tokens and the prompt takes {len(prompt_ids)}"
            expected = f"at most {room}: the context holds {taken}"
            raise InvalidRequest("max_tokens", params.max_tokens, expected)
        return params.max_tokens

    def _check_ids(self, field: str, ids: Collection[int]) -> None:
        last = self.vocab_size - 1
        if not ids or (min(ids) >= 0 and max(ids) <= last):
            return
        wrong = next(token for token in ids if not 0 <= token <= last)
        raise InvalidRequest(field, wrong, f"token ids from 0 to {last}")

"""The door: a prompt and its wishes become Requests, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from paceline.core import (
    Grammar,
    InvalidRequest,
    Request,
    SamplingParams,
    SpeculativeParams,
    draw_seed,
)
from paceline.drafters.base import Drafter
from paceline.engine.lossy import check_budget


@dataclass(frozen=True, slots=True)
class Admission:
    """What an engine can honour, under its verification `rule`. `seed` is the base for requests
    that bring none, or None; `check_grammar` raises InvalidRequest for a grammar that does not
    compile."""

    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]
    drafters: Mapping[str, Drafter]
    default_drafter: str | None
    seed: int | None = None
    rule: str = "match"
    check_grammar: Callable[[Grammar], object] = lambda grammar: None

    def make_requests(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        speculative: SpeculativeParams | None = None,
        *,
        request_id: str,
        salt: bytes = b"",
    ) -> list[Request]:
        """One Request per choice, checked against this engine's limits; nothing is queued yet.

        Raises InvalidRequest naming the field: an empty or too long prompt, token ids outside the
        vocabulary, max_tokens past the context, an unknown drafter.
        """
        speculative = speculative or SpeculativeParams()
        check_budget(self.rule, speculative.lossy)
        max_tokens = self._check_lengths(prompt_ids, params)
        self._check_ids("prompt", prompt_ids)
        self._check_ids("logit_bias", params.logit_bias)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        if params.grammar is not None:
            self.check_grammar(params.grammar)
        drafter, max_draft_len = self._choose_drafter(speculative)
        seed = params.seed if params.seed is not None else self.seed
        seed = draw_seed() if seed is None else seed % 2**64
        requests = [
            Request(
                id=f"{request_id}#{choice}",
                prompt_ids=list(prompt_ids),
                params=params,
                speculative=speculative,
                choice=choice,
                seed=seed,
                salt=salt,
                eos_ids=self.eos_ids,
                max_tokens=max_tokens,
                drafter=drafter,
                max_draft_len=max_draft_len,
            )
            for choice in range(params.n)
        ]
        for follower in requests[1:]:
            follower.leader = requests[0]
        return requests

    def _choose_drafter(self, speculative: SpeculativeParams) -> tuple[str | None, int]:
        name = speculative.drafter or self.default_drafter
        if name is not None and name not in self.drafters:
            known = ", ".join(self.drafters) or "none; this server has no drafter"
            raise InvalidRequest("speculative.drafter", name, f"one of: {known}")
        if name is None or speculative.off or speculative.max_draft_len == 0:
            return None, 0
        most = self.drafters[name].max_draft_len
        asked = speculative.max_draft_len
        if asked is not None and asked > most:
            expected = f"at most {most}, which drafter {name!r} can draft"
            raise InvalidRequest("speculative.max_draft_len", asked, expected)
        return name, most if asked is None else asked

    def _check_lengths(self, prompt_ids: list[int], params: SamplingParams) -> int:
        """The bound on output tokens."""
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
            expected = (
                f"at most {room}: the context holds {self.max_model_len} tokens "
                f"and the prompt takes {len(prompt_ids)}"
            )
            raise InvalidRequest("max_tokens", params.max_tokens, expected)
        return params.max_tokens

    def _check_ids(self, field: str, ids: Iterable[int]) -> None:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise InvalidRequest(field, token, f"token ids from 0 to {self.vocab_size - 1}")

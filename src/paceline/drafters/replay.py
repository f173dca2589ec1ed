"""Replay: the true continuation with planted errors, to measure what drafts of given quality buy.

The verification is real and lossless; only the drafter is an actor. It has learned what a request
will say from an earlier run without drafts, and spoils each draft at a place that is drawn per
round, so that the number of accepted tokens has the expectation asked for.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from pydantic import NonNegativeInt

from paceline.core import MAX_DRAFT_LEN, DraftBatch, InvalidRequest, ModelError, Request
from paceline.core.documents import Document
from paceline.drafters.base import StatefulDrafter, TargetInfo
from paceline.drafters.kinds import DRAFT_LENGTH, BuildContext, DrafterSpec, real, register

_Key = tuple[tuple[int, ...], int]  # prompt ids, choice


@lru_cache(maxsize=1024)
def constant_rate(acceptance_length: float, length: int) -> float:
    """Return the acceptance rate a, equal at every position, with a + a² + … + a^length = AL - 1.

    So a draft of `length` tokens commits `acceptance_length` tokens in expectation, the bonus
    included. 1.0 when that many cannot be had from so short a draft.
    """
    wanted = acceptance_length - 1
    if wanted >= length:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(1, length + 1)) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


class LearnedStream(Document):
    """One answer in a file that a replay drafter learns: token ids of a prompt and of a choice."""

    prompt_ids: list[NonNegativeInt]
    output_ids: list[NonNegativeInt]
    choice: NonNegativeInt = 0


@dataclass(slots=True)
class _Following:
    """A running request and its learned continuation; `checked` output tokens agree so far."""

    output_ids: tuple[int, ...]
    checked: int = 0

    def agrees(self, request: Request) -> bool:
        start, end = request.prompt_len, request.output_len
        ours = self.output_ids[self.checked : end]
        if ours != tuple(request.tokens[start + self.checked : start + end]):
            self.output_ids = ()  # another stream than the one learned: no drafts from here on
            return False
        self.checked = end
        return True


class ReplayDrafter(StatefulDrafter[_Following]):
    """Proposes learned continuations, spoiled at a drawn place.

    Give one of: `al`, the mean acceptance length incl. bonus, or `profile`, the acceptance rate of
    each draft position given that those before it were accepted (the last one stands for all
    further). With `al` the rate is the same at each position (`constant_rate`). A draft is wrong
    from the first position at which one uniform number, drawn per round from (seed, choice,
    position), exceeds the product of the rates so far. A request that was not learned, or whose
    text differs from what was learned, gets no draft.
    """

    def __init__(
        self,
        name: str = "replay",
        al: float | None = None,
        profile: Sequence[float] | None = None,
        max_draft_len: int | None = None,
    ) -> None:
        if (al is None) == (profile is None):
            given = "neither" if al is None else "both"
            raise InvalidRequest(f"drafter {name}", given, "one of al and profile")
        default = 15 if profile is None else len(profile)
        super().__init__(name, max_draft_len or default)
        if al is not None and not 1 <= al <= self.max_draft_len + 1:
            expected = f"from 1 to max_draft_len + 1 = {self.max_draft_len + 1}"
            raise InvalidRequest(f"drafter {name}, al", al, expected)
        self._al, self._profile = al, tuple(profile or ())
        self._vocab_size = 0
        self._learned: dict[_Key, tuple[int, ...]] = {}

    def learn(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], *, choice: int = 0
    ) -> None:
        """Remember the output of a prompt's `choice`-th stream, with its EOS if it ended in one."""
        self._learned[tuple(prompt_ids), choice] = tuple(output_ids)

    def attach(self, target: TargetInfo) -> None:
        """Raise ModelError where a token was learned that the target does not have."""
        self._vocab_size = target.vocab_size
        largest = max((token for ids in self._learned.values() for token in ids), default=0)
        if largest >= target.vocab_size:
            expected = f"ids below {target.vocab_size}, the vocabulary of {target.name}"
            raise ModelError(f"drafter {self.name}: learned the id {largest}; expected {expected}")

    def start(self, request: Request, held: int) -> _Following | None:
        output_ids = self._learned.get((tuple(request.prompt_ids), request.choice))
        return None if output_ids is None else _Following(output_ids)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        drafts = list(map(self._draft, requests, lengths))
        return DraftBatch(tokens=[d[0] for d in drafts], confidence=[d[1] for d in drafts])

    def _draft(self, request: Request, length: int) -> tuple[list[int], list[float]]:
        following = self.state(request)
        if following is None or not following.agrees(request):
            return [], []
        start = request.output_len
        length = min(length, self.max_draft_len, len(following.output_ids) - start)
        draft = list(following.output_ids[start : start + length])
        rates = self.rates(length)
        for index in range(true_tokens(request, rates), len(draft)):
            draft[index] = (draft[index] + 1) % self._vocab_size
        return draft, rates

    def rates(self, length: int) -> list[float]:
        """Return the acceptance rate of each position, given that those before it were accepted."""
        if self._al is not None:
            return [constant_rate(self._al, length)] * length
        beyond = length - len(self._profile)
        return list(self._profile[:length]) + [self._profile[-1]] * beyond


def true_tokens(request: Request, rates: Sequence[float]) -> int:
    """Return how many tokens of a draft are true: P(at least i) is the product of i rates."""
    key = struct.pack("<QQQ", request.seed % 2**64, request.choice, request.position)
    uniform = int.from_bytes(blake2b(key, digest_size=8).digest(), "little") / 2**64
    survival, count = 1.0, 0
    for rate in rates:
        survival *= rate
        if uniform >= survival:
            break
        count += 1
    return count


def _profile(field: str, text: str) -> tuple[float, ...]:
    if text.count("/") >= MAX_DRAFT_LEN:
        raise InvalidRequest(field, text, f"at most {MAX_DRAFT_LEN} rates")
    return tuple(real(0.0, 1.0)(field, part) for part in text.split("/"))


def _read(drafter: ReplayDrafter, path: str) -> None:
    """Learn a JSON file: a list of {"prompt_ids": [...], "output_ids": [...], "choice": 0}."""
    field = f"drafter {drafter.name}"
    try:
        records = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(records, list):
            raise ValueError("it holds no list")
    except (OSError, ValueError) as error:
        expected = 'a JSON file: a list of objects with "prompt_ids" and "output_ids" (token ids)'
        raise InvalidRequest(field, path, f"{expected}; {error}") from error
    for index, record in enumerate(records):
        learned = LearnedStream.read(record, f"{field}, {path}[{index}]")
        drafter.learn(learned.prompt_ids, learned.output_ids, choice=learned.choice)


_READERS = DRAFT_LENGTH | {"al": real(1.0, MAX_DRAFT_LEN + 1.0), "profile": _profile}


@register("replay", value=True)
def _build(spec: DrafterSpec, context: BuildContext) -> ReplayDrafter:
    drafter = ReplayDrafter(spec.name, **spec.settings(_READERS))
    if spec.value is not None:
        _read(drafter, spec.value)
    return drafter

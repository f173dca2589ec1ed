"""Drives a drafter over finished texts as an engine does: the text stands for the target's choices.

Drafts are judged by the text, and the next round starts where the last one ended, so the rounds are
those of serving with whole drafts (policy `fixed`) for text that the rule `match` would commit. A
drafter is asked by its own protocol, and its parts choose among each other by their own rule.
Tokens that a grammar forced are committed as serving does: they are no merit of a draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from paceline.core import DraftBatch, FinishReason, Request, Round, SamplingParams
from paceline.drafters.base import Drafter, LookingUp, ObservedRows, longest_proposed
from paceline.drafters.corpus_folder import CorpusAnswer
from paceline.engine.costs import DraftCost, Line
from paceline.engine.draft import Draft, no_draft, taken
from paceline.models.batch import BLOCK_SIZE

Features = Callable[[Sequence[int]], torch.Tensor]  # of a whole text, from a drafter's own layers


@dataclass(frozen=True, slots=True)
class ReplayedText:
    """The rounds of one text, and how many of them asked the drafter to propose."""

    cohort: str
    rounds: list[Round]
    asked: int


@dataclass(slots=True)
class ReplayCosts:
    """Seconds of drafting, as they were spent here. `price` follows what proposing and observing
    took, `looking_up` what the look-ups of a drafter took that has others as well."""

    price: DraftCost
    looking_up: Line = field(default_factory=Line)


@dataclass(slots=True)
class _Reader:
    """A text on its way through a drafter: `request.tokens` is known so far, `text` is all. At the
    places `forced` of it a grammar left no choice."""

    request: Request
    text: list[int]
    cohort: str
    features: torch.Tensor | None
    forced: frozenset[int] = frozenset()
    rounds: list[Round] = field(default_factory=list)
    asked: int = 0

    @property
    def limit(self) -> int:
        """Most draft tokens that the text can judge: a round commits one more than it accepts."""
        most = len(self.text) - len(self.request.tokens) - 1
        return max(0, min(self.request.max_draft_len, most))

    def rows(self, start: int, count: int) -> ObservedRows:
        seen = None if self.features is None else self.features[start : start + count]
        return ObservedRows(self.request, start, count, seen)

    def judge(self, draft: Draft) -> ObservedRows:
        """Commit what stands of a draft and the token behind it; return the rows that were
        computed."""
        request = self.request
        before, computed = len(request.tokens), request.computed
        own, accepted, drafted = self._stand(draft.tokens)
        bonus = own not in self.forced
        self.commit(own + 1)
        forced = len(request.tokens) - before - accepted - bonus
        counts = before - request.prompt_len, drafted, accepted, bonus, forced
        self.rounds.append(Round(*counts, proposed=len(draft.proposed), part=draft.part))
        request.computed = own
        return self.rows(computed, own - computed)

    def commit(self, end: int) -> None:
        """Commit the text up to `end`, and what a grammar forced from there on."""
        while end in self.forced:
            end += 1
        known = len(self.request.tokens)
        self.request.tokens += self.text[known:end]

    def _stand(self, draft: Sequence[int]) -> tuple[int, int, int]:
        """Return where the target's own token follows, how many tokens of a draft stand before it,
        and how many were drafted, beside forced ones and behind no other token than a forced one.
        Where serving would cut a draft that leaves the grammar is not known."""
        place, at, accepted, left_out = len(self.request.tokens), 0, 0, 0
        end = place + self.limit
        while place < end and (at < len(draft) or place in self.forced):
            same = at < len(draft) and draft[at] == self.text[place]
            if place in self.forced:
                left_out += 1 if same else len(draft) - at
                at = at + 1 if same else len(draft)
            elif same:
                at, accepted = at + 1, accepted + 1
            else:
                break
            place += 1
        return place, accepted, len(draft) - left_out


class Replay:
    """Replays groups of texts with one drafter. `features` gives what the drafter taps, and
    `blocks` says how many KV blocks it may use; a drafter that needs texts alone has neither.

    With `shares_answers` a text may draft from the answers of earlier groups of the same key, as on
    a server that shares answers always.
    """

    def __init__(
        self,
        drafter: Drafter,
        costs: ReplayCosts,
        features: Features | None = None,
        blocks: int = 0,
        *,
        shares_answers: bool = False,
    ) -> None:
        self._drafter, self._costs, self._features = drafter, costs, features
        self._blocks, self._shares_answers = blocks, shares_answers

    def blocks_of(self, answer: CorpusAnswer) -> int:
        """Return the KV blocks that the drafter needs for a text: none if it keeps none. No draft
        goes beyond the text."""
        if self._drafter.kv is None:
            return 0
        return -(-(len(answer.prompt_ids) + len(answer.output_ids)) // BLOCK_SIZE)

    @torch.inference_mode()
    def run(self, answers: Sequence[CorpusAnswer]) -> list[ReplayedText]:
        """Replay texts side by side; together they need no more blocks than there are."""
        readers, used = [], 0
        for number, answer in enumerate(answers):
            needed = self.blocks_of(answer)
            readers.append(self._reader(answer, number, range(used, used + needed)))
            used += needed
        if used > self._blocks:
            raise ValueError(f"{used} blocks of KV for {len(answers)} texts, of {self._blocks}")
        requests = [reader.request for reader in readers]
        self._drafter.begin(requests, [0] * len(requests))
        self._observe([reader.rows(0, reader.request.prompt_len) for reader in readers])
        running = [r for r in readers if len(r.request.tokens) < len(r.text)]
        while running:
            drafts = self._draft(running)
            pairs = zip(running, drafts, strict=True)
            self._observe([reader.judge(draft) for reader, draft in pairs])
            running = [r for r in running if len(r.request.tokens) < len(r.text)]
        for request in requests:
            request.finish_reason = FinishReason.LENGTH
        self._drafter.release(requests)
        return [ReplayedText(r.cohort, r.rounds, r.asked) for r in readers]

    def _reader(self, answer: CorpusAnswer, number: int, blocks: Sequence[int]) -> _Reader:
        """Return a text whose prompt and first token are known: the round of the prompt has no
        draft."""
        text = [*answer.prompt_ids, *answer.output_ids]
        prompt = text[: len(answer.prompt_ids)]
        request = Request(
            id=f"replay-{number}",
            prompt_ids=prompt,
            params=SamplingParams(temperature=0.0),
            tokens=list(prompt),
            computed=len(prompt),
            blocks=list(blocks),
            drafter=self._drafter.name,
            max_draft_len=self._drafter.max_draft_len,
            max_tokens=len(answer.output_ids),
            answers_scope=answer.key.encode() if self._shares_answers else None,
            key=answer.key,
        )
        features = None if self._features is None else self._features(text)
        forced = frozenset(len(prompt) + place for place in answer.forced_places)
        reader = _Reader(request, text, answer.cohort, features, forced)
        reader.commit(len(prompt) + 1)
        return reader

    def _observe(self, rows: Sequence[ObservedRows]) -> None:
        start = time.perf_counter()
        self._drafter.observe(rows)
        count = sum(row.count for row in rows)
        self._costs.price.add_observation(count, time.perf_counter() - start)

    def _draft(self, readers: Sequence[_Reader]) -> list[Draft]:
        """Return each text's draft of a round, asked for as an engine asks."""
        drafts: dict[str, Draft] = {}
        asked = [r for r in readers if r.limit and self._reaches(r.request)]
        if isinstance(self._drafter, LookingUp) and asked:
            asked = self._look_up(self._drafter, asked, drafts)
        longest = longest_proposed(self._drafter)
        lengths = [min(reader.limit, longest) for reader in asked]
        if asked:
            batch = self._propose([reader.request for reader in asked], lengths)
            for index, (reader, length) in enumerate(zip(asked, lengths, strict=True)):
                reader.asked += 1
                if batch.is_wanted(index):  # else what was looked up is kept
                    draft = taken(batch, index, length, None, looked_up=False)
                    drafts[reader.request.id] = draft
        return [drafts.get(reader.request.id, no_draft()) for reader in readers]

    def _look_up(
        self, drafter: LookingUp, readers: Sequence[_Reader], drafts: dict[str, Draft]
    ) -> list[_Reader]:
        """Put what is looked up into `drafts`; return those texts for which that is not all."""
        start = time.perf_counter()
        limits = [reader.limit for reader in readers]
        batch, complete = drafter.look_up([reader.request for reader in readers], limits)
        self._costs.looking_up.add(len(readers), time.perf_counter() - start)
        for index, (reader, limit) in enumerate(zip(readers, limits, strict=True)):
            drafts[reader.request.id] = taken(batch, index, limit, None, looked_up=True)
        return [reader for reader, done in zip(readers, complete, strict=True) if not done]

    def _propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        start = time.perf_counter()
        batch = self._drafter.propose(requests, lengths)
        seconds = time.perf_counter() - start
        if longest := max(batch.lengths):
            self._costs.price.add_proposal(lengths, longest, seconds)
        return batch

    def _reaches(self, request: Request) -> bool:
        return self._drafter.reach is None or len(request.tokens) <= self._drafter.reach

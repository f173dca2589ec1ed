"""What each round of an engine's answer did, from whatever the engine tells of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from paceline.core import Round
from paceline.engines.answers import AnsweredRound, EngineAnswer, EngineAsk
from paceline.engines.client import EngineClient
from paceline.engines.metrics import EngineMetrics


class RoundsAnswer(NamedTuple):
    """An answer and its rounds; None where the engine does not tell them."""

    answer: EngineAnswer
    rounds: list[Round] | None


class RoundsReader:
    """Asks one engine for answers with their rounds.

    Where answers tell nothing of their drafts, /metrics is read before and after each: nobody else
    may then be asking.
    """

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self._by_metrics = False

    def ask(self, ask: EngineAsk) -> RoundsAnswer:
        """Answer one request. Raises EngineError."""
        if ask.speculative is False:
            return RoundsAnswer(self.client.ask(ask), None)
        if not self._by_metrics:
            answer = self.client.ask(ask)
            self._by_metrics = answer.rounds is None and answer.drafts is None
            if not self._by_metrics:
                return RoundsAnswer(answer, rounds_of(answer))
        before = self.client.metrics()
        answer = self.client.ask(ask)
        return RoundsAnswer(answer, rounds_of(answer, self.client.metrics().since(before)))


def rounds_of(answer: EngineAnswer, counted: EngineMetrics | None = None) -> list[Round] | None:
    """Return the rounds of an answer after its first token; None where the engine does not tell
    them.

    Engines that list their rounds list those that had a draft. Where others lie between, or where
    only counts are told (`counted` are those of /metrics over the time of the answer), the rounds
    are read off the events of the stream, if the counts agree with them.
    """
    tokens, sizes = len(answer.token_ids), bursts(answer)
    if answer.rounds is not None:
        rounds = [round for round in answer.rounds if round.position < tokens]
        end = rounds[-1].position + rounds[-1].accepted + 1 if rounds else tokens
        gaps = end < tokens or sum(round.accepted + 1 for round in rounds) < end - 1
        if gaps and len(rounds) < len(sizes):
            rounds = _with_undrafted(rounds, tokens)
            if len(rounds) != len(sizes):
                return None  # the events show other rounds than the list
        return [_judged(round, tokens) for round in rounds]
    counts = _counts(answer, counted)
    return None if counts is None else _from_bursts(sizes, tokens, *counts)


def bursts(answer: EngineAnswer) -> list[int]:
    """Return how many tokens each event of the stream brought, without the first."""
    return [len(list(group)) for _, group in groupby(answer.arrivals)][1:]


def _with_undrafted(rounds: Sequence[AnsweredRound], tokens: int) -> list[AnsweredRound]:
    """Return the rounds with those between them that had no draft, which committed one token."""
    whole: list[AnsweredRound] = []
    position = 1
    for round in rounds:
        whole += [AnsweredRound(at, 0, 0) for at in range(position, round.position)]
        whole.append(round)
        position = round.position + round.accepted + 1
    return [*whole, *(AnsweredRound(at, 0, 0) for at in range(position, tokens))]


def _counts(answer: EngineAnswer, counted: EngineMetrics | None) -> tuple[int, int, int] | None:
    """Return drafts, drafted and accepted tokens."""
    for told in (answer, counted):
        if told is None or told.drafts is None:
            continue
        if told.drafted is not None and told.accepted is not None:
            return told.drafts, told.drafted, told.accepted
    return None


def _from_bursts(
    sizes: Sequence[int], tokens: int, drafts: int, drafted: int, accepted: int
) -> list[Round] | None:
    """Return rounds of equal drafts, one for each event; None where events and counts disagree.
    The last round may have accepted tokens behind the end of the answer."""
    if not drafts or drafts != len(sizes) or drafted % drafts:
        return None
    stood = [size - 1 for size in sizes]
    length = drafted // drafts
    beyond = accepted - sum(stood)
    if max(stood) > length or not 0 <= beyond <= length - stood[-1]:
        return None
    stood[-1] += beyond
    return [_judged(round, tokens) for round in _positioned(stood, length)]


def _positioned(stood: Sequence[int], length: int) -> Iterator[AnsweredRound]:
    position = 1
    for count in stood:
        yield AnsweredRound(position, length, count)
        position += count + 1


def _judged(round: AnsweredRound, tokens: int) -> Round:
    """Return a round without the draft tokens behind the end of the answer, which nobody judged;
    the answer's last token then stands for the bonus token."""
    position, drafted, accepted = round
    if position + accepted < tokens:
        return Round(position, drafted, accepted)
    most = max(0, tokens - position - 1)
    return Round(position, most, most)

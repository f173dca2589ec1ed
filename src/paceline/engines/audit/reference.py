"""What answers are judged by: a server without speculation, this one with speculation off, or
this one's own log-probabilities of a given text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.engines.answers import EngineAnswer, EngineAsk, Json, LogprobsById
from paceline.engines.audit.budget import Meter
from paceline.engines.client import EngineClient, EngineError
from paceline.engines.openai_stream import TOKEN

TOP = 20  # likeliest tokens of each place: as many as every engine tells by default


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token at its place in a text, by the reference: its log-probability, and those of the
    likeliest tokens there, likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]

    @property
    def gap(self) -> float:
        """How much less likely it is than the likeliest token, in nats."""
        return max(0.0, self.top[0][1] - self.logprob)

    @property
    def rank(self) -> int:
        """Its place among the likeliest tokens, from 0; TOP where it is not among them."""
        places = (place for place, (token, _) in enumerate(self.top) if token == self.token)
        return next(places, TOP)

    @classmethod
    def of(cls, token: int, told: LogprobsById) -> ScoredToken:
        """Order what an engine told: it adds the token itself where it is none of the likeliest."""
        ordered = sorted(told.top.items(), key=lambda item: (-item[1], item[0]))
        return cls(token, told.chosen, tuple(ordered[:TOP]))


class Reference:
    """Judges answers. `asks` says whether it answers by itself, without speculation; else it only
    scores given texts. `words` tell users what that is."""

    def __init__(self, client: EngineClient, meter: Meter, *, is_server: bool, asks: bool) -> None:
        self.client, self.asks, self.is_server = client, asks, is_server
        self._meter = meter
        self._scored: dict[tuple[int, ...], list[LogprobsById]] = {}

    @property
    def words(self) -> str:
        if self.is_server:
            return f"the reference at {self.client.url}"
        if self.asks:
            return "the same server with speculation off for these requests"
        return (
            "the same server's log-probabilities of its own texts. They come from prefill, without "
            "speculation: this finds what speculation breaks, and nothing that the engine does "
            "wrong with and without it. Give --reference for that"
        )

    def ask(self, ask: EngineAsk) -> EngineAnswer:
        """Answer without speculation. Only where `asks` is true."""
        with self._meter.request(tokens_of(ask)) as settle:
            plain = ask if self.is_server else replace(ask, speculative=False)
            answer = self.client.ask(plain)
            settle(len(ask.prompt) + len(answer.token_ids))
        return answer

    def score(self, prompt: Sequence[int], answer: Sequence[int]) -> list[ScoredToken]:
        """Return each token of an answer by the reference, given all tokens before it."""
        ids = (*prompt, *answer)
        if ids not in self._scored:
            self._scored[ids] = self._score(ids)
        rows = self._scored[ids][len(prompt) :]
        return [ScoredToken.of(token, row) for token, row in zip(answer, rows, strict=True)]

    def _score(self, ids: tuple[int, ...]) -> list[LogprobsById]:
        body: Json = {
            "model": self.client.model,
            "prompt": list(ids),
            "max_tokens": 0,
            "echo": True,
            "logprobs": TOP,
            "temperature": 0.0,
            "return_tokens_as_token_ids": True,
        }
        with self._meter.request(len(ids) + 1):
            told = self.client.post_json("/v1/completions", body)
        rows = _scores(told, self.client.url)[: len(ids)]
        if len(rows) < len(ids):
            raise EngineError(f"the engine at {self.client.url} scored {len(rows)} of {len(ids)}")
        return rows


def tokens_of(ask: EngineAsk) -> int:
    """Return the most tokens that a request takes; its prompt is token ids."""
    return len(ask.prompt) + ask.max_tokens


def _scores(told: Json, url: str) -> list[LogprobsById]:
    try:
        given = told["choices"][0]["logprobs"]
        pairs = zip(given["token_logprobs"], given["top_logprobs"], strict=True)
        return [
            LogprobsById(
                -math.inf if chosen is None else chosen,
                {int(name.removeprefix(TOKEN)): value for name, value in (top or {}).items()},
            )
            for chosen, top in pairs
        ]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineError(f"the engine at {url} does not tell the scores of a prompt") from error

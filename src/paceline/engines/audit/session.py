"""The state of one audit: clients, prompts, the budget, and the answers so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from paceline.bench.prompts import BenchPrompt
from paceline.core import InvalidRequest
from paceline.engines import KINDS
from paceline.engines.answers import EngineAnswer, EngineAsk, Json
from paceline.engines.audit.budget import Budget, Meter
from paceline.engines.audit.reference import Reference, tokens_of
from paceline.engines.client import EngineClient, EngineError, EngineRefused

# Servers take defaults from a model's generation_config.json: the law of a test must be the
# model's own.
PLAIN = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
MOST_PROMPTS = 12
GREEDY_TOKENS = 128
UNKNOWN_CONTEXT = 4096  # where a server does not tell how much fits
LEAST_TIE = 0.02  # nats: kernels of one engine differ by so much between shapes
MOST_TIE = 0.5

T = TypeVar("T")
R = TypeVar("R")


class Probe(NamedTuple):
    """A prompt as token ids."""

    name: str
    ids: list[int]


class Answered(NamedTuple):
    """A request to the server, and its answer."""

    ask: EngineAsk
    answer: EngineAnswer


@dataclass(slots=True)
class Session:
    """Asks the server and its reference within the budget, and keeps what they answered.

    `alpha` is the level of each statistical test. `longest` bounds the prompts of checks that need
    long ones. `tie` is the difference in nats up to which two log-probabilities count as equal.
    """

    server: EngineClient
    reference: Reference
    meter: Meter
    probes: list[Probe]
    alpha: float
    longest: int
    seed: int = 0
    tie: float = LEAST_TIE
    answered: list[Answered] = field(default_factory=list)
    _kept: dict[str, EngineAnswer] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        server: EngineClient,
        reference: EngineClient | None,
        prompts: Sequence[BenchPrompt],
        budget: Budget,
        *,
        alpha: float,
        longest: int,
        seed: int,
    ) -> Session:
        """Begin an audit: turn the prompts into token ids. Raises InvalidRequest for a server that
        does not tell them, and EngineError."""
        for client in (server, *([] if reference is None else [reference])):
            if not client.kind.traits.scores_texts:
                field = "url" if client is server else "reference"
                scoring = " or ".join(k.name for k in KINDS.values() if k.traits.scores_texts)
                expected = f"a server of {scoring}: only they score given texts"
                raise InvalidRequest(field, client.url, expected)
        meter = Meter(budget)
        if reference is None:
            off = server.description.capabilities.speculation_off
            judge = Reference(server, meter, is_server=False, asks=off)
        else:
            judge = Reference(reference, meter, is_server=True, asks=True)
        room = (server.description.max_model_len or UNKNOWN_CONTEXT) - 256
        probes = [_probe(server, meter, prompt) for prompt in prompts[:MOST_PROMPTS]]
        return cls(server, judge, meter, probes, alpha, max(256, min(longest, room)), seed)

    def ask(self, ask: EngineAsk, *, fresh: bool = False) -> EngineAnswer:
        """Return the server's answer; the one that was kept for the same request, unless `fresh`.

        Raises EngineRefused, EngineError and BudgetSpent.
        """
        key = repr(ask)
        if not fresh and key in self._kept:
            return self._kept[key]
        with self.meter.request(tokens_of(ask)) as settle:
            answer = self.server.ask(ask)
            settle(len(ask.prompt) + len(answer.token_ids))
        self._kept[key] = answer
        self.answered.append(Answered(ask, answer))
        return answer

    def ask_all(self, asks: Sequence[EngineAsk], *, fresh: bool = False) -> list[EngineAnswer]:
        """Answer requests, as many at once as the budget allows, in their order."""
        return self.each(asks, lambda ask: self.ask(ask, fresh=fresh))

    def post(self, body: Json, tokens: int, places: int = 1) -> Json:
        """Send a completion request as it is; `places` is the number of its choices. Raises
        EngineRefused, EngineError, BudgetSpent."""
        with self.meter.request(tokens, places):
            return self.server.post_json("/v1/completions", {"model": self.server.model, **body})

    def each(self, items: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """Do work that sends requests for each item, as many at once as the budget allows."""
        with ThreadPoolExecutor(self.meter.budget.at_once) as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    @property
    def context(self) -> int:
        """Tokens of a prompt and its answer that the server takes."""
        return self.server.description.max_model_len or UNKNOWN_CONTEXT

    @property
    def longest_probe(self) -> int:
        return max(len(probe.ids) for probe in self.probes)

    def long_prompt(self, length: int, salt: int = 0) -> list[int]:
        """Return a prompt of `length` tokens: earlier prompts and answers, and a prompt at the end
        that asks something. Another `salt` begins with other text."""
        last = self.probes[salt % len(self.probes)].ids[-length:]
        pieces = [probe.ids for probe in self.probes]
        pieces += [each.answer.token_ids for each in self.answered[: 4 * MOST_PROMPTS]]
        text, place = list[int](), salt
        while len(text) < length - len(last):
            text += pieces[place % len(pieces)]
            place += 1
        return text[: length - len(last)] + last

    def is_alive(self) -> bool:
        """Return whether both servers still answer."""
        try:
            for client in (self.server, self.reference.client):
                client.get_json("/v1/models")
        except EngineError:
            return False
        return True


def greedy(probe: Probe) -> EngineAsk:
    """Ask for the continuation at T = 0 that several checks share."""
    return EngineAsk(probe.ids, GREEDY_TOKENS, 0.0, fields=PLAIN)


def _probe(server: EngineClient, meter: Meter, prompt: BenchPrompt) -> Probe:
    """Learn a prompt's token ids from a request for one token."""
    text = "\n\n".join(message["content"] for message in prompt.messages)
    most = len(text.encode()) + 256  # no tokenizer makes more tokens than bytes
    for asked in (prompt.messages, text):
        try:
            with meter.request(most) as settle:
                answer = server.ask(EngineAsk(asked, 1))
                settle(1 + (answer.prompt_tokens or most - 1))
        except EngineRefused:
            continue  # without a chat template; the text alone will do
        if answer.prompt_token_ids:
            return Probe(prompt.name, list(answer.prompt_token_ids))
    raise InvalidRequest("url", server.url, "a server that answers, and tells token ids")

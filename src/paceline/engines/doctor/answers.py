"""What the doctor asks an engine, and what of the answers can be judged."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core import Round
from paceline.engines.answers import EngineAsk, Json, Message
from paceline.engines.client import EngineClient, EngineError
from paceline.engines.doctor.readings import JudgedRounds
from paceline.engines.evaluation.rounds import RoundsReader
from paceline.engines.evaluation.rows import NEUTRAL
from paceline.engines.evaluation.run import REMEDIES
from paceline.engines.evaluation.servers import of_side
from paceline.evaluate.result import BLOCK

SEED = 1  # of answers that are sampled
Prompt = Sequence[Message] | Sequence[int]


@dataclass(slots=True)
class Asked:
    """One answered prompt: the ids that the engine read and said, and its rounds."""

    name: str
    prompt_ids: list[int]
    token_ids: list[int]
    rounds: list[Round]

    @property
    def text(self) -> list[int]:
        return self.prompt_ids + self.token_ids

    def judged(self, drafted: int) -> JudgedRounds:
        """Return the rounds of `drafted` tokens that the answer reaches beyond."""
        whole = [
            round
            for round in self.rounds
            if round.drafted == drafted and round.position + drafted <= len(self.token_ids)
        ]
        start = len(self.prompt_ids)
        anchors = [start + round.position - 1 for round in whole]
        accepted = [round.accepted for round in whole]
        return JudgedRounds(
            self.name, start, np.array(anchors, np.int64), np.array(accepted, np.int64)
        )


class Questions:
    """Asks one engine for answers of up to `tokens` tokens, one at a time, with whole drafts where
    a request can ask for them: on our own server."""

    def __init__(self, client: EngineClient, tokens: int) -> None:
        self.client, self._tokens = client, tokens
        self._reader = RoundsReader(client)

    def greedy(self, name: str, prompt: Prompt) -> Asked:
        """Answer at T = 0, with every other sampling option switched off by name."""
        return self._asked(name, prompt, dict(NEUTRAL))

    def sampled(self, name: str, prompt: Prompt) -> Asked:
        """Answer at T = 1, with every other sampling option switched off by name."""
        return self._asked(name, prompt, {**NEUTRAL, "temperature": 1.0, "seed": SEED})

    def plain(self, name: str, prompt: Prompt) -> Asked:
        """Answer at T = 0, with no other option stated."""
        return self._asked(name, prompt, {})

    def unstated(self, name: str, prompt: Prompt) -> Asked:
        """Answer as the server samples where a request states no sampling."""
        return self._asked(name, prompt, {"temperature": None, "seed": SEED})

    def _asked(self, name: str, prompt: Prompt, fields: Json) -> Asked:
        """Raise EngineError where the engine fails, or does not tell what the doctor needs."""
        fields = {**fields, "cache_salt": uuid.uuid4().hex}
        ask = of_side(self.client, BLOCK, EngineAsk(prompt, self._tokens, fields=fields))
        answer, rounds = self._reader.ask(ask)
        ids = answer.prompt_token_ids
        if ids is None and not ask.is_chat:
            ids = [int(str(token)) for token in prompt]
        for thing, told in (("token ids", ids and answer.token_ids), ("its drafts", rounds)):
            if not told:
                where = f"the engine at {self.client.url} ({self.client.description.kind})"
                remedy = REMEDIES.get(self.client.description.kind, "")
                raise EngineError(f"{where} tells nothing of {thing}: {remedy}")
        return Asked(name, ids or [], answer.token_ids, rounds or [])

"""Traffic of a made-up shop for `make demo-autospec`: what its app asks, before and after a change.

Requests are templates with names, items and order numbers in them, as an app's are; order numbers
do not come twice. The answers are JSON under a schema.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from paceline.core.rounds import acceptance_length

APP = "shop"
WORKERS = 4  # requests under way at most
ANSWER_SECONDS = 120.0
LONGEST = 72  # tokens of an answer
Json = dict[str, Any]

ITEMS = {
    "en": ("kettle", "desk lamp", "raincoat"),
    "de": ("Wasserkocher", "Lampe", "Regenmantel"),
}
NAMES = ("Ada", "Ben", "Clara", "David")
ASKED = {
    "en": (
        "Hello, this is {name}. My order {order} with the {item} has not come yet. Where is it?",
        "Hi, the {item} of my order {order} arrived broken, I want my money back. Thanks, {name}",
        "Please cancel my order {order}. I have found the {item} cheaper in another shop. {name}",
        "Good morning, I would like to return the {item} of order {order}. How? {name}",
    ),
    "de": (
        "Guten Tag, hier ist {name}. Meine Bestellung {order} mit dem {item} ist noch nicht "
        "angekommen. Wo bleibt sie?",
        "Hallo, der {item} aus meiner Bestellung {order} ist kaputt angekommen, und ich möchte "
        "mein Geld zurück. Danke, {name}",
        "Bitte stornieren Sie meine Bestellung {order}. Ich habe den {item} in einem anderen Laden "
        "billiger gefunden. {name}",
        "Guten Morgen, ich möchte den {item} aus der Bestellung {order} zurückgeben. Wie geht das? "
        "{name}",
    ),
}
SYSTEM = {
    "en": "You answer customers of a web shop, as one JSON object. Be polite and brief.",
    "de": "Du antwortest Kunden eines Ladens im Netz, als ein JSON-Objekt. Sei höflich und kurz.",
}


def _schema(name: str, **properties: Json) -> Json:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


TEXT: Json = {"type": "string"}
SCHEMAS = {
    "before": _schema(
        "answer", action={"enum": ["track", "refund", "cancel", "return"]}, reply=TEXT
    ),
    "after": _schema(
        "ticket", urgent={"type": "boolean"}, mood={"enum": ["calm", "sad", "angry"]}, answer=TEXT
    ),
}


@dataclass(frozen=True, slots=True)
class ShopTraffic:
    """What the app sends: a schema of SCHEMAS, and the share of its requests in German."""

    schema: str
    german: float

    def body(self, draw: random.Random, model: str) -> Json:
        """Return a request."""
        language = "de" if draw.random() < self.german else "en"
        text = draw.choice(ASKED[language]).format(
            name=draw.choice(NAMES),
            item=draw.choice(ITEMS[language]),
            order=f"KZ-{draw.randrange(10**4, 10**5)}",
        )
        return {
            "model": model,
            "messages": [
                {"role": "system", "content": SYSTEM[language]},
                {"role": "user", "content": text},
            ],
            "response_format": SCHEMAS[self.schema],
            "max_completion_tokens": LONGEST,
            "temperature": 0,
            "frequency_penalty": 0.5,  # such a small model says the same again and again
            "return_token_ids": True,
        }


BEFORE, AFTER = ShopTraffic("before", 0.0), ShopTraffic("after", 0.5)


@dataclass(frozen=True, slots=True)
class ShopAnswer:
    """An answer: its request, its token ids, when it ended (seconds since the epoch), how its
    drafts did, and the error in place of an answer."""

    body: Mapping[str, Any]
    time: float
    token_ids: tuple[int, ...] = ()
    draft_rounds: int = 0
    accepted: int = 0
    tpot: float | None = None
    error: str = ""

    @property
    def language(self) -> str:
        """The language that the customer wrote in."""
        return "de" if self.body["messages"][0]["content"] == SYSTEM["de"] else "en"


class TrafficLoad:
    """Sends requests at a steady rate from a thread of its own. `traffic` may be set at any time;
    `answers` grows."""

    def __init__(self, url: str, model: str, traffic: ShopTraffic, per_second: float) -> None:
        self.traffic, self.answers = traffic, list[ShopAnswer]()
        self._url, self._model, self._gap = url, model, 1 / per_second
        self._draw, self._ended = random.Random(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send()), daemon=True)
        self._thread.start()

    def between(self, start: float, end: float = float("inf")) -> list[ShopAnswer]:
        """Return the answers that ended in between."""
        return [answer for answer in self.answers.copy() if start <= answer.time < end]

    def close(self) -> None:
        """Send nothing more, and wait for the answers to come."""
        self._ended.set()
        self._thread.join(ANSWER_SECONDS)

    async def _send(self) -> None:
        free, tasks = asyncio.Semaphore(WORKERS), set[asyncio.Task[None]]()
        async with _client(self._url) as http:
            while not self._ended.is_set():
                await free.acquire()
                body = self.traffic.body(self._draw, self._model)
                task = asyncio.create_task(self._ask(http, body, free))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                await asyncio.sleep(self._gap)
            await asyncio.gather(*tasks)

    async def _ask(self, http: httpx.AsyncClient, body: Json, free: asyncio.Semaphore) -> None:
        try:
            self.answers.append(await answer_to(http, body))
        finally:
            free.release()


def _client(url: str) -> httpx.AsyncClient:
    headers = {"X-Paceline-App": APP}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=ANSWER_SECONDS, trust_env=False)


async def answer_to(http: httpx.AsyncClient, body: Mapping[str, Any]) -> ShopAnswer:
    """Send a request and return its answer, or the error."""
    try:
        response = await http.post("/v1/chat/completions", json=body)
    except httpx.HTTPError as error:
        return ShopAnswer(body, time.time(), error=f"{type(error).__name__} {error}")
    if response.status_code != 200:
        return ShopAnswer(body, time.time(), error=f"{response.status_code}: {response.text}")
    told = response.json()
    (choice,), metrics = told["choices"], told["metrics"]
    counts = metrics["speculative_decoding"] or {}  # null with speculation off
    return ShopAnswer(
        body,
        time.time(),
        tuple(choice["token_ids"]),
        counts.get("num_spec_steps", 0),
        counts.get("num_accepted_draft_tokens", 0),
        metrics.get("tpot"),
    )


def differing(url: str, answers: Iterable[ShopAnswer]) -> list[tuple[ShopAnswer, ShopAnswer]]:
    """Ask again with speculation off, one by one; return the answers that are not the same, token
    for token, each with the one without speculation."""

    async def ask() -> list[tuple[ShopAnswer, ShopAnswer]]:
        async with _client(url) as http:
            pairs = [
                (answer, await answer_to(http, {**answer.body, "speculative": "off"}))
                for answer in answers
            ]
        return [pair for pair in pairs if pair[0].token_ids != pair[1].token_ids or pair[1].error]

    return asyncio.run(ask())


def mean_length(answers: Iterable[ShopAnswer]) -> float | None:
    """Return the acceptance length of answers, incl. bonus; None where nothing was drafted."""
    drafted = [answer for answer in answers if answer.draft_rounds]
    rounds = sum(answer.draft_rounds for answer in drafted)
    return acceptance_length(sum(answer.accepted for answer in drafted), rounds)

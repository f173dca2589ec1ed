"""A server with the protocol of Paceline's or vLLM's, over a language whose law is known.

The next token depends on the two before it and on its position, through a table of logits. Drafts
come from a blurred copy of that table and are verified by rejection sampling, as a real engine's
are. Faults are switched on by name.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np

from tests.engines.listening import listening

VOCAB, ROWS, TOP = 64, 1 << 14, 20
DRAFT = 4
BLOCK = 16  # tokens of a block of the prefix cache
FAULTS = (
    "biased", "reused noise", "dead after a long prompt", "no prefix hits", "penalties ignored",
    "bias ignored", "logprobs of zero", "one noise for all seeds", "equal choices",
    "broken grammar", "loops", "seeds ignored", "text after a hit", "refuses logit_bias",
)  # fmt: skip
BIAS = 0.02  # probability that is moved to the likeliest token
LONG = 300  # tokens of a prompt that kills acceptance
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [LETTERS[i % 26] + LETTERS[i * 7 % 26] * (i % 3) + (" " if i % 4 == 0 else "")
         for i in range(VOCAB)]  # fmt: skip
Json = dict[str, Any]


def _tables() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    sharpness = rng.choice([1.7, 2.5, 8.0], size=(ROWS, 1))  # a model is sure of some tokens
    logits = sharpness * rng.standard_normal((ROWS, VOCAB))
    blurred = logits + rng.standard_normal((ROWS, VOCAB))
    return _log_softmax(logits), _log_softmax(blurred)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


TARGET, DRAFTER = _tables()


def row_of(ids: Sequence[int], place: int | None = None) -> int:
    """Return the row of the table for the token at `place`, by default the one after `ids`."""
    place = len(ids) if place is None else place
    two, one = (ids[place - 2] if place > 1 else 0), (ids[place - 1] if place else 0)
    return (two * 4099 + one * 127 + place * 31) % ROWS


@dataclass
class Writing:
    """One answer while it is written: what was drafted and accepted, and in which pieces."""

    ids: list[int]
    pieces: list[list[int]] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for piece in self.pieces for token in piece]


class FakeLanguage:
    """Writes answers as an engine does, with speculation or without, with faults or none."""

    def __init__(self, faults: Sequence[str] = (), speculative: bool = True) -> None:
        assert set(faults) <= set(FAULTS)
        self.faults, self.speculative = set(faults), speculative
        self.dead = False
        self.seen: set[tuple[str, tuple[int, ...]]] = set()
        self._unseeded = itertools.count(1 << 40)

    def write(self, body: Json, choice: int = 0, warm: bool = False) -> Writing:
        prompt, most = body["prompt"], body["max_tokens"]
        drafts = self.speculative and body.get("speculative") != "off"
        if drafts and "dead after a long prompt" in self.faults and len(prompt) > LONG:
            self.dead = True
        seed = body.get("seed")
        if seed is None or "seeds ignored" in self.faults:
            seed = next(self._unseeded)
        if "one noise for all seeds" in self.faults:
            seed = 1
        if "equal choices" in self.faults:
            choice = 0
        rng = np.random.default_rng([seed, choice])
        writing = Writing(list(prompt))
        adjust = _adjust(body, len(prompt), self.faults)
        hot = body["temperature"] > 0
        self._commit(writing, [self._draw(writing.ids, rng, hot, adjust)])
        while (left := most - len(writing.tokens)) > 0:
            length = min(DRAFT, left - 1) if drafts else 0
            self._round(writing, length, rng, hot, adjust)
        if warm and "text after a hit" in self.faults:
            writing.pieces = [[(token + 1) % VOCAB for token in p] for p in writing.pieces]
        if drafts and not hot and "loops" in self.faults:
            _loop(writing)
        return writing

    def _round(
        self, writing: Writing, length: int, rng: Any, hot: bool, adjust: Callable[..., Any]
    ) -> None:
        ids, tokens = list(writing.ids), list[int]()
        for _ in range(length):
            target, blurred = adjust(TARGET[row_of(ids)], ids), DRAFTER[row_of(ids)]
            token, good = (self._verify if hot else self._match)(target, blurred, rng)
            tokens.append(token)
            ids.append(token)
            if not good:
                break
        else:
            tokens.append(self._draw(ids, rng, hot, adjust))
        if length:
            writing.drafted.append(length)
            writing.accepted.append(len(tokens) - 1)
        self._commit(writing, tokens)

    def _match(self, target: np.ndarray, blurred: np.ndarray, rng: Any) -> tuple[int, bool]:
        token = int(target.argmax())
        return token, not self.dead and token == int(blurred.argmax())

    def _verify(self, target: np.ndarray, blurred: np.ndarray, rng: Any) -> tuple[int, bool]:
        """Rejection sampling of one draft token. Returns the token, and whether it was the
        draft's."""
        if self.dead:
            return int((self._law(target) + rng.gumbel(size=VOCAB)).argmax()), False
        target = self._law(target)
        noise = rng.gumbel(size=VOCAB)
        draft = int((blurred + noise).argmax())
        if rng.random() < math.exp(min(0.0, target[draft] - blurred[draft])):
            return draft, True
        residual = np.maximum(np.exp(target) - np.exp(blurred), 1e-300)
        fresh = noise if "reused noise" in self.faults else rng.gumbel(size=VOCAB)
        return int((np.log(residual) + fresh).argmax()), False

    def _law(self, target: np.ndarray) -> np.ndarray:
        if "biased" not in self.faults:
            return target
        law, top = np.exp(target), int(target.argmax())
        moved = min(BIAS, 1 - law[top])
        law *= 1 - moved / (1 - law[top])
        law[top] = math.exp(target[top]) + moved
        return np.log(np.maximum(law, 1e-300))

    def _draw(self, ids: Sequence[int], rng: Any, hot: bool, adjust: Callable[..., Any]) -> int:
        target = adjust(TARGET[row_of(ids)], ids)
        return int((self._law(target) + rng.gumbel(size=VOCAB)).argmax() if hot else
                   target.argmax())  # fmt: skip

    @staticmethod
    def _commit(writing: Writing, tokens: list[int]) -> None:
        writing.ids += tokens
        writing.pieces.append(tokens)


def _adjust(body: Json, start: int, faults: set[str]) -> Callable[..., np.ndarray]:
    """Return what penalties and biases make of a row."""
    frequency, presence = body.get("frequency_penalty", 0), body.get("presence_penalty", 0)
    bias = {int(token): value for token, value in (body.get("logit_bias") or {}).items()}

    def adjust(row: np.ndarray, ids: Sequence[int]) -> np.ndarray:
        if bias and "bias ignored" not in faults:
            row = row.copy()
            for token, value in bias.items():
                row[token] += value
        if (frequency or presence) and "penalties ignored" not in faults:
            counts = np.bincount(ids[start:], minlength=VOCAB)
            row = row - frequency * counts - presence * (counts > 0)
        return row

    return adjust


def _loop(writing: Writing) -> None:
    """Make the answer repeat its first tokens, in rounds that accept everything."""
    count, pieces = len(writing.tokens), list[list[int]]()
    while sum(map(len, pieces)) < 24 and len(pieces) < len(writing.pieces):
        pieces.append(writing.pieces[len(pieces)])
    first = [token for piece in pieces for token in piece]
    rest = [first[i % len(first)] for i in range(count - len(first))]
    turns = [rest[i : i + DRAFT + 1] for i in range(0, len(rest), DRAFT + 1)]
    writing.pieces = [*pieces, *turns]
    writing.accepted = [len(piece) - 1 for piece in writing.pieces[1:]]
    writing.drafted = [DRAFT] * len(writing.accepted)


class FakeEngine:
    """Answers requests of OpenAI's API over a FakeLanguage. `rounds` says whether answers tell
    them, `deadline` after how many requests the engine is gone."""

    def __init__(
        self,
        *faults: str,
        kind: str = "paceline",
        speculative: bool = True,
        rounds: bool = True,
        context: int = 2048,
        deadline: float = math.inf,
    ) -> None:
        self.language = FakeLanguage(faults, speculative)
        self.kind, self.rounds, self.context, self.deadline = kind, rounds, context, deadline
        self.bodies: list[Json] = []
        self.running = self.most_running = 0
        self.lock = threading.Lock()

    def get(self, path: str) -> Json | str | None:
        if path == "/v1/models":
            card = {"id": "fake", "owned_by": self.kind, "max_model_len": self.context}
            return {"data": [card]}
        if path == "/version":
            return {"version": "0.28.0"}
        if path == "/metrics":
            own = "paceline:failed_steps_total 0\n" if self.kind == "paceline" else ""
            return f"{own}vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        return None

    def post(self, path: str, body: Json) -> Json | list[Json]:
        self.bodies.append(body)
        if "messages" in body:
            text = " ".join(message["content"] for message in body["messages"])
            ids = [ord(character) % VOCAB for character in text][-24:]
            body = {**body, "prompt": ids, "max_tokens": body["max_completion_tokens"]}
        if body.get("echo"):
            return {"choices": [{"logprobs": _scores(body["prompt"])}]}
        if body.get("logit_bias") and "refuses logit_bias" in self.language.faults:
            raise ValueError("logit_bias is not supported with speculative decoding")
        if body.get("n", 1) > 1:
            written = [self.language.write(body, choice) for choice in range(body["n"])]
            return {"choices": [{"token_ids": each.tokens} for each in written]}
        return self._stream(body)

    def _stream(self, body: Json) -> list[Json]:
        if body.get("structured_outputs"):
            return self._bound(body)
        key = (body.get("cache_salt") or "", tuple(body["prompt"]))
        warm = bool(key[0]) and key in self.language.seen
        self.language.seen.add(key)
        writing = self.language.write(body, warm=warm)
        text = "".join(WORDS[token] for token in writing.tokens)
        stops = [text.find(stop) for stop in body.get("stop") or () if stop in text]
        events, position, said = [], len(body["prompt"]), ""
        for number, piece in enumerate(writing.pieces):
            words = "".join(WORDS[token] for token in piece)
            choice: Json = {"token_ids": piece, "text": words, "finish_reason": None}
            if body.get("logprobs") is not None:
                choice["logprobs"] = self._told(writing.ids, position, len(piece), body["logprobs"])
            if self.rounds and self.kind == "paceline" and number and writing.drafted:
                choice["round"] = _round(writing, number, position - len(body["prompt"]))
            if stops and len(said + words) > min(stops):
                choice |= {"text": words[: max(0, min(stops) - len(said))], "finish_reason": "stop"}
            events.append({"choices": [choice]})
            said, position = said + words, position + len(piece)
            if choice["finish_reason"]:
                break
        events[0]["prompt_token_ids"] = body["prompt"]
        last = events[-1]["choices"][0]
        last["finish_reason"] = last["finish_reason"] or "length"
        return [*events, self._usage(body, writing, warm)]

    def _told(self, ids: list[int], start: int, count: int, top: int) -> Json:
        told = _scores(ids[: start + count], start, top)
        if "logprobs of zero" in self.language.faults:
            told["token_logprobs"] = [0.0] * count
        return told

    def _usage(self, body: Json, writing: Writing, warm: bool) -> Json:
        hit = len(body["prompt"]) // BLOCK * BLOCK if warm else 0
        off = body.get("speculative") == "off" or not self.language.speculative
        if "no prefix hits" in self.language.faults and not off:
            hit = 0
        usage = {"prompt_tokens": len(body["prompt"]), "prompt_tokens_details": None}
        if body.get("cache_salt"):
            usage["prompt_tokens_details"] = {"cached_tokens": hit}
        event: Json = {"choices": [], "usage": usage}
        if writing.drafted and self.rounds:
            counts = {
                "num_spec_steps": len(writing.drafted),
                "num_draft_tokens": sum(writing.drafted),
                "num_accepted_draft_tokens": sum(writing.accepted),
                "per_step_drafted": writing.drafted,
                "per_step_accepted": writing.accepted,
            }
            event["metrics"] = {"speculative_decoding": counts}
        return event

    def _bound(self, body: Json) -> list[Json]:
        bound, seed = body["structured_outputs"], body.get("seed") or 0
        text = "red-123, blue-001, green-777, red-404, blue-999"
        if "json" in bound:
            text = json.dumps({"color": "red", "count": seed % 1000, "done": True})
        if "choice" in bound:
            text = bound["choice"][seed % len(bound["choice"])]
        if "broken grammar" in self.language.faults:
            text += text[-1]
        choice = {"token_ids": [1, 2], "text": text, "finish_reason": "stop"}
        return [{"choices": [choice], "prompt_token_ids": body["prompt"]}]


def _round(writing: Writing, number: int, position: int) -> Json:
    """A round as Paceline's events tell it."""
    drafted = writing.drafted[number - 1] if number <= len(writing.drafted) else 0
    accepted = len(writing.pieces[number]) - 1
    return {"position": position, "verified": drafted, "accepted": accepted, "forced_places": []}


def _scores(ids: Sequence[int], start: int = 0, top: int = TOP) -> Json:
    """Log-probabilities of tokens from `start` on, as `logprobs` of a completion has them."""
    rows = TARGET[[row_of(ids, place) for place in range(start, len(ids))]]
    best = np.argsort(-rows, axis=1, kind="stable")[:, :top].tolist()
    chosen, tops = list[float | None](), list[Json | None]()
    for row, likeliest, token in zip(rows.tolist(), best, ids[start:], strict=True):
        chosen.append(row[token])
        tops.append({f"token_id:{t}": row[t] for t in (*likeliest, token)})
    if start == 0:
        chosen[0], tops[0] = None, None
    return {"token_logprobs": chosen, "top_logprobs": tops}


def _handler(engine: FakeEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            told = engine.get(self.path)
            if engine.deadline < len(engine.bodies):
                self.close_connection = True
                return
            if told is None:
                self._send(404, b"{}")
            elif isinstance(told, str):
                self._send(200, told.encode())
            else:
                self._send(200, json.dumps(told).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if engine.deadline < len(engine.bodies):
                self.close_connection = True
                return
            with engine.lock:
                engine.running += 1
                engine.most_running = max(engine.most_running, engine.running)
            try:
                told = engine.post(self.path, body)
            except ValueError as error:
                refusal = {"error": {"message": str(error)}}
                self._send(400, json.dumps(refusal).encode())
                return
            finally:
                with engine.lock:
                    engine.running -= 1
            if isinstance(told, list):
                events = "".join(f"data: {json.dumps(event)}\n\n" for event in told)
                self._send(200, (events + "data: [DONE]\n\n").encode())
            else:
                self._send(200, json.dumps(told).encode())

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def serving(engine: FakeEngine) -> Iterator[str]:
    """Serve on a free loopback port; gives the URL."""
    with listening(_handler(engine)) as url:
        yield url

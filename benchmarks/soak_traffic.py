"""What the clients of the load test send: good requests of every kind, by seed, and bad ones."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prompts import prompt_set

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONTEXT, LONGEST_BODY = 1024, 4 * 2**20  # tokens, bytes: the server is started with these bounds
Fits = Callable[[str], object]  # raises, or is false, for a text that does not
Change = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One good request. `fits` judges the texts that ended by themselves."""

    path: str
    body: dict[str, Any]
    fits: Fits | None = None

    @property
    def choices(self) -> int:
        prompt = self.body.get("prompt")
        prompts = len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], list) else 1
        return prompts * int(self.body.get("n", 1))

    @property
    def lossless(self) -> bool:
        wish = self.body.get("speculative")
        return not (isinstance(wish, dict) and wish.get("lossy"))


@dataclass(frozen=True, slots=True)
class Bad:
    """A request that must be refused with `status`, naming `param`. `content` is what is sent."""

    status: int
    param: str | None
    content: bytes
    path: str = CHAT
    method: str = "POST"


SCHEMA = {
    "type": "object",
    "properties": {
        "size": {"enum": ["S", "M", "L"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["new", "gift", "fast"]}, "maxItems": 3},
    },
    "required": ["size", "count", "tags"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "order", "parameters": SCHEMA}}
REGEX = "(yes|no), [0-9]{1,3} of them"
LARK = 'start: "x=" N ("," N)*\nN: /[0-9]{1,2}/'


def schema_fits(text: str) -> bool:
    import jsonschema

    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def format_of(schema: Any) -> Change:
    wanted = {"name": "order", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


# What each request may have, and how often
OPTIONS: tuple[tuple[float, Change], ...] = (
    (0.15, {"n": 2}),
    (0.15, {"stop": [".", "\n\n"]}),
    (0.10, {"top_p": 0.9, "top_k": 40}),
    (0.10, {"repetition_penalty": 1.2, "presence_penalty": 0.5}),
    (0.05, {"logit_bias": {"28": -5}}),
    (0.05, {"min_p": 0.05, "min_tokens": 1}),
    (0.10, {"ignore_eos": True}),
    (0.15, {"cache_salt": "tenant"}),
    (0.15, {"return_token_ids": True}),
    (0.15, {"explain": True}),
)
LOGPROBS = {CHAT: {"logprobs": True, "top_logprobs": 3}, COMPLETIONS: {"logprobs": 2}}
GRAMMARS: tuple[tuple[Change, Fits], ...] = (
    ({"structured_outputs": {"regex": REGEX}}, lambda text: re.fullmatch(REGEX, text)),
    ({"structured_outputs": {"lark": LARK}}, lambda text: re.fullmatch(r"x=[\d,]+", text)),
    ({"structured_outputs": {"choice": ["red", "blue"]}}, lambda text: text in ("red", "blue")),
    ({"structured_outputs": {"json": SCHEMA}}, schema_fits),
)
FORMATS: tuple[tuple[Change, Fits], ...] = (  # in chat only
    (format_of(SCHEMA), schema_fits),
    ({"tools": [TOOL], "tool_choice": "required"}, schema_fits),
    ({"response_format": {"type": "json_object"}}, lambda t: isinstance(json.loads(t), dict)),
)
SPECULATION: tuple[Any, ...] = (
    None, "off", {"drafter": "auto"}, {"drafter": "ngram"}, {"drafter": "suffix"},
    {"drafter": "suffix", "max_draft_len": 3}, {"policy": "fixed:2"}, {"policy": "fixed:4"},
    {"policy": "throughput"}, {"policy": "off"},
)  # fmt: skip
LOSSY = {"lossy": 0.1}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PARTS = (  # of a request, or of something else
    b"\x16\x03\x01 no HTTP\r\n\r\n",
    HEAD,
    HEAD + b'Content-Length: 99\r\n\r\n{"m',
    HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod',
)
LENGTHS = (1, 8, 24, 48, 96)


class Traffic:
    """Requests for one model. Whatever is random comes from the `rng` of the client that asks."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._short = prompt_set("chat") + prompt_set("code")
        self._long = prompt_set("copy")
        self.bad = bad_requests(model)

    def ask(self, rng: random.Random) -> Ask:
        path = rng.choice([CHAT, CHAT, COMPLETIONS])
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": rng.choice([0, 1]),
            "max_tokens": rng.choice(LENGTHS),
            **(self._messages(rng) if path == CHAT else self._prompt(rng)),
        }
        for chance, change in (*OPTIONS, (0.1, LOGPROBS[path])):
            body |= change if rng.random() < chance else {}
        if rng.random() < 0.8:  # the others are told the seed that was drawn for them
            body["seed"] = rng.randrange(2**32)
        fits = self._bind(rng, path, body) if rng.random() < 0.2 else None
        lossy = LOSSY if rng.random() < 0.1 else None
        return Ask(path, self.told(rng, body, lossy or rng.choice(SPECULATION)), fits)

    def told(self, rng: random.Random, body: dict[str, Any], speculative: Any) -> dict[str, Any]:
        """The same request, answered in another way: streamed or not, with other drafts."""
        left_out = ("speculative", "stream", "stream_options")
        body = {name: value for name, value in body.items() if name not in left_out}
        if speculative is not None:
            body["speculative"] = speculative
        if rng.random() < 0.65:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def endless(self, rng: random.Random, tokens: int, *, stream: bool = True) -> Ask:
        """A request that gives exactly `tokens` tokens."""
        body = {
            "model": self.model, "prompt": rng.choice(self._short), "max_tokens": tokens,
            "ignore_eos": True, "seed": rng.randrange(2**32), "speculative": "off",
        }  # fmt: skip
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return Ask(COMPLETIONS, body)

    def bulky(self, rng: random.Random) -> Ask:
        """A stream of some 200 kB and more, which the buffers on its way don't hold if its client
        keeps its own small: the rest piles up in the server."""
        body = self.endless(rng, rng.randrange(120, 180)).body
        messages = [{"role": "user", "content": body.pop("prompt")}]
        return Ask(CHAT, {**body, "messages": messages, "logprobs": True, "top_logprobs": 20})

    # -- inside -----------------------------------------------------------------------------------

    def _messages(self, rng: random.Random) -> Change:
        system = rng.choice([None, "You are a helpful assistant.", self._long[0], self._long[1]])
        text = rng.choice(self._short if system or rng.random() < 0.7 else self._long)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        if rng.random() < 0.2:  # a conversation: another prefix that is shared
            messages.append({"role": "assistant", "content": "Let me think about that."})
            messages.append({"role": "user", "content": rng.choice(self._short)})
        return {"messages": messages}

    def _prompt(self, rng: random.Random) -> Change:
        shared = [100 + (7919 * i) % 20_000 for i in range(rng.choice([3, 40, 400]))]
        own = [100 + rng.randrange(20_000) for _ in range(rng.randrange(1, 40))]
        text = rng.choice(self._short)
        return {
            "prompt": rng.choice([text, shared + own, own, [own, shared], rng.choice(self._long)])
        }

    def _bind(self, rng: random.Random, path: str, body: dict[str, Any]) -> Fits:
        change, fits = rng.choice(GRAMMARS + (FORMATS if path == CHAT else ()))
        for name in ("ignore_eos", "stop", "min_tokens"):  # they would end it elsewhere
            body.pop(name, None)
        body |= {**change, "max_tokens": 96}
        return fits


def bad_requests(model: str) -> Sequence[Bad]:
    """Every way to be wrong, with the field that the refusal has to name."""
    chat = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    text = {"model": model, "prompt": "Hi", "max_tokens": 4}
    grammar = "structured_outputs"
    changes: list[tuple[Change, str]] = [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 120}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"max_tokens": None, "max_completion_tokens": CONTEXT}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 2 * CONTEXT}]}, "messages"),
        ({"messages": [{"role": "poet", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"one": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temprature": 1}, "temprature"),
        ({"seed": 2**64}, "seed"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template_kwargs": {"depth": 1}}, "chat_template_kwargs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"speculative": {"drafter": "nobody"}}, "speculative.drafter"),
        ({"speculative": {"policy": "luck"}}, "speculative.policy"),
        ({"speculative": {"lossy": 2}}, "speculative.lossy"),
        ({"speculative": {"max_draft_len": -1}}, "speculative.max_draft_len"),
        (format_of({"type": "nothing"}), "response_format.json_schema.schema.type"),
        (format_of({"not": {}}), "response_format.json_schema.schema.not"),
        ({grammar: {"regex": "("}}, f"{grammar}.regex"),
        ({grammar: {"lark": "start: nowhere"}}, f"{grammar}.lark"),
        ({grammar: {"choice": []}}, f"{grammar}.choice"),
        ({grammar: {"regex": "a", "lark": 'start: "a"'}}, grammar),
        ({grammar: {"regex": "a"}, "response_format": {"type": "json_object"}}, grammar),
    ]
    own: list[tuple[Change, str]] = [
        ({"prompt": []}, "prompt"),
        ({"prompt": [10**8]}, "prompt"),
        ({"prompt": ["Hi"] * 128}, "prompt"),
        ({"echo": True, "logprobs": 2, "n": 2}, "n"),
        ({"logprobs": 21}, "logprobs"),
    ]
    refused = [
        Bad(400, param, json.dumps({**chat, **change}).encode()) for change, param in changes
    ]
    refused += [
        Bad(400, param, json.dumps({**text, **change}).encode(), COMPLETIONS)
        for change, param in own
    ]
    return [
        *refused,
        Bad(404, "model", json.dumps({**chat, "model": "gpt-7"}).encode()),
        Bad(400, "messages", json.dumps({"model": model}).encode()),
        Bad(400, None, b'{"model": '),
        Bad(400, None, b'["no object"]'),
        Bad(413, None, b" " * (LONGEST_BODY + 1)),
        Bad(404, None, b"{}", "/v1/nowhere"),
        Bad(405, None, b"", CHAT, "GET"),
        Bad(404, "id", b"", "/v1/requests/nobodys/rounds", "GET"),
    ]

"""Requests: valid ones for every path that takes a body, then changed in up to three places."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fuzz import grammars, values
from tests.fuzz.values import LARGEST, Pairs, Raw, written

MODEL = "tiny"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Change = Callable[[random.Random], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `target` is the path and the query as they go over the wire."""

    index: int
    method: str
    target: str
    content: bytes = b""

    def shown(self, most: int = 300) -> str:
        body = self.content[:most].decode("utf-8", "replace")
        more = f" … ({len(self.content)} bytes)" if len(self.content) > most else ""
        return f"#{self.index} {self.method} {self.target[:200]} {body}{more}"


SPECULATION = (
    "off", None, {"drafter": "auto"}, {"max_draft_len": 3}, {"max_draft_len": 0}, {"lossy": 0.1},
    {"policy": "off"}, {"policy": "fixed:2"}, {"policy": "fixed:4"}, {"policy": "throughput"},
)  # fmt: skip
OPTIONS: dict[str, tuple[float, Change]] = {  # field: how often, and a valid value
    "temperature": (0.5, lambda r: r.choice([0, 0.5, 1, 100])),
    "top_p": (0.1, lambda r: r.choice([0.1, 0.9, 1, 1e-9])),
    "top_k": (0.1, lambda r: r.choice([-1, 0, 1, 40, 2**31 - 1])),
    "min_p": (0.1, lambda r: r.choice([0, 0.05, 1])),
    "presence_penalty": (0.08, lambda r: r.uniform(-2, 2)),
    "frequency_penalty": (0.08, lambda r: r.uniform(-2, 2)),
    "repetition_penalty": (0.08, lambda r: r.choice([0.001, 0.5, 1.2, 100])),
    "logit_bias": (0.08,
    lambda r: {str(r.randrange(256)): r.uniform(-100, 100) for _ in range(r.choice([1, 5, 200]))}),
    "stop": (0.15, lambda r: r.choice(["a", ["\n", "é"], ["x" * n for n in range(1, 17)]])),
    "stop_token_ids": (0.1, lambda r: [r.randrange(256) for _ in range(r.choice([1, 10, 300]))]),
    "min_tokens": (0.08, lambda r: r.randrange(3)),
    "seed": (0.5, lambda r: r.choice([0, 7, -(2**63), 2**64 - 1])),
    "n": (0.1, lambda r: r.choice([1, 2, 3, 6])),
    "ignore_eos": (0.1, lambda r: r.choice([True, False])),
    "skip_special_tokens": (0.05, lambda r: r.choice([True, False])),
    "return_token_ids": (0.1, lambda r: r.choice([True, False])),
    "explain": (0.1, lambda r: r.choice([True, False])),
    "cache_salt": (0.15, lambda r: r.choice(["", "tenant", "a" * 100])),
    "user": (0.1, lambda r: r.choice(["me", "you"])),
    "metadata": (0.03, lambda r: {"a": "b"}),
    "speculative": (0.3, lambda r: r.choice(SPECULATION)),
}  # fmt: skip


def case(seed: int, index: int) -> Case:
    """The request number `index` of a run: the same for the same seed, always."""
    rng = random.Random(f"{seed}.{index}")
    (make,) = rng.choices(list(KINDS), list(KINDS.values()))
    method, target, body = make(rng)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3])):  # a wrong field hides a hostile grammar
        body = mutated(rng, body)
    content = b"" if method == "GET" else written(body).encode("utf-8", "surrogatepass")
    if content and rng.random() < 0.03:
        content = _damaged(rng, content)
    return Case(index, method, target, content[: LARGEST + 1])


def cases(seed: int, indices: Sequence[int]) -> list[Case]:
    return [case(seed, index) for index in indices]


# -- valid requests -------------------------------------------------------------------------------


def _chat(rng: random.Random) -> tuple[str, str, Any]:
    body = _generation(rng, chat=True)
    body["messages"] = _messages(rng)
    if rng.random() < 0.1:
        body |= {"logprobs": True, "top_logprobs": rng.randrange(21)}
    return "POST", CHAT, body


def _messages(rng: random.Random) -> Any:
    if rng.random() < 0.02:  # many short ones
        return Raw(
            "[" + ",".join(['{"role":"user","content":"Hi"}'] * values.size(rng, 80_000)) + "]"
        )
    roles = rng.choice(
        [["user"], ["system", "user"], ["user", "assistant", "user"], ["tool", "user"]]
    )
    messages: list[dict[str, Any]] = [{"role": role, "content": _prose(rng)} for role in roles]
    if rng.random() < 0.1:
        messages.append({"role": "assistant", "content": None, "tool_calls": [grammars.call(rng)]})
    if rng.random() < 0.1:
        messages[0]["content"] = [{"type": "text", "text": _prose(rng)}]
    return messages


def _text(rng: random.Random) -> tuple[str, str, Any]:
    body = _generation(rng, chat=False)
    ids = [rng.randrange(256) for _ in range(rng.choice([1, 8, 60]))]
    body["prompt"] = rng.choice([_prose(rng), _prose(rng), ids, [ids, ids[:3]], [_prose(rng)] * 2])
    if rng.random() < 0.1:
        body["logprobs"] = rng.randrange(21)
    return "POST", COMPLETIONS, body


def _prose(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return values.text(rng)
    return "".join(
        rng.choice(["the ", "cat ", "sat. ", "1 ", "é "]) for _ in range(rng.randrange(1, 20))
    )


def _generation(rng: random.Random, *, chat: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": rng.choice([1, 1, 2, 4, 8, 24])}
    body |= {name: make(rng) for name, (share, make) in OPTIONS.items() if rng.random() < share}
    if rng.random() < 0.35:
        body["stream"] = True
        if rng.random() < 0.5:
            body["stream_options"] = {
                "include_usage": True,
                "continuous_usage_stats": rng.random() < 0.3,
            }
    if rng.random() < 0.25:
        body |= grammars.structured(rng, chat)
    return body


def _bulk(rng: random.Random) -> tuple[str, str, Any]:
    """A large value where a list or an object belongs: what froze a server for seconds."""
    method, target, body = rng.choice([_chat, _text])(rng)
    fields = ["stop", "stop_token_ids", "logit_bias", "metadata", "tools", "messages", "prompt"]
    body[rng.choice(fields)] = values.large_list(rng)
    return method, target, body


ACCEPTANCE = (
    {"alpha": 0.8}, {"al": 3.5, "draft_length": 7}, {"conditional": [0.8, 0.7]}, {"beta": [2, 1]},
    {"accepted": [0, 3, 1], "drafted": 7}, {"unconditional": [0.8, 0.6]},
)  # fmt: skip


def _predict(rng: random.Random) -> tuple[str, str, Any]:
    body: dict[str, Any] = {
        "model": rng.choice(["Qwen3-8B", "gpt-oss-20b", "DeepSeek-V3",
        {"config": {"hidden_size": 64}}]),
        "hardware": rng.choice(["H100-SXM", "H200", {"name": "mine", "memory_bandwidth": 1e12}]),
        "drafters": [{"kind": rng.choice(["ideal", "ngram", "dflash", "mtp", "eagle3"]),
                      "acceptance": rng.choice(ACCEPTANCE), "cost": 0.1}],
    }  # fmt: skip
    for name, given in (
        ("batch", 8), ("context", 4096), ("max_draft", 8), ("precision", "bf16"), ("contexts",
        [1024]),
        ("precision", {"weights": "fp8"}), ("batches", [1, 2]), ("tensor_parallel", 2),
        ("calibration", "none"), ("correlation", "measured"),
    ):  # fmt: skip
        if rng.random() < 0.2:
            body[name] = copy.deepcopy(given)
    return "POST", "/ui/predict", body


def _timing(rng: random.Random) -> tuple[str, str, Any]:
    speeds = {"tokens": 50, "ar_tokens_per_second": 30, "tokens_per_second": 80, "ttft_ms": 100,
              "acceptance": rng.choice(ACCEPTANCE), "draft_length": 7, "seed": 1}  # fmt: skip
    times = {"arrivals_ms": {"ar": [1, 2, 3], "speculative": [1, 1, 2]}}
    lines = {"recorded": [{"format": "paceline-arrivals/1", "prompt": "a", "run": 1,
    "speculation": s,
                           "arrivals_ms": [1, 2]} for s in ("off", "on")]}  # fmt: skip
    return "POST", "/ui/timing", copy.deepcopy(rng.choice([speeds, times, lines]))


def _measured(rng: random.Random) -> tuple[str, str, Any]:
    point = {"acceptance_length": 3.0, "speedup": 2.0, "draft_length": 7, "batch": 1, "note": "x"}
    mock = {"format": "paceline-mock/1", "model": "a", "cells": [{"batch": 1, "draft_length": 3,
            "acceptance_length": 2.0, "measured": {"speedup": 1.5}}]}  # fmt: skip
    return (
        "POST",
        "/ui/measured",
        copy.deepcopy(rng.choice([{"points": [point, dict(point)]}, mock])),
    )


def _get(rng: random.Random) -> tuple[str, str, Any]:
    path = rng.choice([
        "/health", "/version", "/metrics", "/v1/models", "/v1/models/tiny", "/v1/models/",
        "/ui/live",
        "/ui/serving", "/ui/state", "/ui/models", "/ui/hardware", "/v1/requests/x/rounds",
        "/openapi.json",
        "/", "/web/shell.js", "/web/../../etc/passwd", "/web/%2e%2e/%2e%2e/etc/passwd",
        "//v1/models",
        "/v1/models/%00", "/v1/models/%ff%fe", "/v1/requests/%2f%2f/rounds", "/%75i/state", "*",
        "/nope",
        "/v1/models/" + "a" * values.size(rng, 60_000), "/v1/" + "../" * 50,
        "/web/\\..\\", "/ui/live/",
    ])  # fmt: skip
    if rng.random() < 0.3:
        path += "?" + rng.choice(["since", "window", "minutes", "a", "%00"])
        path += "=" + rng.choice(
            ["-1", "1e999", "NaN", "9" * 400, "%ff", "", "a" * 2000, "&" * 500]
        )
    return "GET", path, {}


KINDS: dict[Callable[[random.Random], tuple[str, str, Any]], float] = {
    _chat: 40, _text: 38, _bulk: 0.5, _predict: 5, _timing: 4, _measured: 3, _get: 10,
}  # fmt: skip

# -- mutations ------------------------------------------------------------------------------------

FIELDS = (
    *OPTIONS, "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream",
    "stream_options", "logprobs", "top_logprobs", "tools", "tool_choice", "response_format",
    "precision",
    "structured_outputs", "chat_template_kwargs", "add_generation_prompt", "parallel_tool_calls",
    "echo",
    "best_of", "suffix", "store", "modalities", "service_tier", "functions", "tokens", "hardware",
    "points",
)  # fmt: skip


def mutated(rng: random.Random, body: Any) -> Any:
    """The body with one change: a value, a field or a place that is hostile."""
    if not isinstance(body, dict):
        return body
    body = copy.copy(body)
    if rng.random() < 0.35:
        body[rng.choice(FIELDS)] = values.value(rng)
        return body
    return rng.choice(
        [_replaced, _replaced, _replaced, _dropped, _doubled, _nested, _unknown, _whole]
    )(rng, body)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of dicts and lists, outer ones first."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
    for key in keys:
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _changed(rng: random.Random, body: dict[str, Any], change: Callable[[Any, Any], None]) -> Any:
    body = copy.deepcopy(body)
    places = list(_places(body))
    if places:
        change(*rng.choice(places))
    return body


def _replaced(rng: random.Random, body: dict[str, Any]) -> Any:
    return _changed(rng, body, lambda inside, key: inside.__setitem__(key, values.value(rng)))


def _dropped(rng: random.Random, body: dict[str, Any]) -> Any:
    return _changed(rng, body, lambda inside, key: inside.__delitem__(key))


def _nested(rng: random.Random, body: dict[str, Any]) -> Any:
    def wrap(inside: Any, key: Any) -> None:
        inside[key] = rng.choice([[inside[key]], {"a": inside[key]}, [inside[key]] * 3])

    return _changed(rng, body, wrap)


def _doubled(rng: random.Random, body: dict[str, Any]) -> Any:
    """One key twice, with another value."""
    key = rng.choice(list(body) or ["a"])
    return Pairs([*body.items(), (key, values.value(rng))])


def _unknown(rng: random.Random, body: dict[str, Any]) -> Any:
    return {**body, values.text(rng)[:2000]: values.value(rng)}


def _whole(rng: random.Random, body: dict[str, Any]) -> Any:
    """No object at all, in one case of four."""
    return values.value(rng) if rng.random() < 0.25 else _replaced(rng, body)


def _damaged(rng: random.Random, content: bytes) -> bytes:
    """Bytes that are no JSON, or no UTF-8."""
    at = rng.randrange(len(content))
    return rng.choice([
        content[:at], content + b"}",
        b"\xef\xbb\xbf" + content, content[:at] + b"\xff" + content[at:],
        content[:at] + b"\x00" + content[at:], json.dumps(content.decode("utf-8",
        "replace")).encode(),
    ])  # fmt: skip

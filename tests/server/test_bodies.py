"""Bodies that are too large, too deep or wrong a million times: one 400, at once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from paceline.server.app import create_app
from paceline.server.bodies import LARGE, MAX_DEPTH
from paceline.server.settings import ServerSettings
from paceline.server.turns import Turns

from .conftest import CHAT, TEXT, Client, in_process
from .fake import FakeAsyncEngine
from .test_refusals import check

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"


def with_field(base: dict[str, Any], field: str, text: bytes) -> bytes:
    """`base` as JSON, with a field whose value is written already."""
    rest = {name: value for name, value in base.items() if name != field}
    return json.dumps(rest).encode()[:-1] + f', "{field}": '.encode() + text + b"}"


def many(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


def parts(item: bytes, count: int) -> bytes:
    return b'[{"role":"user","content":' + many(item, count) + b"}]"


def unknown(count: int) -> bytes:
    return b"{" + b",".join(b'"k%d":1' % index for index in range(count)) + b"}"


CALL = b'{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}'
HUGE: list[tuple[str, bytes, str, str]] = [
    # path, body, field that is named, a part of the message
    (TEXT_PATH, with_field(TEXT, "stop", many(b" 0", 1_300_000)), "stop",
     "stop: got 1300000 items; expected up to 16 non-empty strings"),
    (TEXT_PATH, with_field(TEXT, "stop", many(b'"a"', 17)), "stop", "got 17 items"),
    (TEXT_PATH, with_field(TEXT, "stop", many(b'"a"', 900_000)), "stop", "got 900000 items"),
    (TEXT_PATH, with_field(TEXT, "stop_token_ids", many(b"55", 1_000_000)), "stop_token_ids",
     "got 1000000 items; expected up to 65536 token ids"),
    (TEXT_PATH, with_field(TEXT, "stop_token_ids", many(b"55", 65_537)), "stop_token_ids",
     "got 65537 items"),
    (TEXT_PATH, with_field(TEXT, "stop_token_ids", many(b'"x"', 65_000)), "stop_token_ids[0]",
     "whole number"),
    (TEXT_PATH, with_field(TEXT, "logit_bias", unknown(65_537)), "logit_bias",
     "got 65537 items; expected up to 65536 entries"),
    (TEXT_PATH, json.dumps({**TEXT, "logit_bias": {str(n): "x" for n in range(60_000)}}).encode(),
     "logit_bias.0", "got 'x'"),
    (TEXT_PATH, with_field(TEXT, "metadata", unknown(100_000)), "metadata", "up to 64 entries"),
    (TEXT_PATH, json.dumps({**TEXT, **{f"k{n}": 1 for n in range(300_000)}}).encode(),
     "k0", "unknown field"),
    (TEXT_PATH, json.dumps({**TEXT, **{f"k{n}": 1 for n in range(60_000)}}).encode(),
     "k0", "unknown field"),
    (TEXT_PATH, with_field(TEXT, "prompt", many(b"5", 1_500_000)), "prompt", "values"),
    (TEXT_PATH, with_field(TEXT, "prompt", many(b"-1", 500_000)), "prompt", "token ids"),
    (CHAT_PATH, with_field(CHAT, "messages", many(b'{"role":"user","content":"abcde"}', 60_000)),
     "messages", "got 60000 messages; expected at most 512"),
    (CHAT_PATH, with_field(CHAT, "messages", many(b"0", 500_000)), "messages", "500000"),
    (CHAT_PATH, with_field(CHAT, "messages", parts(b'{"type":"text","text":"a"}', 1025)),
     "messages[0].content", "got 1025 items; expected up to 1024 parts of type text"),
    (CHAT_PATH, with_field(CHAT, "messages", parts(b"[]", 30_000)), "messages[0].content",
     "got 30000 items"),
    (CHAT_PATH, with_field(CHAT, "messages", parts(b"[]", 33_000)), "messages",
     "and 32768 of them lists or objects"),
    (CHAT_PATH, with_field(CHAT, "messages", b"[" + unknown(100_000) + b"]"), "messages[0].k0",
     "unknown field"),
    (CHAT_PATH, with_field(CHAT, "messages",
                           b'[{"role":"assistant","tool_calls":' + many(CALL, 1025) + b"}]"),
     "messages[0].tool_calls", "got 1025 items; expected up to 1024 calls"),
    (CHAT_PATH, with_field(CHAT, "tools", many(b"{}", 129)), "tools",
     "got 129 items; expected up to 128 tools"),
    (CHAT_PATH, with_field(CHAT, "tools", many(b"{}", 130_000)), "tools", "up to 128 tools"),
    (CHAT_PATH, with_field(CHAT, "chat_template_kwargs", unknown(100_000)), "chat_template_kwargs",
     "up to 64 variables"),
    (CHAT_PATH,
     with_field(CHAT, "chat_template_kwargs", b'{"think":' + many(b"[]", 200_000) + b"}"),
     "chat_template_kwargs", "got 200000 values"),
    (CHAT_PATH, with_field(CHAT, "structured_outputs", b'{"choice":' + many(b"0", 500_000) + b"}"),
     "structured_outputs.choice", "got 500000 items; expected up to 1000 texts"),
    (CHAT_PATH, with_field(CHAT, "modalities", many(b'"text"', 400_000)), "modalities", "400000"),
    (CHAT_PATH, with_field(CHAT, "speculative", unknown(100_000)), "speculative.k0", "unknown"),
]  # fmt: skip


async def largest_gap(path: str, body: bytes) -> tuple[Any, float]:
    """The answer, and the longest that the event loop was held up meanwhile, in CPU seconds of this
    process: others that use the machine do not count."""
    app = create_app(FakeAsyncEngine(), ServerSettings())  # type: ignore[arg-type]
    gap = 0.0

    async def watch() -> None:
        nonlocal gap
        last = time.process_time()
        while True:
            await asyncio.sleep(0.002)
            now = time.process_time()
            gap, last = max(gap, now - last), now

    async with in_process(app) as http:
        await http.post(TEXT_PATH, json=TEXT)  # what is made once is made
        bystander = asyncio.create_task(watch())
        await asyncio.sleep(0.01)
        answer = await http.post(path, content=body, headers={"Content-Type": "application/json"})
        await asyncio.sleep(0.01)
        bystander.cancel()
    return answer, gap


@pytest.mark.parametrize(("path", "body", "field", "said"), HUGE, ids=range(len(HUGE)))
def test_what_is_wrong_a_million_times_is_one_error_at_once(
    path: str, body: bytes, field: str, said: str
) -> None:
    answer, gap = asyncio.run(largest_gap(path, body))
    error = check(answer, field)
    assert said in error["message"]
    assert len(answer.content) < 1000
    assert gap < 3  # without the bounds, the first holds the loop up for 10


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        (with_field(TEXT, "stop", b"[" * 400_000 + b"]" * 400_000), None, "400001 levels deep"),
        (with_field(TEXT, "stop", b"[" * 250 + b"]" * 250), None, "251 levels deep"),
        (with_field(TEXT, "stop", b"[" * 190 + b"]" * 190), "stop[0]", "[[["),
        (b"[" * 400_000, None, "levels deep"),
        (with_field(TEXT, "n", b"9" * 3_000_000), None, "4300 digits"),
        (with_field(TEXT, "n", b"9" * 4000), "n", "got 999"),
        (with_field(TEXT, "temperature", b"9" * 400), "temperature", "got 999"),
        (with_field(TEXT, "temperature", b"1e999"), "temperature", "got inf"),
        (with_field(TEXT, "temperature", b"-Infinity"), "temperature", "got -inf"),
        (with_field(TEXT, "n", b"1e999"), "n", "got inf"),
        (with_field(TEXT, "logit_bias", b'{"1": NaN}'), "logit_bias", "got nan"),
        (with_field(TEXT, "logit_bias", b'{"1": ' + b"9" * 400 + b"}"), "logit_bias.1", "got 999"),
        (with_field(TEXT, "prompt", b'"\xff"'), None, "no UTF-8"),
        (with_field(TEXT, "prompt", b'"\xed\xa0\x80"'), None, "no UTF-8"),
        (json.dumps(TEXT).encode("utf-16"), None, "no UTF-8"),
        (with_field(TEXT, "prompt", b'"\\ud800"'), "prompt", "UTF-8"),
        (json.dumps({**TEXT, "prompt": "abc def " * 400_000}).encode()[:-3], None, "no JSON"),
        (b'{"' + b"a" * 3_000_000, None, "no JSON"),
        (b'"' * 3_000_000, None, "no JSON"),
        (json.dumps({**TEXT, "x" * 3_000_000: 1}).encode(), "x" * 64 + "...", "unknown field"),
        (json.dumps({**TEXT, "speculative": {"drafter": "x" * 3_000_000}}).encode(),
         "speculative.drafter", "got 'xxx"),
    ],
)  # fmt: skip
def test_hostile_json(client: Client, body: bytes, field: str | None, said: str) -> None:
    answer = client.send(TEXT_PATH, body)
    assert said in check(answer, field)["message"]
    assert len(answer.content) < 1000


def test_a_long_model_name_is_not_sent_back(client: Client) -> None:
    answer = client.complete(model="x" * 3_000_000)
    check(answer, "model", 404)
    assert len(answer.content) < 1000


def test_what_is_unusual_but_right_is_taken() -> None:
    client = Client(FakeAsyncEngine(max_model_len=8192), ServerSettings())
    assert client.send(TEXT_PATH, b"\xef\xbb\xbf" + json.dumps(TEXT).encode()).status_code == 200
    assert client.send(TEXT_PATH, b" " * 3_000_000 + json.dumps(TEXT).encode()).status_code == 200
    twice = b'{"max_tokens": 3, ' + json.dumps(TEXT).encode()[1:]
    assert client.send(TEXT_PATH, twice).json()["usage"]["completion_tokens"] == 8  # the last holds
    headers = {"Content-Type": "application/vnd.api+json; charset=utf-8"}
    assert client.post(TEXT_PATH, content=json.dumps(TEXT), headers=headers).status_code == 200
    ids = {"logit_bias": {str(n): 0.5 for n in range(200)}, "stop_token_ids": [1.0, 2] * 30_000}
    assert client.complete(**ids).status_code == 200
    assert client.engine.submitted[-1].params.stop_token_ids[:3] == (1, 2, 1)
    assert client.complete(prompt=[72.0, 105]).status_code == 200
    deep = {"a": 1}
    for _ in range(MAX_DEPTH - 6):
        deep = {"a": deep}  # type: ignore[dict-item]
    assert client.chat(chat_template_kwargs={"think": deep}).status_code == 200


def test_the_bounds_themselves_are_honoured() -> None:
    client = Client(FakeAsyncEngine(max_model_len=8192), ServerSettings())
    ids = [n % 200 for n in range(65_536)]
    assert client.complete(stop_token_ids=ids, ignore_eos=True).status_code == 200
    assert client.complete(stop=["x" * n for n in range(1, 17)]).status_code == 200
    assert client.complete(metadata={str(n): "x" for n in range(64)}).status_code == 200
    text = [{"type": "text", "text": "a"}] * 1024
    assert client.chat(messages=[{"role": "user", "content": text}]).status_code == 200
    answer = client.complete(logit_bias={str(n): 0.5 for n in range(65_536)})
    # read to the end: the tokenizer of this engine has fewer tokens
    assert "got 258; expected token ids from 0 to 257" in check(answer, "logit_bias")["message"]


def test_large_bodies_are_read_on_a_thread_and_small_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    submit = Turns.submit

    def noting(self: Turns, job: Any, **options: Any) -> Any:
        def run() -> Any:
            threads.append(threading.current_thread().name)
            return job()

        return submit(self, run, **options)

    monkeypatch.setattr(Turns, "submit", noting)
    client = Client(FakeAsyncEngine(), ServerSettings())
    check(client.complete(temperature="hot"), "temperature")
    assert not threads
    check(client.complete(temperature="hot", prompt="x" * LARGE), "temperature")
    (thread,) = threads
    assert thread.startswith("paceline-bodies")


def test_the_schema_says_what_a_body_is(client: Client) -> None:
    schema = client.get("/openapi.json").json()
    for path, name in ((CHAT_PATH, "ChatRequest"), (TEXT_PATH, "CompletionRequest")):
        body = schema["paths"][path]["post"]["requestBody"]
        reference = {"$ref": f"#/components/schemas/{name}"}
        assert body == {"required": True, "content": {"application/json": {"schema": reference}}}
        fields = schema["components"]["schemas"][name]["properties"]
        stops = next(branch for branch in fields["stop"]["anyOf"] if "items" in branch)
        assert stops == {"items": {"type": "string"}, "type": "array", "maxItems": 16}
    kinds = schema["components"]["schemas"]["CompletionRequest"]["properties"]["prompt"]["anyOf"]
    assert [kind["type"] for kind in kinds] == ["string", "array", "array", "array"]

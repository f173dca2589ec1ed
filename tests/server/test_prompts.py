"""Prompts are refused for their size before they are tokenised, and short ones never wait."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import threading
import time
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from paceline.core import InvalidRequest
from paceline.engine.tool_prompt import plain_turns
from paceline.llm import NEAR, RenderedChat
from paceline.models.catalog import pull
from paceline.models.tokenizer import Tokenizer as OwnTokenizer
from paceline.server import prompt_size, prompts
from paceline.server.app import create_app
from paceline.server.errors import ApiError, invalid
from paceline.server.prompt_size import PIECE, PromptSize, longest_token, token_ids
from paceline.server.prompts import Conversations
from paceline.server.protocol import ChatRequest
from paceline.server.settings import ServerSettings

from .conftest import TEXT, Client, in_process
from .fake import FakeAsyncEngine, byte_tokenizer
from .test_refusals import check

TEXTS = (
    "",
    " ",
    "Hello, world!  Two  spaces,\n\n\ttabs and\r\nlines.",
    "Ein Gruß 🚴🏽‍♀️! e\u0301 ﬁ ½ 日本語 한국어 \u1112\u1161\u11ab",
    "<|im_start|>user\nHi<|im_end|>\n",
    "x" * 3000 + " " * 3000 + "1234567890" * 300,
    "".join(map(chr, range(1, 0x800))),
)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that each call of the tokenizer gave."""
    counts: list[int] = []
    real = prompt_size.token_ids

    def counting(backend: Any, text: str, *, special: bool) -> list[int]:
        ids = real(backend, text, special=special)
        counts.append(len(ids))
        return ids

    monkeypatch.setattr(prompt_size, "token_ids", counting)
    monkeypatch.setattr(prompts, "token_ids", counting)
    return counts


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_prompt_that_cannot_fit_is_not_tokenised(counted: list[int], role: str) -> None:
    client = Client(FakeAsyncEngine(), ServerSettings())
    text = "abc def " * 400_000
    error = check(client.chat(messages=[{"role": role, "content": text}]), "messages")
    assert (
        error["code"] == "context_length_exceeded" and "fewer than 512 tokens" in error["message"]
    )
    error = check(client.complete(prompt=text), "prompt")
    assert error["code"] == "context_length_exceeded"
    check(client.complete(prompt=["Hi", *[text[:25_000]] * 100]), "prompt")
    assert sum(counted) < 10  # those of "Hi"


def test_more_messages_than_the_context_has_tokens_are_refused_unread(counted: list[int]) -> None:
    messages = [{"role": "user", "content": ""}] * 513
    error = check(Client(FakeAsyncEngine(), ServerSettings()).chat(messages=messages), "messages")
    assert error["code"] == "context_length_exceeded" and not counted


def test_a_text_of_long_tokens_is_counted_as_far_as_needed(counted: list[int]) -> None:
    """Without a bound on what a token stands for, tokens are counted in pieces."""
    size = PromptSize(dropping_tokenizer(), max_model_len=1000)
    with pytest.raises(ApiError, match="prompt: got 8000000 characters") as refused:
        size.refuse_tokens("prompt", "word " * 1_600_000)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert 2000 < sum(counted) <= 2000 + PIECE
    counted.clear()
    size.refuse_tokens("prompt", " " * 3_000_000 + "word")  # the tokenizer drops all spaces
    assert sum(counted) == 1
    size.refuse_tokens("prompt", "word " * 900)


def dropping_tokenizer() -> Any:
    tokenizer = Tokenizer(models.WordLevel({"word": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def byte_level(normaliser: Any = None, **added: Any) -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate([*letters, "ab", "abab"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "ab")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normaliser is not None:
        tokenizer.normalizer = normaliser
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    if added:
        fast.add_tokens([AddedToken(**added)])
    return fast


@pytest.mark.parametrize(
    ("tokenizer", "longest"),
    [
        (byte_level(), 4),
        (byte_level(normalizers.NFC()), 12),
        (byte_level(content="<long>"), 6),
        (byte_level(content="<long>", rstrip=True), math.inf),  # it swallows the spaces behind it
        (byte_level(normalizers.NFKC()), math.inf),
        (byte_level(normalizers.Strip()), math.inf),
        (byte_level(normalizers.Replace("a", "")), math.inf),
        (dropping_tokenizer(), math.inf),
        (byte_tokenizer(), len("<|im_start|>")),
    ],
)
def test_the_longest_token(tokenizer: Any, longest: float) -> None:
    assert longest_token(tokenizer) == longest


def test_ids_are_those_of_the_tokenizer_itself() -> None:
    tokenizer = byte_tokenizer()
    for text in TEXTS:
        for special in (False, True):
            ids = tokenizer(text, add_special_tokens=special)["input_ids"]
            assert token_ids(tokenizer.backend_tokenizer, text, special=special) == list(ids)


@pytest.mark.model
def test_ids_of_the_real_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(pull("smollm2-135m"))
    for text in TEXTS:
        for special in (False, True):
            ids = tokenizer(text, add_special_tokens=special)["input_ids"]
            assert token_ids(tokenizer.backend_tokenizer, text, special=special) == list(ids)
    longest = longest_token(tokenizer)
    assert 16 <= longest < math.inf
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(text.encode()) <= longest * len(ids)
    size = PromptSize(tokenizer, max_model_len=8192)
    size.refuse_tokens("prompt", "Rivers run to the sea. " * 1300)  # 7,801 tokens
    began = time.process_time()
    with pytest.raises(ApiError, match="expected fewer than 8192 tokens"):
        size.refuse_tokens("prompt", "a b " * 225_000)  # 450,000 tokens, fewer bytes than can fit
    assert time.process_time() - began < 5  # CPU seconds


class CountedText(str):
    """A text that counts how many characters are looked at in it."""

    looked = 0

    def find(self, part: str, start: int, end: int) -> int:  # type: ignore[override]
        place = super().find(part, start, end)
        self.looked += (min(end, len(self)) if place < 0 else place + len(part)) - start
        return place

    def __contains__(self, part: str) -> bool:  # type: ignore[override]
        self.looked += len(self)
        return super().__contains__(part)


@pytest.mark.parametrize("grouped", [False, True], ids=["in order", "by role"])
def test_the_search_for_dropped_messages_is_linear(grouped: bool) -> None:
    """A template may show the messages in their order, or those of one role before the others."""
    messages = [("system" if n % 3 else "user", f"message {n}") for n in range(5000)]
    shown = sorted(messages, key=lambda message: message[0]) if grouped else messages
    text = CountedText("\n".join(f"<{role}>{content}" for role, content in shown))
    chat = RenderedChat(text)
    for index, (role, content) in enumerate(messages):
        chat.refuse_dropped(index, role, content)
    assert text.looked <= 3 * len(text)


@pytest.mark.parametrize("as_json", [False, True], ids=["plain", "JSON"])
def test_the_search_for_results_of_tools_is_linear(as_json: bool) -> None:
    """The first result stands once more at the end, in a message of the user."""
    results = [f'"line {n}"\n"end"' for n in range(5000)]
    shown = [json.dumps(result) if as_json else result for result in results]
    text = CountedText("\n".join(f"<tool>{part}" for part in shown) + results[0])
    chat = RenderedChat(text)
    for index, result in enumerate(results):
        chat.refuse_dropped(index, "tool", result)
    assert text.looked <= len(results) * 2 * NEAR


def calling(*arguments: str) -> ChatRequest:
    calls = [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": text}}
        for text in arguments
    ]
    message = {"role": "assistant", "tool_calls": calls}
    return ChatRequest(model="m", messages=[{"role": "user", "content": "Hi"}, message])


@pytest.mark.parametrize(
    ("arguments", "place", "expected"),
    [
        (['{"a": ' + "[" * 600 + "]" * 600 + "}"], 0, "got 601 levels; expected JSON of at most"),
        (["{}", '{"a": [' + "[]," * 40_000 + "[]]}"], 1, "expected arguments of all calls with"),
        (['{"a": [' + "[]," * 20_000 + "[]]}"] * 2, 1, "expected arguments of all calls with"),
        (["[]"], 0, "expected a JSON object, as text"),
        (['{"a": ' + "[" * 300], 0, "got 301 levels"),
    ],
    ids=["deep", "many", "many together", "no object", "open"],
)
def test_arguments_of_past_calls_have_the_bounds_of_bodies(
    arguments: list[str], place: int, expected: str
) -> None:
    field = rf"^messages\[1\]\.tool_calls\[{place}\]\.function\.arguments: "
    with pytest.raises(InvalidRequest, match=field) as refusal:
        Conversations(byte_tokenizer()).render(calling(*arguments))
    assert expected in str(refusal.value)


def test_brackets_within_strings_of_arguments_are_no_values() -> None:
    code = json.dumps({"code": "f([{}]), " * 30_000, "list": [1, {"a": 2.5}]})
    assert code in Conversations(byte_tokenizer()).render(calling(code, ""))


def test_results_of_one_turn_become_one_message() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": {}}}
    turns = plain_turns(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "one"},
            {"role": "tool", "tool_call_id": "2", "content": "two"},
            {"role": "user", "content": "Go on"},
        ]
    )
    assert [turn["role"] for turn in turns] == ["assistant", "user", "user"]
    assert turns[1]["content"] == "Result of f:\none\n\nResult of the call:\ntwo"


def test_many_results_of_tools_are_joined_at_once() -> None:
    results = [{"role": "tool", "content": "x" * 1000}] * 8000
    began = time.thread_time()
    (turn,) = plain_turns(results)
    assert time.thread_time() - began < 0.5  # one join after the other copies 32 GB
    assert str(turn["content"]).count("Result of") == 8000


def test_what_a_request_says_elsewhere_is_quoted_shortly_and_never_logged() -> None:
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = "{{ reasoning_effort }}{{ messages[0].content }}"
    secret = "secret " * 1000
    request = ChatRequest(
        model="m",
        messages=[{"role": "user", "content": "Hi"}],
        reasoning_effort="low",
        chat_template_kwargs={"reasoning_effort": secret},
    )
    with pytest.raises(InvalidRequest, match="reasoning_effort: got 'low'") as refusal:
        Conversations(tokenizer).render(request)
    assert len(str(refusal.value)) < 300
    assert "secret" not in invalid(refusal.value).reason


def test_tools_go_into_the_template_that_a_model_has_for_them() -> None:
    plain = byte_tokenizer()
    plain_template = "{{ name }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with_tools = "{{ mood }}<tool_call>{{ tools | tojson }}" + plain_template
    thinks = "{% if enable_thinking %}Hmm. {% endif %}" + plain_template
    tokenizer = OwnTokenizer(plain.backend_tokenizer, {}, thinks, with_tools)
    conversations = Conversations(tokenizer)
    tool = {"type": "function", "function": {"name": "find"}}
    messages = [{"role": "user", "content": "Hi"}]
    mood = {"chat_template_kwargs": {"mood": "fine"}}
    asked = ChatRequest(model="m", messages=messages, tools=[tool], **mood)
    text = conversations.render(asked)
    assert text.startswith('fine<tool_call>[{"type": "function"') and text.endswith("Hi")
    assert conversations.render(ChatRequest(model="m", messages=messages)) == "Hi"
    with pytest.raises(InvalidRequest, match="got 'mood'"):  # which only the other one reads
        conversations.render(ChatRequest(model="m", messages=messages, **mood))
    thinking = ChatRequest(model="m", messages=messages, enable_thinking=True)
    assert conversations.render(thinking) == "Hmm. Hi"
    thinking = thinking.model_copy(update={"tools": asked.tools})
    with pytest.raises(InvalidRequest, match=r"^enable_thinking: got true"):  # only this one
        conversations.render(thinking)
    kept, unread = conversations.without_unread(thinking)
    assert unread == ["enable_thinking"] and conversations.render(kept).endswith("Hi")


def test_an_answer_that_was_cut_while_it_thought_can_be_sent_back() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm"},
        {"role": "user", "content": "Go on"},
    ]
    ChatRequest(model="m", messages=messages).check()
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.content: got null"):
        ChatRequest(model="m", messages=[messages[0], {"role": "assistant"}]).check()


def test_a_message_that_the_template_drops_is_refused_by_its_place() -> None:
    chat = RenderedChat("<user>one<user>two")
    chat.refuse_dropped(0, "user", " two ")
    chat.refuse_dropped(1, "user", "one")  # a template may turn the order round
    chat.refuse_dropped(2, "assistant", "past thoughts are dropped on purpose")
    with pytest.raises(InvalidRequest, match=r"messages\[3\]\.role: got 'tool'"):
        chat.refuse_dropped(3, "tool", "three")


def test_short_prompts_never_wait_behind_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, free = threading.Event(), threading.Event()
    real = prompts.token_ids

    def slow(backend: Any, text: str, *, special: bool) -> list[int]:
        if len(text) > prompts.SHORT:
            encoding.set()
            assert free.wait(20)
        return real(backend, text, special=special)

    monkeypatch.setattr(prompts, "token_ids", slow)

    async def test() -> None:
        engine = FakeAsyncEngine(max_model_len=65_536)
        async with in_process(create_app(engine, ServerSettings())) as http:  # type: ignore[arg-type]
            long = {**TEXT, "prompt": "x" * 20_000}
            flood = [asyncio.create_task(http.post("/v1/completions", json=long)) for _ in range(4)]
            await asyncio.to_thread(encoding.wait, 20)
            short = await asyncio.wait_for(http.post("/v1/completions", json=TEXT), 10)
            assert short.status_code == 200
            assert not any(task.done() for task in flood)
            free.set()
            for task in flood:
                assert (await task).status_code == 200

    try:
        asyncio.run(asyncio.wait_for(test(), 30))
    finally:
        free.set()


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        ("", "<system>You can call"),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}",
            "<user>You can",
        ),
        (
            "{% set messages = messages | rejectattr('role', 'equalto', 'system') %}",
            "<user>You can",
        ),
    ],
    ids=["system", "refused", "dropped"],
)
def test_tools_are_told_where_the_template_shows_them(start: str, shown: str) -> None:
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = (
        start + "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    tools = [{"type": "function", "function": {"name": "order"}}]
    messages = [{"role": "user", "content": "Hi"}]
    request = ChatRequest(model="m", messages=messages, tools=tools)
    text = Conversations(tokenizer).render(request)
    assert text.startswith(shown) and text.endswith("Hi") and text.count('"order"') == 1
    assert "several" not in text
    both = ChatRequest(model="m", messages=messages, tools=tools, parallel_tool_calls=True)
    assert "several" in Conversations(tokenizer).render(both)


def test_what_a_tool_said_may_be_shown_as_json() -> None:
    for text in ('<tool>"a \\"b\\"\\nü"', '<tool>a "b"\nü'):
        RenderedChat(text).refuse_dropped(0, "tool", 'a "b"\nü')
    with pytest.raises(InvalidRequest, match="messages"):
        RenderedChat('<user>"a \\"b\\""').refuse_dropped(0, "user", 'a "b"')

"""Prompts are what serving sends, token for token, and what cannot be said is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest, ModelError
from paceline.llm import encode_chat
from paceline.server.prompt_size import PromptSize
from paceline.server.prompts import PromptEncoder
from paceline.server.protocol import ChatRequest
from paceline.synth.answer import TargetAnswer
from paceline.synth.ask import Asker, ItemDropped
from paceline.synth.plan import Item
from paceline.synth.prompts import make_prompt
from paceline.synth.wire import Wire

from .tiny import WITHOUT_SYSTEM, made, save_target, write_prompts

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "refund",
            "description": "gives money back",
            "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
        },
    }
]


def item(asker: Asker, source: int = 0, text: str = "where is it?", seed: int = 5) -> Item:
    return Item(3, asker.app.sources[source], make_prompt(text, "0"), 0, 0, seed)


def served(asker: Asker, messages: list[Any], **more: Any) -> list[int]:
    """Prompt ids as the server makes them."""
    request = ChatRequest(model="m", messages=messages, **more)
    tokenizer = asker.target.tokenizer
    encoder = PromptEncoder(tokenizer, PromptSize(tokenizer, max_model_len=8192))
    return asyncio.run(encoder.encode(request, client=""))[0]


def test_an_on_task_prompt_is_what_the_server_makes_of_it(target: Path, tmp_path: Path) -> None:
    _, _, asker = made(tmp_path, target)
    ask = asker.ask(item(asker), make_prompt("where is it?", "0"))  # type: ignore[arg-type]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: where is it?"},
    ]
    assert list(ask.messages) == messages
    assert list(ask.prompt_ids) == served(asker, messages)
    assert ask.params.seed == 5 and ask.params.max_tokens == 24 and ask.params.temperature == 3


def test_tools_are_in_the_prompt_and_bound_as_the_server_binds_them(
    target: Path, tmp_path: Path
) -> None:
    _, _, asker = made(tmp_path, target, tools=TOOLS, context=800)
    prompt = make_prompt("where is it?", "0")
    assert prompt is not None
    ask, plain = asker.ask(item(asker), prompt), asker.ask(item(asker, 1), prompt)
    assert list(ask.prompt_ids) == served(asker, list(ask.messages), tools=TOOLS)
    assert "refund" in asker.target.tokenizer.decode(ask.prompt_ids)
    assert ask.params.grammar is not None and ask.params.grammar.kind == "lark"
    assert plain.params.grammar is None and not plain.bound


def test_a_prompt_is_sent_with_its_own_tools(target: Path, tmp_path: Path) -> None:
    _, _, asker = made(tmp_path, target, context=800)
    prompt = make_prompt("my order came broken", "0", tools=tuple(TOOLS))
    assert prompt is not None
    ask = asker.ask(item(asker), prompt)
    assert list(ask.prompt_ids) == served(asker, list(ask.messages), tools=TOOLS)
    assert not ask.bound and Wire(asker, "m").body(ask, token_ids=False)["tools"] == TOOLS


def test_each_prompt_and_sample_draws_one_of_the_templates(target: Path, tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl")
    templates = ["Why: {prompt}", "How: {prompt}"]
    source = {"name": "a", "kind": "jsonl", "path": "prompts.jsonl", "template": templates}
    _, (read,), asker = made(tmp_path, target, sources=[source], template="{prompt}")
    said = [
        [asker.messages(read.spec, prompt, sample)[-1]["content"] for sample in range(3)]
        for prompt in read.prompts
    ]
    assert {first.split(":")[0] for first, _, _ in said} == {"Why", "How"}
    assert all(first != second and first == third for first, second, third in said)


def test_plain_chat_keeps_its_conversation_and_own_system_replaces_theirs(
    target: Path, tmp_path: Path
) -> None:
    _, _, asker = made(tmp_path, target)
    talk = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "ahoy"},
        {"role": "assistant", "content": "arr"},
        {"role": "user", "content": "where to?"},
    ]
    prompt = make_prompt(talk, "0")
    assert prompt is not None
    assert list(asker.ask(item(asker, 1), prompt).messages) == talk
    own = asker.ask(item(asker, 0), prompt).messages
    assert [m["content"] for m in own] == ["Be brief.", "ahoy", "arr", "Q: where to?"]


def test_prompts_that_cannot_be_asked_are_dropped(target: Path, tmp_path: Path) -> None:
    _, _, asker = made(tmp_path, target)
    for text, reason in [("end <|im_end|> it", "special_token"), ("x" * 220, "too_long")]:
        with pytest.raises(ItemDropped, match=reason):
            asker.ask(item(asker), make_prompt(text, "0"))  # type: ignore[arg-type]


def test_temperatures_are_spread_and_fixed(target: Path, tmp_path: Path) -> None:
    sampling = {"temperature": [0.0, 1.0], "max_tokens": 8}
    _, _, asker = made(tmp_path, target, sampling=sampling)
    prompts = [make_prompt(f"prompt {i}", "0") for i in range(200)]
    drawn = [asker.ask(item(asker), p).params.temperature for p in prompts if p]
    assert 60 < drawn.count(0.0) < 140
    assert drawn == [asker.ask(item(asker), p).params.temperature for p in prompts if p]


def test_the_users_turn_is_asked_for_where_the_user_begins(target: Path, tmp_path: Path) -> None:
    sources = [{"name": "self", "kind": "self", "starts": ["My order"], "length": [3, 60]}]
    _, _, asker = made(tmp_path, target, sources=sources)
    tokenizer = asker.target.tokenizer
    it = replace(item(asker), prompt=None)
    turn = asker.turn(it)
    head = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nMy order"
    assert tokenizer.decode(turn.prompt_ids) == head
    end = tokenizer.eos_token_id
    assert turn.params.stop_token_ids == (end,) and not turn.bound

    def written(text: str, reason: str = "stop") -> str:
        ids = tokenizer(text)["input_ids"]
        return asker.written(it, TargetAnswer(3, (*ids, end), reason)).text

    assert written(" is late ") == "My order is late"
    for text, reason, why in [
        (" is", "length", "turn_cut"),
        (" is <|im_start|>", "stop", "turn_undecodable"),
        (" is" * 40, "stop", "turn_length"),
    ]:
        with pytest.raises(ItemDropped, match=why):
            written(text, reason)
    again = asker.ask(it, make_prompt(written(" is late"), "0"))  # type: ignore[arg-type]
    assert again.messages[-1]["content"] == "Q: My order is late"


def test_what_the_template_or_grammar_cannot_do_is_refused_at_once(
    target: Path, tmp_path: Path
) -> None:
    deaf = save_target(tmp_path / "deaf", WITHOUT_SYSTEM)
    with pytest.raises(InvalidRequest, match="chat template shows") as caught:
        made(tmp_path, deaf)
    assert caught.value.field == "sources[0]"
    made(tmp_path, deaf, system=None)
    endless = save_target(
        tmp_path / "endless", "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(InvalidRequest, match="no end of the user's turn"):
        made(tmp_path, endless, sources=[{"name": "self", "kind": "self"}])
    for grammar, field in [
        ({"kind": "regex", "value": "("}, "grammar.value"),
        ({"kind": "lark", "value": "start: nothing"}, "grammar.value"),
        ({"kind": "json", "value": {"type": "strin"}}, "grammar.value.type"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            made(tmp_path, target, grammar=grammar)
        assert caught.value.field == field
    bad = {"type": "function", "function": {"name": "f", "parameters": {"properties": 3}}}
    with pytest.raises(InvalidRequest) as caught:
        made(tmp_path, target, tools=[*TOOLS, bad])
    assert caught.value.field.startswith("tools[1].function.parameters")


def test_limits_and_models_are_checked(target: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="at most the model's 1024") as caught:
        made(tmp_path, target, context=4096)
    assert caught.value.field == "context"
    with pytest.raises(InvalidRequest, match="in which the prompt stands") as caught:
        made(tmp_path, target, sampling={"max_tokens": 256})
    assert caught.value.field == "sampling.max_tokens"
    with pytest.raises(ModelError):
        made(tmp_path, "no-such-model")
    silent = save_target(tmp_path / "silent", "")
    with pytest.raises(InvalidRequest, match="with a chat template"):
        made(tmp_path, silent)


def test_encode_chat_takes_tools(target: Path, tmp_path: Path) -> None:
    _, _, asker = made(tmp_path, target)
    messages = [{"role": "user", "content": "hi"}]
    without = encode_chat(asker.target.tokenizer, messages)
    assert encode_chat(asker.target.tokenizer, messages, TOOLS)[-len(without) :] == without

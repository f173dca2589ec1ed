"""Our reading of a tokenizer's files is that of transformers, which models are made for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from paceline.core import ModelError
from paceline.models.catalog import pull
from paceline.models.chat_template import render
from paceline.models.tokenizer import Tokenizer, load_tokenizer, template_variables

TEXTS = (
    "", "Hello, world!", "  two  spaces\n\n\ttab ", "naïve café — 你好, мир 🙂🇩🇪",
    "1234567890 x1y2", "<|im_start|>user\nHi<|im_end|>", "<tool> </tool> <s> </s>",
    "def f(x):\n    return x ** 2\n",
    "e\u0301 \u00a0 \u200b \ufffd",
)  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "find", "description": "Finds <it> & says 'so'.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}  # fmt: skip
TEMPLATE = """\
{%- if tools %}
  {{- '<|im_start|>system\\n' }}
  {%- for tool in tools %}
    {{- tool | tojson }}
    {{- tool | tojson(indent=2) }}
  {%- endfor %}
  {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last='') %}
{%- for message in messages %}
  {%- if message.role == 'forbidden' %}{{ raise_exception('No such role.') }}{% endif %}
  {%- if loop.index > 9 %}{% break %}{% endif %}
  {% generation %}
  {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') | trim + '<|im_end|>\\n' }}
  {%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content }}{% endif %}
  {% endgeneration %}
  {%- set ns.last = message.role %}
{%- endfor %}
{{- bos_token }}{{ ns.last }}{{ dict(a=1)['a'] }}{{ documents }}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}
"""
VARIABLES = [
    (TEMPLATE, ["enable_thinking"]),
    ("{% set thinking = thinking | default(true) %}{{ thinking }}", ["thinking"]),
    ("{% if not date is defined %}{% set date = strftime_now('%d') %}{% endif %}", ["date"]),
    ("{% macro told() %}{{ effort }}{% endmacro %}{{ told() }}{{ range(3) }}", ["effort"]),
    ("{{ messages }}{{ tools }}{{ documents }}{{ eos_token }}", []),
    ("{% if %}", []),
]
CHATS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": " Be <brief> & 'kind'. ", "name": None},
        {"role": "user", "content": "Hä? \n"},
        {"role": "assistant", "content": "Well", "thinking": "hm"},
    ],
)


def save(folder: Path, backend: Backend, **config: Any) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    stated = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    return folder


def byte_level(folder: Path) -> Path:
    """As of Qwen and SmolLM: tokens that only tokenizer_config.json adds, and a template."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|im_start|>"], initial_alphabet=alphabet
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    size = backend.get_vocab_size()
    added = {
        str(size + 1): {"content": "<tool>", "special": False, "rstrip": True},
        str(size): {"content": "<|im_end|>", "special": True, "normalized": False},
    }
    return save(
        folder, backend, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<pad>",
        added_tokens_decoder=added, additional_special_tokens=["<extra>"], chat_template=TEMPLATE,
    )  # fmt: skip


def with_ends(folder: Path) -> Path:
    """As of Llama 2: marks for spaces, bytes for what is unknown. Where there is a tokenizer.json,
    transformers ignores add_bos_token."""
    backend = Backend(models.BPE(unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", "<s>", "</s>", *bytes_])
    backend.train_from_iterator(TEXTS * 3, trainer)
    token = {
        "__type": "AddedToken",
        "content": "</s>",
        "lstrip": False,
        "normalized": False,
        "special": True,
    }
    return save(
        folder, backend, bos_token="<s>", eos_token=token, unk_token="<unk>",
        add_bos_token=True, add_eos_token=False,
    )  # fmt: skip


def with_its_own_ends(folder: Path) -> Path:
    """As of Llama 3: tokenizer.json says how texts begin; its cut-off and padding do not count."""
    backend = Backend(models.Unigram([("<unk>", 0.0), ("<s>", 0.0), ("▁", -1.0)], unk_id=0))
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "<s>"], unk_token="<unk>"
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(TEXTS * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    backend.enable_truncation(3)
    backend.enable_padding(length=5)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return save(folder, backend, bos_token="<s>", unk_token="<unk>")


def with_conflicting_flags(folder: Path) -> Path:
    """The configuration says other flags of the same tokens, and has a template for tools."""
    byte_level(folder)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("</tool>")])
    backend.add_special_tokens([AddedToken("<|im_end|>", lstrip=True), AddedToken("x1")])
    ids = {text: str(backend.token_to_id(text)) for text in ("<tool>", "</tool>", "<|im_end|>")}
    added = {
        ids["<tool>"]: {"content": "<tool>", "special": True, "rstrip": True, "normalized": False},
        ids["</tool>"]: {"content": "</tool>", "special": False, "lstrip": True},
        ids["<|im_end|>"]: {"content": "<|im_end|>", "special": False, "lstrip": False},
    }
    templates = [
        {"name": "default", "template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
        {"name": "tool_use", "template": TEMPLATE},
    ]
    return save(
        folder, backend, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="x1",
        added_tokens_decoder=added, chat_template=templates,
    )  # fmt: skip


def downloaded(folder: Path) -> Path:
    return pull("smollm2-135m")


@pytest.fixture(
    params=[
        byte_level,
        with_ends,
        with_its_own_ends,
        with_conflicting_flags,
        pytest.param(downloaded, marks=pytest.mark.model),
    ]
)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, Any]:
    folder = request.param(tmp_path)
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    return load_tokenizer(folder, "it"), theirs


def test_texts_become_the_same_tokens_and_tokens_the_same_texts(
    both: tuple[Tokenizer, Any],
) -> None:
    ours, theirs = both
    for text in TEXTS:
        for special in (False, True):
            ids = ours(text, add_special_tokens=special)["input_ids"]
            assert ids == theirs(text, add_special_tokens=special)["input_ids"], text
            assert ours.decode(ids) == theirs.decode(ids)
            plain = theirs.decode(ids, skip_special_tokens=True)
            assert ours.decode(ids, skip_special_tokens=True) == plain
            backends = [tokenizer.backend_tokenizer for tokenizer in both]
            pieces = [[backend.decode([token]) for token in ids] for backend in backends]
            assert pieces[0] == pieces[1]  # what streams decode
    assert ours.decode(5) == theirs.decode(5)


def test_the_vocabulary_and_special_tokens_are_the_same(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    assert len(ours) == len(theirs) and ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    flags = [
        {token: repr(added) for token, added in one.added_tokens_decoder.items()} for one in both
    ]
    assert flags[0] == flags[1]
    assert ours.special_tokens == theirs.special_tokens_map
    for role in ("bos", "eos", "pad"):
        assert getattr(ours, f"{role}_token_id") == getattr(theirs, f"{role}_token_id")
    for token in (0, 7, len(ours) - 1, len(ours) + 5):
        assert ours.convert_ids_to_tokens(token) == theirs.convert_ids_to_tokens(token)
    named = theirs.chat_template
    templates = (named["default"], named["tool_use"]) if isinstance(named, dict) else (named, None)
    assert (ours.chat_template, ours.tool_template) == templates


@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("chat", CHATS)
def test_conversations_become_the_same_text(
    both: tuple[Tokenizer, Any], chat: list[dict[str, Any]], tools: Any
) -> None:
    ours, theirs = both
    if ours.chat_template is None:
        with pytest.raises(ValueError, match="no chat template"):
            ours.apply_chat_template(chat)
        return
    wishes: list[dict[str, Any]] = [
        {"add_generation_prompt": True},
        {"add_generation_prompt": False, "enable_thinking": False},
        {"continue_final_message": True},
    ]
    for wish in wishes:
        text = ours.apply_chat_template(chat, tools=tools, **wish)
        assert text == theirs.apply_chat_template(chat, tools=tools, tokenize=False, **wish)


@pytest.mark.parametrize(
    ("template", "chat", "error", "words"),
    [
        (TEMPLATE, [{"role": "forbidden", "content": ""}], TemplateError, "No such role"),
        ("{{ messages[0].__class__ }}{{ x.__init__.__globals__ }}", None, TemplateError, ""),
        ("{% set n = namespace(_a=1) %}", None, TemplateError, "_a"),
        ("{% set n = namespace() %}{% set n.__x = 1 %}", None, TemplateError, "__x"),
        ("{{ messages.append(1) }}", None, TemplateError, "append"),
        ("{% for %}", None, TemplateError, ""),
        (TEMPLATE, [], ValueError, "no messages"),
        (TEMPLATE, [{"role": "user", "content": object()}], TypeError, "object is no JSON"),
        (TEMPLATE, ["Hi"], TypeError, "not str"),
    ],
)
def test_what_a_template_cannot_take_or_may_not_do_is_an_error(
    template: str, chat: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        render(template, [{"role": "user", "content": "Hi"}] if chat is None else chat)


@pytest.mark.parametrize(("template", "variables"), VARIABLES)
def test_the_variables_that_a_template_reads_are_told(template: str, variables: list[str]) -> None:
    tokenizer = Tokenizer(Backend(models.BPE()), {}, template, "{{ of_tools }}")
    assert template_variables(tokenizer, with_tools=False) == variables
    assert template_variables(tokenizer, with_tools=True) == ["of_tools"]


def test_a_last_message_that_the_template_hides_cannot_be_continued() -> None:
    chat = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ValueError, match="does not show the last message"):
        render("{{ messages[0].role }}", chat, continue_final_message=True)
    with pytest.raises(ValueError, match="exclude each other"):
        render("", chat, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(ValueError, match="no text to continue"):
        render("", [{"role": "user"}], continue_final_message=True)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("tokenizer.json", '{"model": ', "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json: not valid JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: expected a JSON object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}', "cannot be read"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, file: str, text: str, words: str) -> None:
    byte_level(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ModelError, match=words):
        load_tokenizer(tmp_path, "it")


def test_a_start_imports_no_transformers() -> None:
    """It would take as long as torch."""
    code = "import sys, paceline.llm, paceline.server.run; print('transformers' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"

"""A tiny random target that speaks printable ASCII, with a chat template, roles and tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.synth.app import App, read_app
from paceline.synth.ask import Asker, load_target
from paceline.synth.sources import Source, read_sources
from tests.engine.tiny import hf_json, tiny_config
from tests.random_weights import random_weights

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tool_call> is how to call {{ tools | tojson }}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUIET = "<think>\n\n</think>\n\n"  # as Qwen3's template writes it where thinking is off
WITH_MODES = TEMPLATE.replace(
    "assistant\n{% endif %}",
    f"assistant\n{{% if enable_thinking is false %}}{QUIET}{{% endif %}}{{% endif %}}",
)
WITHOUT_SYSTEM = TEMPLATE.replace(
    "{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"
)


def tokenizer(template: str = TEMPLATE, spare: int = 0) -> Any:
    letters = {chr(byte): byte for byte in range(33, 127)} | {"Ġ": 32, "Ċ": 10}
    vocab = {letter: i for i, letter in enumerate(sorted(letters, key=lambda c: letters[c]))}
    made = Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([START, END, *(f"<|spare_{i}|>" for i in range(spare))])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)
    fast.chat_template = template
    return fast


def save_target(folder: Path, template: str = TEMPLATE, seed: int = 0, spare: int = 0) -> Path:
    """A Hugging Face folder. Its logits are all but even, so that an answer ends now and then."""
    words = tokenizer(template, spare)
    config = tiny_config(vocab_size=len(words))
    folder.mkdir(parents=True, exist_ok=True)
    weights = random_weights(config, seed, torch.bfloat16)
    save_file({name: weight.contiguous() for name, weight in weights.items()},
              folder / "model.safetensors")  # fmt: skip
    words.save_pretrained(folder)
    hf = hf_json(config, words.eos_token_id)
    (folder / "config.json").write_text(json.dumps(hf))
    return folder


def write_prompts(path: Path, count: int = 60, word: str = "question") -> Path:
    lines = [json.dumps({"prompt": f"{word} number {i}?"}) for i in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def description(folder: Path, model: Path | str, **changes: Any) -> dict[str, Any]:
    """An application with a source of each part. Writes their prompts into `folder`."""
    for name in ("task", "chat", "far"):
        write_prompts(folder / f"{name}.jsonl", word=name)
    given = {
        "name": "tiny",
        "model": str(model),
        "system": "Be brief.",
        "template": "Q: {prompt}",
        "sampling": {"temperature": 3.0, "max_tokens": 24},
        "context": 256,
        "shard": 16,
        "size": {"rows": 40},
        "sources": [
            {"name": "task", "kind": "jsonl", "path": "task.jsonl"},
            {"name": "chat", "kind": "jsonl", "path": "chat.jsonl", "part": "replay"},
            {"name": "far", "kind": "jsonl", "path": "far.jsonl", "part": "neighbour"},
        ],
        **changes,
    }
    return {name: value for name, value in given.items() if value is not None}


def made(folder: Path, model: Path | str, **changes: Any) -> tuple[App, list[Source], Asker]:
    """An application with everything that is there before the first answer."""
    app = read_app(description(folder, model, **changes), folder)
    sources = read_sources(app.sources, app.seed)
    target = load_target(app)
    return app, sources, Asker(app, target)

"""A tiny target with a drafter that learnt its answers, and servers of the two."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paceline.engine.async_engine import AsyncEngine
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from tests.engine.tiny import save_tiny
from tests.models.dflash.trained import train_tiny
from tests.server.conftest import listening

WITHOUT_BFLOAT16 = ("DEFAULT", "AVX2")  # what torch calls CPUs without its instructions
CAPABILITY = torch.backends.cpu.get_cpu_capability()
# What vLLM computes in: without instructions for bfloat16 it takes minutes for a few answers.
VLLM_DTYPE = "float32" if CAPABILITY in WITHOUT_BFLOAT16 else "bfloat16"
PROMPTS = ["the quick brown fox", "one two three", "zebra", "a b c d e f g", "lorem ipsum dolor"]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ENGINE: dict[str, Any] = {"dtype": "float32", "backend": "torch", "threads": 1,
                          "kv_memory": 2**24}  # fmt: skip


def make_pair(home: Path) -> tuple[Path, Path]:
    """Return a target with a chat template, and a drafter that is well."""
    target = home / "target"
    target.mkdir()
    save_tiny(target, blur=0.0, num_layers=5)
    told = json.loads((target / "tokenizer_config.json").read_text())
    (target / "tokenizer_config.json").write_text(json.dumps({**told, "chat_template": TEMPLATE}))
    asked = [f"user: {prompt}\n" for prompt in PROMPTS]
    options = {"taps": (1, 2), "target_layers": 5, "block": 6}
    return target, train_tiny(home / "drafter", target, asked, **options)


def write_prompts(home: Path, prompts: Sequence[str] = PROMPTS) -> Path:
    path = home / "few.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    return path


@contextmanager
def serving(target: Path, drafter: Path | None, **options: Any) -> Iterator[str]:
    """`paceline serve` in this process, on a port of its own; gives its URL."""
    spec = "none" if drafter is None else f"mine={drafter}"
    config = EngineConfig(model=str(target), drafter=spec, **{**ENGINE, **options})
    with listening(AsyncEngine(build_engine(config))) as server:
        yield server.url

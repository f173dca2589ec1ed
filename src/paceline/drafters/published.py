"""Public drafters on the hub, as their authors list them; nothing here is downloaded or tried.

Source: the table of models in README.md of github.com/z-lab/dflash, commit 0a2da2366b9b.
"""

from __future__ import annotations

from dataclasses import dataclass

WITHOUT_THINKING = "for answers without thinking"


@dataclass(frozen=True, slots=True)
class PublishedDrafter:
    """A DFlash drafter of the first generation: the hub ids of its target and of itself."""

    target: str
    drafter: str
    note: str = ""


PUBLISHED = (
    PublishedDrafter("Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", WITHOUT_THINKING),
    PublishedDrafter("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", WITHOUT_THINKING),
    PublishedDrafter("Qwen/Qwen3-Coder-30B-A3B-Instruct", "z-lab/Qwen3-Coder-30B-A3B-DFlash"),
    PublishedDrafter("Qwen/Qwen3-Coder-Next", "z-lab/Qwen3-Coder-Next-DFlash"),
    PublishedDrafter("Qwen/Qwen3.5-4B", "z-lab/Qwen3.5-4B-DFlash"),
    PublishedDrafter("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash"),
    PublishedDrafter("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash"),
    PublishedDrafter("Qwen/Qwen3.5-35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash"),
    PublishedDrafter("Qwen/Qwen3.5-122B-A10B", "z-lab/Qwen3.5-122B-A10B-DFlash"),
    PublishedDrafter("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash", "a preview"),
    PublishedDrafter("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash"),
    PublishedDrafter("moonshotai/Kimi-K2.5", "z-lab/Kimi-K2.5-DFlash"),
    PublishedDrafter("openai/gpt-oss-20b", "z-lab/gpt-oss-20b-DFlash"),
    PublishedDrafter("openai/gpt-oss-120b", "z-lab/gpt-oss-120b-DFlash"),
    PublishedDrafter(
        "meta-llama/Llama-3.1-8B-Instruct",
        "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        "trained on the prompts of UltraChat",
    ),
)

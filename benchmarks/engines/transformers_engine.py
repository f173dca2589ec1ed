"""transformers' generate() in this process. Several prompts are padded to one static batch."""

from __future__ import annotations

import os
import time
from typing import Any


class Transformers:
    """`small` is the folder of a draft model, `batch` the most prompts in one call of generate."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._model, self._batch = _load(model), options.get("batch", 1)
        self._small = _load(options["small"]) if options.get("small") else None

    def generate(
        self, prompts: list[list[int]], max_tokens: int | list[int], **more: Any
    ) -> list[list[int]]:
        lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
        out: list[list[int]] = []
        for first in range(0, len(prompts), self._batch):
            some = slice(first, first + self._batch)
            out += self._batched(prompts[some], lengths[some], more.get("ignore_eos", True))
        return out

    def _batched(
        self, prompts: list[list[int]], lengths: list[int], ignore_eos: bool
    ) -> list[list[int]]:
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        longest = max(lengths)
        least = longest if ignore_eos else None
        made = self._model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=longest,
            min_new_tokens=least, pad_token_id=0,
        )  # fmt: skip
        texts = made[:, width:].tolist()
        return [text[:length] for text, length in zip(texts, lengths, strict=True)]

    def stream(
        self, prompt: list[int], max_tokens: int, speculative: str = "off"
    ) -> dict[str, Any]:
        """`speculative` is off, lookup or small."""
        import torch

        given: dict[str, dict[str, Any]] = {
            "off": {},
            "lookup": {"prompt_lookup_num_tokens": 10},
            "small": {"assistant_model": self._small},
        }
        ids, marks = torch.tensor([prompt]), Marks(len(prompt))
        made = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens,
            pad_token_id=0, streamer=marks, **given[speculative],
        )  # fmt: skip
        return {"tokens": made[0, len(prompt) :].tolist(), "marks": marks.marks}


class Marks:
    """A streamer that notes when how many tokens were there."""

    def __init__(self, prompt_tokens: int) -> None:
        self._start, self._count = time.perf_counter(), -prompt_tokens
        self.marks: list[tuple[float, int]] = []

    def put(self, ids: Any) -> None:
        self._count += ids.numel()
        if self._count > 0:  # the prompt comes first
            self.marks.append((time.perf_counter() - self._start, self._count))

    def end(self) -> None:
        pass


def _load(model: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)

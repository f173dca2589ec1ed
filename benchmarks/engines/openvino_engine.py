"""OpenVINO GenAI in this process, over a folder that `optimum-cli export openvino` made."""

from __future__ import annotations

import itertools
import time
from typing import Any

LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 3}  # as in OpenVINO's own sample
DRAFT = {"num_assistant_tokens": 4}


class OpenVino:
    """The pipeline that LLMPipeline runs on CPU, its prefix cache off. `lookup` drafts from the
    prompt, `small` is the folder of a draft model."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = options.get("max_num_seqs", scheduler.max_num_seqs)
        scheduler.cache_size = 2  # GiB
        more: dict[str, Any] = {}
        self._drafting: dict[str, int] = {}
        if options.get("lookup"):
            more, self._drafting = {"prompt_lookup": True}, LOOKUP
        elif options.get("small"):
            more["draft_model"] = openvino_genai.draft_model(options["small"], "CPU")
            self._drafting = DRAFT
        self._pipe = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", more)
        self._calls = itertools.count()

    def generate(
        self, prompts: list[list[int]], max_tokens: int | list[int], ignore_eos: bool = True
    ) -> list[list[int]]:
        lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
        settings = [self._settings(length, ignore_eos) for length in lengths]
        made = self._pipe.generate([_tensor(prompt) for prompt in prompts], settings)
        return [[int(token) for token in one.m_generation_ids[0]] for one in made]

    def stream(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        start, pipe = time.perf_counter(), self._pipe
        settings = self._settings(max_tokens, ignore_eos=False)
        handle = pipe.add_request(next(self._calls), _tensor(prompt), settings)
        tokens: list[int] = []
        marks = []
        while pipe.has_non_finished_requests():
            pipe.step()
            while handle.can_read():
                for output in handle.read().values():
                    tokens += output.generated_ids
            marks.append((time.perf_counter() - start, len(tokens)))
        return {"tokens": tokens, "marks": marks}

    def _settings(self, max_tokens: int, ignore_eos: bool) -> Any:
        settings = self._pipe.get_config()  # with the model's own ends of a text
        settings.max_new_tokens, settings.ignore_eos = max_tokens, ignore_eos
        settings.do_sample = False
        for name, value in self._drafting.items():
            setattr(settings, name, value)
        return settings


def _tensor(prompt: list[int]) -> Any:
    import numpy as np
    from openvino import Tensor

    return Tensor(np.array([prompt], dtype=np.int64))

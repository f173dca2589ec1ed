"""vLLM in this process."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any


class Vllm:
    def __init__(self, model: str, options: dict[str, Any]) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        # Its default keeps a core free and runs the engine in a second process; with few cores
        # this is what makes it fastest.
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", cores)
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from vllm import LLM

        defaults = {"max_model_len": 8192, "disable_log_stats": True}
        self.llm = LLM(
            model=model, dtype="bfloat16", enable_prefix_caching=False, **{**defaults, **options}
        )
        self._calls = itertools.count()

    def generate(
        self, prompts: list[list[int]], max_tokens: int | list[int], **more: Any
    ) -> list[list[int]]:
        lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
        given = [{"prompt_token_ids": p} for p in prompts]
        params = [_params(length, **{"ignore_eos": True, **more}) for length in lengths]
        outputs = self.llm.generate(given, params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    def stream(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        start, engine = time.perf_counter(), self.llm.llm_engine
        engine.add_request(
            f"call{next(self._calls)}", {"prompt_token_ids": prompt}, _params(max_tokens)
        )
        marks, tokens = [], []
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = list(output.outputs[0].token_ids)
                marks.append((time.perf_counter() - start, len(tokens)))
        return {"tokens": tokens, "marks": marks}

    def counts(self) -> dict[str, Any]:
        """Drafts so far, and draft tokens accepted by position; needs disable_log_stats False."""
        drafts, accepted = 0, []
        for metric in self.llm.get_metrics():
            if metric.name == "vllm:spec_decode_num_drafts":
                drafts += metric.value
            elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
                accepted = list(metric.values)
        return {"drafts": drafts, "accepted": accepted}


def _params(max_tokens: int, **more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 0, "max_tokens": max_tokens, **more})

"""One engine behind a pipe, so that several can be timed side by side in one run.

Run as `python workers.py BACKEND MODEL [JSON options]` by the interpreter that has the backend:
paceline, transformers, vllm or openvino. It answers one JSON line per request on its standard
output:

    {"op": "generate", "prompts": [[ids], …], "max_tokens": n, …} -> {"seconds": s, "tokens": …}

Every call starts with empty caches where the engine has any. An idle worker sleeps on its pipe.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


class Paceline:
    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from paceline import LLM

        self.llm = LLM(model, **{"drafter": None, "prefix_cache": False, **options})
        self._calls = itertools.count()

    def generate(self, prompts: list[list[int]], max_tokens: int, **more: Any) -> list[list[int]]:
        from paceline import SamplingParams
        from paceline.core import SpeculativeParams

        wish = SpeculativeParams(off=True) if more.pop("speculative", None) == "off" else None
        scope = more.pop("scope", None)
        options = {"temperature": 0, "ignore_eos": True, "max_tokens": max_tokens, **more}
        params = SamplingParams(**options)
        engine, call = self.llm.engine, f"call{next(self._calls)}"
        # A scope of its own for each call, if none is named: no cache has seen its texts before.
        salt = (scope or call).encode()
        requests = [
            engine.make_requests(p, params, wish, request_id=f"{call}.{i}", salt=salt)[0]
            for i, p in enumerate(prompts)
        ]
        engine.add(requests)
        while engine.has_work:
            engine.step()
        return [request.output_ids for request in requests]

    def counts(self) -> dict[str, Any]:
        """Drafts so far, and draft tokens accepted by position."""
        stats = self.llm.engine.stats().speculation
        accepted = [accepted for _, accepted in stats.by_position()]
        return {"drafts": stats.draft_rounds, "accepted": accepted}

    def bound(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """Median seconds of a decode step, and of reading the weights once between the steps."""
        from paceline import SamplingParams

        engine, steps, reads = self.llm.engine, [], []
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
        engine.add(engine.make_requests(prompt, params, request_id=f"bound{next(self._calls)}"))
        engine.step()
        while engine.has_work:
            steps.append(_seconds(engine.step))
            if len(steps) % 4 == 0:
                reads.append(_seconds(engine.runner.network.read_weights))
        return {"step": statistics.median(steps), "read": statistics.median(reads)}

    def memory(self) -> dict[str, int]:
        """Bytes resident when all KV is in use, and the plan: weights, and weights + KV."""
        plan = self.llm.engine.plan
        self.llm.engine.runner.network.allocate_kv(plan.num_blocks)
        self.llm.engine.runner.network._kv.data.fill_(0)  # every page is written, so it is there
        with open("/proc/self/status") as lines:
            resident = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        total = plan.weight_bytes + plan.kv_bytes
        return {"resident": resident * 1024, "weights": plan.weight_bytes, "plan": total}


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Transformers:
    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)

    def generate(self, prompts: list[list[int]], max_tokens: int, **more: Any) -> list[list[int]]:
        import torch

        out = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            tokens = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                pad_token_id=0,
            )
            out.append(tokens[0, len(prompt) :].tolist())
        return out


class Vllm:
    def __init__(self, model: str, options: dict[str, Any]) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
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

    def generate(self, prompts: list[list[int]], max_tokens: int, **more: Any) -> list[list[int]]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens, **more)
        given = [{"prompt_token_ids": p} for p in prompts]
        outputs = self.llm.generate(given, params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    def counts(self) -> dict[str, Any]:
        """Drafts so far, and draft tokens accepted by position; needs disable_log_stats False."""
        drafts, accepted = 0, []
        for metric in self.llm.get_metrics():
            if metric.name == "vllm:spec_decode_num_drafts":
                drafts += metric.value
            elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
                accepted = list(metric.values)
        return {"drafts": drafts, "accepted": accepted}


class OpenVino:
    """OpenVINO GenAI over a folder that `optimum-cli export openvino` made."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import openvino_genai

        self.pipe = openvino_genai.LLMPipeline(model, "CPU", **options)

    def generate(self, prompts: list[list[int]], max_tokens: int, **more: Any) -> list[list[int]]:
        import numpy as np
        import openvino_genai
        from openvino import Tensor

        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens, settings.ignore_eos, settings.do_sample = max_tokens, True, False
        out = []
        for prompt in prompts:
            made = self.pipe.generate(Tensor(np.array([prompt], dtype=np.int64)), settings)
            out.append([int(token) for token in made.tokens[0]])
        return out


BACKENDS = {
    "paceline": Paceline,
    "transformers": Transformers,
    "vllm": Vllm,
    "openvino": OpenVino,
}


def main() -> None:
    # Whatever libraries print goes to standard error; the pipe carries answers only.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    start = time.perf_counter()
    backend = BACKENDS[sys.argv[1]](sys.argv[2], options)
    print(json.dumps({"ready": time.perf_counter() - start}), file=pipe, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        operation = getattr(backend, request.pop("op"))
        start = time.perf_counter()
        result = operation(**request)
        answer = {"seconds": time.perf_counter() - start}
        answer |= result if isinstance(result, dict) else {"tokens": result}
        print(json.dumps(answer), file=pipe, flush=True)


if __name__ == "__main__":
    main()

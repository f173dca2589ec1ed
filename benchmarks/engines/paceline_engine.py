"""Paceline in this process."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any


class Paceline:
    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from paceline import LLM

        self.llm = LLM(model, **{"drafter": None, "prefix_cache": False, **options})
        self._calls = itertools.count()

    def generate(
        self, prompts: list[list[int]], max_tokens: int | list[int], **more: Any
    ) -> list[list[int]]:
        requests = self._add(prompts, max_tokens, {"ignore_eos": True, **more})
        engine = self.llm.engine
        while engine.has_work:
            engine.step()
        return [request.output_ids for request in requests]

    def stream(self, prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
        start = time.perf_counter()
        (request,) = self._add([prompt], max_tokens, more)
        engine, marks = self.llm.engine, []
        while engine.has_work:
            engine.step()
            marks.append((time.perf_counter() - start, request.output_len))
        return {"tokens": request.output_ids, "marks": marks}

    def _add(
        self, prompts: list[list[int]], max_tokens: int | list[int], more: dict[str, Any]
    ) -> list[Any]:
        """Queue the prompts. `speculative` is "off" or a drafter's name; `scope` names a cache."""
        from paceline import SamplingParams
        from paceline.core import SpeculativeParams

        lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
        drafter, scope = more.pop("speculative", None), more.pop("scope", None)
        wish = (
            SpeculativeParams(off=True) if drafter == "off" else SpeculativeParams(drafter=drafter)
        )
        call, requests = f"call{next(self._calls)}", []
        for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            params = SamplingParams(**{"temperature": 0, "max_tokens": length, **more})
            name = f"{call}.{index}"
            # A scope of its own, if none is named: no cache has seen its text before.
            salt = (scope or name).encode()
            requests += self.llm.engine.make_requests(
                prompt, params, wish, request_id=name, salt=salt
            )
        self.llm.engine.add(requests)
        return requests

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

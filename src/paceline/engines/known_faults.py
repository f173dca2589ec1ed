"""Faults of engines that are known, in one table: what a plan meets, and what to do instead.

A fault that gives wrong text or drafts that are all rejected refuses the plan; a lesser one is a
note. Versions are those of the issues: a fault counts from `since` up to, not including, `before`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from paceline.core import InvalidRequest
from paceline.engines.kind import LaunchPlan
from paceline.engines.pairing import Pairing

ISSUES = {
    "vllm": "https://github.com/vllm-project/vllm/issues/",
    "sglang": "https://github.com/sgl-project/sglang/issues/",
}
# The releases that the adapters are written for: they stand for a version that is not known.
TESTED = {"vllm": "0.32.0", "sglang": "0.5.23"}
LONG = 32_768
Condition = Callable[[LaunchPlan, Pairing], bool]


@dataclass(frozen=True, slots=True)
class KnownFault:
    """One fault: of which engine and versions, when a plan meets it, and its remedy."""

    engine: str
    issue: int
    applies: Condition
    symptom: str
    remedy: str
    since: str | None = None
    before: str | None = None
    refused: bool = True

    @property
    def name(self) -> str:
        return f"{self.engine}#{self.issue}"

    def concerns(self, version: str) -> bool:
        """Return whether a version of the engine has the fault."""
        release = _release(version)
        begun = self.since is None or release >= _release(self.since)
        return begun and (self.before is None or release < _release(self.before))

    def __str__(self) -> str:
        link = f"{ISSUES[self.engine]}{self.issue}"
        return f"{self.symptom} ({self.name}, {link}). {self.remedy}"


def _extra(plan: LaunchPlan) -> str:
    return " ".join(plan.extra)


def _other_attention(plan: LaunchPlan, pairing: Pairing) -> bool:
    """Whether the target's attention is another than FlashAttention, by its kind or an option."""
    named = re.search(r"attention-backend[ =]+(\S+)", _extra(plan))
    return pairing.latent or (named is not None and "FLASH_ATTN" not in named[1].upper())


def _is_cpu(plan: LaunchPlan) -> bool:
    named = re.search(r"--device[ =](\S+)", _extra(plan))
    built = plan.program is not None and plan.program.cpu
    return built if named is None else named[1] == "cpu"


def _reaches(plan: LaunchPlan, pairing: Pairing, position: int) -> bool:
    longest = plan.max_model_len or pairing.max_context
    return longest is not None and longest > position


KNOWN_FAULTS = (
    KnownFault(
        engine="vllm",
        issue=54282,
        before="0.29",
        applies=lambda plan, pairing: pairing.kind is not None and "probabilistic" in _extra(plan),
        symptom="With sampled drafts the text does not follow the target's distribution",
        remedy="Leave draft_sample_method at greedy, or use vLLM 0.29 or later.",
    ),
    KnownFault(
        engine="vllm",
        issue=54374,
        before="0.29",
        applies=lambda plan, pairing: (
            pairing.windowed and not _is_cpu(plan) and _other_attention(plan, pairing)
        ),
        symptom="A DFlash drafter with a window accepts nothing beside this attention backend",
        remedy="Use vLLM 0.29 or later, or let the target use FLASH_ATTN.",
    ),
    KnownFault(
        engine="vllm",
        issue=53912,
        applies=lambda plan, pairing: (
            pairing.kind == "mtp" and pairing.recurrent and plan.prefix_cache
        ),
        symptom="With the prefix cache, MTP drafts corrupt the text of targets with recurrent "
        "layers (vllm#43559 was closed without a fix)",
        remedy="Switch the prefix cache off with --no-prefix-cache, or draft with another kind.",
    ),
    KnownFault(
        engine="vllm",
        issue=52816,
        applies=lambda plan, pairing: (
            _is_cpu(plan) and pairing.block is not None and pairing.block.second is not None
        ),
        symptom="vLLM's model runner for CPUs drafts with DFlash drafters of the first generation "
        "only",
        remedy="Serve this DFlash 2 drafter with Paceline, or train one with "
        "`paceline train --generation dflash`.",
    ),
    KnownFault(
        engine="vllm",
        issue=55005,
        applies=lambda plan, pairing: _is_cpu(plan) and pairing.kind is not None,
        symptom="On CPUs, drafts are judged with an uninitialised temperature, top_k and top_p "
        "where T > 0: sampled text does not follow the target's distribution",
        remedy="On CPUs, draft for texts at T = 0 only, or serve sampled ones with Paceline.",
        refused=False,
    ),
    KnownFault(
        engine="vllm",
        issue=54360,
        since="0.25",
        applies=lambda plan, pairing: (
            pairing.kind is not None and pairing.recurrent and plan.prefix_cache
        ),
        symptom="With speculation the prefix cache never hits on targets with recurrent layers",
        remedy="Compare the hits of `paceline engine metrics` with those without a drafter.",
        refused=False,
    ),
    KnownFault(
        engine="vllm",
        issue=52873,
        applies=lambda plan, pairing: (
            pairing.kind == "mtp" and pairing.recurrent and _reaches(plan, pairing, LONG)
        ),
        symptom="With some quantised checkpoints MTP accepts nothing once a request has passed "
        f"position {LONG}, until the engine is restarted",
        remedy="Watch the acceptance length with `paceline engine metrics --watch`.",
        refused=False,
    ),
    KnownFault(
        engine="vllm",
        issue=49559,
        since="0.25",
        before="0.26",
        applies=lambda plan, pairing: pairing.foreign and not _is_cpu(plan),
        symptom="A DFlash drafter of speculators accepts nothing with vLLM's second model runner",
        remedy="Set VLLM_USE_V2_MODEL_RUNNER=0, or use a later vLLM.",
        refused=False,
    ),
    KnownFault(
        engine="vllm",
        issue=47014,
        before="0.32",
        applies=lambda plan, pairing: _is_cpu(plan) and bool(plan.draft_lens),
        symptom="A table of draft lengths by batch size crashes vLLM for CPUs when the length "
        "changes",
        remedy="Use vLLM 0.32 or later, where it works, or one draft length.",
    ),
    KnownFault(
        engine="vllm",
        issue=51510,
        since="0.26",
        before="0.32",
        applies=lambda plan, pairing: not _is_cpu(plan) and bool(plan.draft_lens),
        symptom="vLLM's second model runner ignores a table of draft lengths by batch size, and "
        "drafts in full",
        remedy="Use vLLM 0.32 or later, or one draft length.",
    ),
    KnownFault(
        engine="vllm",
        issue=49548,
        applies=lambda plan, pairing: (
            not _is_cpu(plan) and any(not length for _, _, length in plan.draft_lens)
        ),
        symptom="Throughput may collapse where the batch size goes to and fro across the place in "
        "the table at which drafts end",
        remedy="Measure under your load before you rely on the table.",
        refused=False,
    ),
    KnownFault(
        engine="sglang",
        issue=36782,
        applies=lambda plan, pairing: _is_cpu(plan) and pairing.kind == "dflash",
        symptom="SGLang does not run DFlash on a CPU",
        remedy="Serve this drafter with Paceline or vLLM.",
    ),
    KnownFault(
        engine="sglang",
        issue=38009,
        applies=lambda plan, pairing: (
            pairing.recurrent and pairing.block is not None and pairing.block.second is not None
        ),
        symptom="Greedy text with DFlash 2 may differ from that without drafts on targets with "
        "recurrent layers",
        remedy="Compare with a server without drafts before you rely on it.",
        refused=False,
    ),
    KnownFault(
        engine="sglang",
        issue=37326,
        applies=lambda plan, pairing: pairing.kind == "mtp" and pairing.recurrent,
        symptom="MTP drafts may accept less and less over hours on targets with recurrent layers, "
        "until the engine is restarted",
        remedy="Watch the acceptance length with `paceline engine metrics --watch`.",
        refused=False,
    ),
)


def check_faults(engine: str, plan: LaunchPlan, pairing: Pairing) -> tuple[str, ...]:
    """Return notes on the lesser faults that a plan meets. Raises InvalidRequest (field `plan`) for
    one that would break it."""
    known = plan.program and plan.program.version
    version = known or TESTED.get(engine, "0")
    met = [
        fault
        for fault in KNOWN_FAULTS
        if fault.engine == engine and fault.concerns(version) and fault.applies(plan, pairing)
    ]
    for fault in met:
        if fault.refused:
            what = f"{engine} {version}" if known else engine
            message = f"plan: {what} is known to break this. {fault}"
            raise InvalidRequest("plan", fault.name, fault.remedy, message)
    return tuple(str(fault) for fault in met)


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release: of 0.28.1rc1.dev43+g6f7df92a8, (0, 28, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("rc")[0])[:3])

"""Faults of engines that are known: plans that meet them are refused, with issue and remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.engines import KINDS
from paceline.engines.kind import LaunchPlan, Program
from paceline.engines.known_faults import KNOWN_FAULTS

from .configs import DFLASH, DFLASH2, HYBRID, LATENT, LLAMA, WINDOWED, folder

CONFIGS = {
    "llama": LLAMA, "hybrid": HYBRID, "latent": LATENT,
    "dflash": DFLASH, "dflash2": DFLASH2, "windowed": WINDOWED,
}  # fmt: skip


def planned(
    tmp_path: Path,
    target: str,
    drafter: str | None = None,
    *,
    version: str = "0.32.0",
    cpu: bool = False,
    **changes: object,
) -> LaunchPlan:
    program = Program(("engine",), version, cpu)
    made = None if drafter is None else folder(tmp_path / drafter, CONFIGS[drafter])
    plan = LaunchPlan(str(folder(tmp_path / target, CONFIGS[target])), made, program=program)
    return replace(plan, **changes)  # type: ignore[arg-type]


def refusal(engine: str, plan: LaunchPlan) -> str:
    with pytest.raises(InvalidRequest) as error:
        KINDS[engine].launch(plan)
    return str(error.value)


def test_sampled_drafts_are_refused_up_to_the_release_that_mended_them(tmp_path: Path) -> None:
    asked = ('--speculative-config.draft_sample_method="probabilistic"',)
    broken = planned(tmp_path, "llama", "dflash", version="0.28.1rc1.dev43+g6f7", extra=asked)
    said = refusal("vllm", broken)
    assert "vllm 0.28.1rc1.dev43+g6f7 is known to break this" in said
    assert "vllm#54282" in said and "use vLLM 0.29 or later" in said
    KINDS["vllm"].launch(replace(broken, program=Program(("vllm",), "0.29.0")))
    KINDS["vllm"].launch(replace(broken, extra=()))


def test_a_windowed_drafter_is_refused_beside_another_attention(tmp_path: Path) -> None:
    broken = planned(tmp_path, "latent", "windowed", version="0.28.0")
    assert "vllm#54374" in refusal("vllm", broken)
    named = planned(
        tmp_path, "llama", "windowed", version="0.28.0", extra=("--attention-backend=FLASHINFER",)
    )
    assert "vllm#54374" in refusal("vllm", named)
    KINDS["vllm"].launch(planned(tmp_path, "latent", "dflash", version="0.28.0"))
    KINDS["vllm"].launch(planned(tmp_path, "llama", "windowed", version="0.28.0"))
    KINDS["vllm"].launch(planned(tmp_path, "latent", "windowed", version="0.32.0"))


def test_mtp_on_recurrent_layers_is_refused_with_the_prefix_cache(tmp_path: Path) -> None:
    broken = planned(tmp_path, "hybrid", kind="mtp")
    said = refusal("vllm", broken)
    assert "vllm#53912" in said and "--no-prefix-cache" in said
    notes = KINDS["vllm"].launch(replace(broken, prefix_cache=False)).notes
    assert any("vllm#52873" in note for note in notes)  # contexts of 262144 pass position 32768
    short = replace(broken, prefix_cache=False, max_model_len=4096)
    assert KINDS["vllm"].launch(short).notes == ()


def test_sampled_text_with_drafts_on_cpus_is_a_note(tmp_path: Path) -> None:
    notes = KINDS["vllm"].launch(planned(tmp_path, "llama", "dflash", cpu=True)).notes
    assert any("vllm#55005" in note and "T > 0" in note for note in notes)
    assert KINDS["vllm"].launch(planned(tmp_path, "llama", cpu=True)).notes == ()
    assert KINDS["vllm"].launch(planned(tmp_path, "llama", "dflash")).notes == ()


def test_lost_prefix_hits_are_a_note(tmp_path: Path) -> None:
    notes = KINDS["vllm"].launch(planned(tmp_path, "hybrid", "dflash")).notes
    assert len(notes) == 1 and "vllm#54360" in notes[0]
    assert KINDS["vllm"].launch(planned(tmp_path, "hybrid", "dflash", version="0.24.0")).notes == ()
    assert KINDS["vllm"].launch(planned(tmp_path, "hybrid")).notes == ()
    assert KINDS["vllm"].launch(planned(tmp_path, "llama", "dflash")).notes == ()


def test_second_generation_drafters_need_a_gpu_on_vllm(tmp_path: Path) -> None:
    assert "vllm#52816" in refusal("vllm", planned(tmp_path, "llama", "dflash2", cpu=True))
    KINDS["vllm"].launch(planned(tmp_path, "llama", "dflash2"))
    KINDS["vllm"].launch(planned(tmp_path, "llama", "dflash", cpu=True))
    KINDS["paceline"].launch(planned(tmp_path, "llama", "dflash2", cpu=True))


def test_dflash_needs_a_gpu_on_sglang(tmp_path: Path) -> None:
    on_cpu = planned(tmp_path, "llama", "dflash", version="0.5.23", extra=("--device", "cpu"))
    assert "sglang#36782" in refusal("sglang", on_cpu)
    KINDS["sglang"].launch(replace(on_cpu, extra=()))


def test_every_fault_names_an_issue_and_a_remedy() -> None:
    for fault in KNOWN_FAULTS:
        text = str(fault)
        assert (
            f"https://github.com/{'vllm-project' if fault.engine == 'vllm' else 'sgl-project'}"
            in text
        )
        assert text.endswith(".") and str(fault.issue) in text
    assert len({fault.name for fault in KNOWN_FAULTS}) == len(KNOWN_FAULTS)

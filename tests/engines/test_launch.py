"""Launch lines: the words that serve a target and a drafter on each engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.engines import KINDS
from paceline.engines.kind import LaunchPlan, Program
from paceline.roofline.architecture.work import Options

from .configs import DFLASH, LLAMA, WINDOWED, folder

FLAGS = Path(__file__).with_name("recorded") / "sglang_flags.json"


def value(command: tuple[str, ...], flag: str) -> str:
    return command[command.index(flag) + 1]


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    drafter = folder(tmp_path / "drafter", DFLASH)
    target = folder(tmp_path / "target", LLAMA)
    return LaunchPlan(str(target), drafter, port=8123)


def changed(plan: LaunchPlan, **changes: object) -> LaunchPlan:
    from dataclasses import replace

    return replace(plan, **changes)  # type: ignore[arg-type]


def test_vllm_serves_the_drafters_whole_block(plan: LaunchPlan) -> None:
    command = KINDS["vllm"].launch(plan).command
    assert command[:3] == ("vllm", "serve", plan.target)
    assert json.loads(value(command, "--speculative-config")) == {
        "method": "dflash",
        "model": str(plan.drafter),
        "num_speculative_tokens": 7,
    }
    assert value(command, "--per-request-spec-decode-metrics") == "detailed"
    assert value(command, "--port") == "8123"
    assert "--enable-prompt-tokens-details" in command


def test_without_a_drafter_nothing_is_said_of_drafts(plan: LaunchPlan) -> None:
    bare = changed(plan, drafter=None)
    for name in ("vllm", "sglang"):
        assert not [word for word in KINDS[name].launch(bare).command if "spec" in word]
    assert value(KINDS["paceline"].launch(bare).command, "--drafter") == "none"


def test_options_have_each_engines_own_names(plan: LaunchPlan) -> None:
    stated = changed(
        plan,
        draft_len=3,
        max_model_len=512,
        max_num_seqs=4,
        prefix_cache=False,
        extra=("--dtype", "bfloat16"),
    )
    vllm = KINDS["vllm"].launch(stated).command
    assert json.loads(value(vllm, "--speculative-config"))["num_speculative_tokens"] == 3
    assert value(vllm, "--max-model-len") == "512" and value(vllm, "--max-num-seqs") == "4"
    assert "--no-enable-prefix-caching" in vllm and vllm[-2:] == ("--dtype", "bfloat16")
    sglang = KINDS["sglang"].launch(stated).command
    assert value(sglang, "--speculative-num-draft-tokens") == "4"  # the anchor's row is counted
    assert value(sglang, "--context-length") == "512"
    assert value(sglang, "--max-running-requests") == "4"
    assert "--disable-radix-cache" in sglang
    ours = KINDS["paceline"].launch(stated).command
    assert value(ours, "--drafter") == f"dflash:{plan.drafter},max_draft_len=3"
    assert "--no-prefix-cache" in ours and value(ours, "--spec-metrics") == "detailed"


def test_sglang_is_given_options_that_it_has(plan: LaunchPlan) -> None:
    recorded = json.loads(FLAGS.read_text())
    assert recorded["version"] == "0.5.23"
    spread = Options(tensor_parallel=2, data_parallel=2, expert_parallel=4)
    plans = [
        changed(plan, max_model_len=512, max_num_seqs=4, prefix_cache=False),
        changed(plan, drafter=None, kind="mtp", devices=spread),
        changed(plan, drafter=None, kind="ngram"),
    ]
    for each in plans:
        used = {word for word in KINDS["sglang"].launch(each).command if word.startswith("--")}
        assert used and used <= set(recorded["flags"])


def test_the_installed_program_begins_the_line(plan: LaunchPlan) -> None:
    script = changed(plan, program=Program(("/env/bin/vllm", "serve"), "0.32.0"))
    assert KINDS["vllm"].launch(script).command[:3] == ("/env/bin/vllm", "serve", plan.target)
    module = changed(plan, program=Program(("/env/bin/python", "-m", "api_server"), "0.32.0"))
    words = ("/env/bin/python", "-m", "api_server", "--model", plan.target)
    assert KINDS["vllm"].launch(module).command[:5] == words


def test_look_ups_need_no_drafter(plan: LaunchPlan) -> None:
    look_up = changed(plan, drafter=None, kind="ngram", draft_len=4)
    config = json.loads(value(KINDS["vllm"].launch(look_up).command, "--speculative-config"))
    assert config["method"] == "ngram" and config["num_speculative_tokens"] == 4
    with pytest.raises(InvalidRequest, match=r"drafter: got .* expected none for ngram"):
        KINDS["vllm"].launch(changed(plan, kind="ngram"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"draft_len": 8}, "draft_len: got 8; expected 1 to 7, the drafter's block"),
        ({"drafter": None, "draft_len": 4}, "draft_len: got 4; expected a drafter beside it"),
        ({"drafter": None, "kind": "dflash"}, "expected a drafter's folder for dflash"),
        ({"kind": "tree"}, "kind: got 'tree'; expected one of "),
        ({"drafter": Path("/nowhere")}, "drafter: got '/nowhere'; expected a drafter's folder"),
        ({"extra": ("--port=9",)}, "extra: got '--port=9'"),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "paceline"])
def test_parts_that_do_not_go_together_are_refused(
    plan: LaunchPlan, engine: str, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        KINDS[engine].launch(changed(plan, **changes))
    assert said in str(error.value)


def test_what_an_engine_lacks_is_said(plan: LaunchPlan) -> None:
    with pytest.raises(InvalidRequest, match="SGLang has no suffix drafter"):
        KINDS["sglang"].launch(changed(plan, drafter=None, kind="suffix"))
    with pytest.raises(InvalidRequest, match="Paceline serves on one device"):
        KINDS["paceline"].launch(changed(plan, devices=Options(tensor_parallel=2)))


def test_a_speculators_folder_and_a_small_model_are_told_apart(tmp_path: Path) -> None:
    small = folder(tmp_path / "small", LLAMA)
    plan = LaunchPlan(str(folder(tmp_path / "target", LLAMA)), small)
    config = json.loads(value(KINDS["vllm"].launch(plan).command, "--speculative-config"))
    assert config["method"] == "draft_model"
    eagle = folder(tmp_path / "eagle", {"architectures": ["LlamaForCausalLMEagle3"]})
    command = KINDS["sglang"].launch(changed(plan, drafter=eagle)).command
    assert value(command, "--speculative-algorithm") == "EAGLE3"


def test_a_drafter_is_replaced_by_a_new_replica_never_by_new_weights(plan: LaunchPlan) -> None:
    windowed = folder(plan.drafter.with_name("new"), WINDOWED) if plan.drafter else None
    for kind in KINDS.values():
        steps = kind.replacement(changed(plan, drafter=windowed))
        assert str(windowed) in steps[0]
        assert not any("update_weights" in step for step in steps)

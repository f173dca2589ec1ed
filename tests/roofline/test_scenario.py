"""Predictions as users and the page ask for them: the numbers and their shape."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from paceline.core import InvalidRequest
from paceline.roofline.acceptance import AcceptanceModel, Geometric
from paceline.roofline.architecture import model_names, read_architecture
from paceline.roofline.architecture.work import MEASURED
from paceline.roofline.cost import (
    Deployment,
    DrafterCost,
    Options,
    Workload,
    share_of_step,
    speedup_curve,
)
from paceline.roofline.cost.capacity import capacity
from paceline.roofline.cost.drafters import block, mtp
from paceline.roofline.device import PRESETS, hardware
from paceline.roofline.scenario import Prediction, StatedScenario, predict, prediction_schema
from tests.roofline.golden import by_batch, forward_time
from tests.roofline.scenarios import DENSE, EXPERTS, HYBRID, TINY

RUN = ("tensor_parallel", "data_parallel", "expert_parallel", "snapshots", "state_precision")
GROUPS = {**EXPERTS, "tensor_parallel": 2, "data_parallel": 4, "expert_parallel": 8}
ALIKE = {**EXPERTS, "correlation": "measured"}
REPLAY = {**HYBRID, "batch": 64, "snapshots": "replay", "state_precision": "bf16"}


def curve_of(
    stated: dict[str, Any],
    cost: DrafterCost,
    acceptance: AcceptanceModel,
    calibration: str,
    most: int,
) -> Any:
    stated_options = {name: stated[name] for name in RUN if name in stated}
    if stated.get("correlation") == "measured":
        stated_options["correlation"] = MEASURED
    options = Options(**stated_options)
    load = Workload(stated.get("batch", 1), 1, stated.get("context", 4096))
    deployment = Deployment(read_architecture(stated["model"]), hardware("B200"), options)
    numbers = PRESETS[calibration]
    return speedup_curve(deployment, cost, acceptance, load, numbers, max_draft=most)


@pytest.mark.parametrize("stated", [DENSE, HYBRID, EXPERTS, GROUPS, ALIKE, REPLAY])
@pytest.mark.parametrize("tier", ["roofline", "calibrated"])
def test_the_fast_numbers_are_those_of_the_plain_curve(stated: dict[str, Any], tier: str) -> None:
    answer = predict(stated)
    name = answer["calibration"]["name"] if tier == "calibrated" else "ideal"
    for drafter, cost in zip(
        answer["drafters"], (share_of_step(0.1), share_of_step(0.1, 16)), strict=True
    ):
        acceptance = Geometric(0.75 if drafter["kind"] == "mtp" else 0.89)
        plain = curve_of(stated, cost, acceptance, name, 16)
        found = drafter["curve"][tier]
        assert drafter["curve"]["acceptance_length"] == pytest.approx(
            [row.acceptance_length for row in plain]
        )
        for key, values in {
            "speedup": [row.speedup for row in plain],
            "step_ms": [1e3 * row.step_seconds for row in plain],
            "draft_ms": [1e3 * row.draft_seconds for row in plain],
            "tpot_ms": [1e3 * row.tpot for row in plain],
            "break_even_length": [row.break_even_length for row in plain],
            "tokens_per_second_per_device": [row.tokens_per_second_per_device for row in plain],
        }.items():
            assert found[key] == pytest.approx(values, rel=1e-9), key


def test_drafters_that_are_computed_from_configs_agree_with_the_plain_curve() -> None:
    computed = [
        {"kind": "mtp", "acceptance": {"alpha": 0.75}},
        {"kind": "dflash", "config": TINY, "acceptance": {"alpha": 0.89}},
        {"kind": "draft_model", "config": "Qwen3-0.6B", "acceptance": {"alpha": 0.7}},
    ]
    answer = predict({**HYBRID, "drafters": computed, "batch": 4})
    target = read_architecture("Qwen3.5-27B")
    costs: list[tuple[DrafterCost, float]] = [(mtp(target), 0.75), (block(TINY, target), 0.89)]
    for drafter, (cost, alpha) in zip(answer["drafters"], costs, strict=False):
        stated = {**HYBRID, "batch": 4}
        most = drafter["max_draft"]
        plain = curve_of(stated, cost, Geometric(alpha), "sglang-b200", most)
        found = drafter["curve"]["calibrated"]["speedup"]
        assert found == pytest.approx([row.speedup for row in plain], rel=1e-9)
    assert answer["drafters"][1]["block"] == 15  # a block of 16 with its anchor
    assert answer["drafters"][2]["curve"]["roofline"]["draft_ms"][4] > 0


def test_optima_by_batch_are_the_plain_ones_and_ties_go_to_the_shorter_draft() -> None:
    answer = predict({**DENSE, "batches": [1, 8, 64]})
    found = answer["drafters"][0]["by_batch"]
    deployment = Deployment(read_architecture("Qwen3-8B"), hardware("B200"))
    plain = by_batch(deployment, share_of_step(0.1), Geometric(0.75), [1, 8, 64])
    assert found["batch"] == [1, 8, 64]
    assert found["roofline"]["draft_length"] == [row.draft_length for _, row in plain]
    assert found["roofline"]["speedup"] == pytest.approx([row.speedup for _, row in plain])
    useless = {"kind": "mtp", "cost": 0.0, "acceptance": {"alpha": 0}}
    best = predict({**DENSE, "drafters": [useless]})["drafters"][0]["optimum"]
    assert best["roofline"]["draft_length"] == 0 and best["roofline"]["speedup"] == 1


def test_the_heat_map_holds_the_optima() -> None:
    for drafter in predict(EXPERTS)["drafters"]:
        rows, best = drafter["heat_map"]["roofline"], drafter["by_batch"]["roofline"]
        assert drafter["heat_map"]["batch"] == drafter["by_batch"]["batch"]
        for row, length, speedup in zip(rows, best["draft_length"], best["speedup"], strict=True):
            assert row[length] == speedup == max(value for value in row if value is not None)


def test_components_sum_to_the_step() -> None:
    answer = predict(EXPERTS)
    for tier in ("roofline", "calibrated"):
        ar = answer["ar"][tier]
        assert sum(ar["components"].values()) == pytest.approx(ar["step_ms"])
        for drafter in answer["drafters"]:
            best = drafter["optimum"][tier]
            assert sum(best["components"].values()) == pytest.approx(best["step_ms"])
            assert best["components"]["draft"] == pytest.approx(best["draft_ms"])


def test_what_does_not_fit_is_null_and_said() -> None:
    answer = predict({**DENSE, "context": 32768, "batches": [1, 16, 4096]})
    most = answer["capacity"]["max_batch"]
    assert 16 < most < 4096
    for drafter in answer["drafters"]:
        assert drafter["by_batch"]["calibrated"]["speedup"][2] is None
        assert set(drafter["heat_map"]["calibrated"][2]) == {None}
        assert drafter["by_batch"]["fits"] == ["drafts", "drafts", "nothing"]
        assert None not in drafter["by_batch"]["calibrated"]["speedup"][:2]
    assert answer["ar_by_batch"]["roofline"]["tokens_per_second_per_device"][2] is None
    assert f"batches above {most} do not fit" in answer["notes"][-1]


def test_a_place_says_how_long_a_draft_it_holds() -> None:
    states = {**DENSE, "model": "Qwen3.5-35B-A3B", "hardware": "B200", "batches": [1, 512, 4096]}
    for drafter in predict({**states, "contexts": [4096]})["drafters"]:
        shown = drafter["heat_map"]["roofline"][0]
        best = drafter["by_batch"]
        assert best["max_draft"] == [len(shown) - 1, 0, None]  # AR alone fits
        assert best["fits"] == ["drafts", "no draft", "nothing"]
        assert best["calibrated"]["speedup"][1:] == [None, None]  # and not 1.00
        assert best["roofline"]["draft_length"][1:] == [None, None]
        assert drafter["by_context"]["max_draft"] == [len(shown) - 1]


def test_drafts_whose_state_snapshots_do_not_fit_are_left_out() -> None:
    """A hybrid keeps a snapshot of its states per drafted row: AR fits where drafts do not."""
    deployment = Deployment(read_architecture("Qwen3.5-27B"), hardware("B200"))
    plain = capacity(deployment, Workload(1, 1, 4096)).max_batch
    answer = predict({**HYBRID, "batch": plain, "batches": [plain]})
    shown = answer["drafters"][0]
    assert (shown["fits"], shown["max_draft"], shown["optimum"]) == ("no draft", 0, None)
    assert shown["curve"]["fits"] == [True] + 16 * [False]
    assert shown["curve"]["calibrated"]["speedup"] == [pytest.approx(1)] + 16 * [None]
    assert shown["heat_map"]["roofline"][0] == [pytest.approx(1)] + 16 * [None]
    assert shown["flags"]["vllm"]["command"] == "vllm serve MODEL"
    assert any("do not fit the memory" in note for note in answer["notes"])


def test_by_context_is_there_when_asked_for() -> None:
    assert predict(DENSE)["drafters"][0]["by_context"] is None
    view = predict({**DENSE, "contexts": [32768, 1024]})["drafters"][0]["by_context"]
    assert view["context"] == [1024, 32768]
    assert len(view["roofline"]["speedup"]) == 2


def test_the_answer_is_plain_json_and_repeats() -> None:
    answer = predict(DENSE)
    assert json.loads(json.dumps(answer)) == answer == predict(answer["scenario"])
    assert answer["format"] == "paceline-prediction/2"


def test_commits_are_those_of_the_served_draft_length() -> None:
    for drafter in predict(EXPERTS)["drafters"]:
        best = drafter["optimum"]["calibrated"]
        assert len(drafter["commits"]) == best["draft_length"] + 1
        mean = sum(n * share for n, share in enumerate(drafter["commits"], start=1))
        assert mean == pytest.approx(best["acceptance_length"])


def test_modal_s_published_numbers() -> None:
    """The page shows 1.0× at 0 and 1.6× at 16 for V4-Flash at batch 8, the article 20% and 3× for
    V4-Pro at batch 32: fractions of cost, no exchange between devices, "precision" as published."""
    pro = predict({**EXPERTS, "tensor_parallel": 1, "hardware": _large()})["drafters"]
    assert pro[0]["optimum"]["roofline"]["speedup"] == pytest.approx(1.2, abs=0.05)
    assert pro[1]["optimum"]["roofline"]["speedup"] == pytest.approx(3.0, abs=0.05)


def _large() -> dict[str, Any]:
    """A B200 of unlimited memory: a ratio of times does not hang on how many devices share them."""
    device = hardware("B200")
    return {
        "name": "B200 without a limit",
        "memory_bandwidth": device.memory_bandwidth,
        "peak": dict(device.peak),
        "memory": 1e15,
    }


def test_a_measured_profile_limits_the_draft_length() -> None:
    profile = {"kind": "mtp", "cost": 0.1, "acceptance": {"unconditional": [0.8, 0.6, 0.4]}}
    answer = predict({**DENSE, "drafters": [profile]})
    assert answer["drafters"][0]["curve"]["draft_length"] == [0, 1, 2, 3]
    assert answer["notes"][0] == "mtp: drafts of up to 3, as far as its acceptance is known"


def verify_ms(stated: dict[str, Any], draft: int = 8) -> float:
    return float(predict(stated)["drafters"][0]["curve"]["roofline"]["verify_ms"][draft])


@pytest.mark.parametrize(
    ("stated", "option"),
    [
        (EXPERTS, {"correlation": "measured"}),  # fewer experts are touched
        ({**HYBRID, "batch": 64}, {"snapshots": "replay"}),  # one state written, not one a row
        ({**HYBRID, "batch": 64}, {"state_precision": "bf16"}),
    ],
)
def test_an_option_makes_verifying_cheaper(stated: dict, option: dict) -> None:
    assert verify_ms({**stated, **option}) < 0.97 * verify_ms(stated)


def test_smaller_states_leave_room_for_more_requests() -> None:
    small = predict({**HYBRID, "state_precision": "bf16"})["capacity"]["max_batch"]
    assert small > predict(HYBRID)["capacity"]["max_batch"]


@pytest.mark.parametrize("stated", [DENSE, EXPERTS])
def test_the_front_is_nowhere_behind_plain_decoding(stated: dict) -> None:
    """Tokens a second per request against per device: speculation may be off at any batch."""
    answer = predict(stated)
    keys = ("tokens_per_second_per_request", "tokens_per_second_per_device")
    for drafter in answer["drafters"]:
        for tier in ("roofline", "calibrated"):
            plain, best = answer["ar_by_batch"][tier], drafter["by_batch"][tier]
            for key in keys:
                pairs = list(zip(plain[key], best[key], strict=True))
                assert all(new >= 0.999999 * old for old, new in pairs if None not in (old, new))
                assert sum(None not in pair for pair in pairs) >= 4


def test_devices_are_those_of_all_groups() -> None:
    answer = predict(GROUPS)
    assert answer["hardware"]["devices"] == 8
    ar = answer["ar"]["roofline"]
    shared = 32 * ar["tokens_per_second_per_request"] / 8
    assert ar["tokens_per_second_per_device"] == pytest.approx(shared)
    index = answer["ar_by_batch"]["batch"].index(32)
    by_batch = answer["ar_by_batch"]["roofline"]["tokens_per_second_per_device"][index]
    assert by_batch == pytest.approx(shared)


def test_a_model_gets_the_fewest_devices_that_hold_it() -> None:
    """Every listed model has an answer on the page's first device, with nothing else stated."""
    chosen = {}
    for name in model_names():
        answer = predict({**DENSE, "model": name, "batches": []})
        chosen[name] = answer["scenario"]["tensor_parallel"]
        assert answer["hardware"]["devices"] == chosen[name]
        if chosen[name] > 1:
            assert answer["notes"][0].startswith(f"{chosen[name]} devices share each layer")
            with pytest.raises(InvalidRequest, match="expected more or larger devices"):
                predict({**DENSE, "model": name, "tensor_parallel": chosen[name] // 2})
    assert (chosen["Qwen3-8B"], chosen["DeepSeek-V3"]) == (1, 8)
    with pytest.raises(InvalidRequest, match="expected more or larger devices"):
        predict({**DENSE, "model": "DeepSeek-V3", "hardware": "RTX-3090"})


def test_a_line_that_cannot_be_written_says_what_is_missing() -> None:
    ours = {
        name: predict({**DENSE, "model": name})["drafters"][0]["flags"]["paceline"]["missing"]
        for name in ("Qwen3-8B", "Qwen3.5-27B")
    }
    assert ours["Qwen3-8B"] == "Paceline has no mtp drafter"
    assert "Paceline does not serve the family qwen3_5 (it serves llama" in ours["Qwen3.5-27B"]
    block = predict({**DENSE, "model": "Qwen3.5-27B"})["drafters"][1]["flags"]["paceline"]
    assert block["command"] is None and "has no dflash" not in block["missing"]


def test_a_step_without_drafts_is_a_forward_of_one_row() -> None:
    options = Options(tensor_parallel=8)
    time_ = forward_time(
        read_architecture("DeepSeek-V4-Pro"), hardware("B200"), Workload(32, 1, 4096), options
    )
    assert predict(EXPERTS)["ar"]["roofline"]["step_ms"] == pytest.approx(1e3 * time_.total)


@pytest.mark.parametrize("stated", [DENSE, {**HYBRID, "contexts": [1024, 8192], "batch": 64}])
def test_an_answer_is_what_its_schema_says(stated: dict[str, Any]) -> None:
    answer = json.loads(json.dumps(predict(stated)))
    assert TypeAdapter(Prediction).validate_python(answer, strict=True) == answer
    jsonschema.validate(answer, {**prediction_schema(), "additionalProperties": False})


def test_a_scenario_has_a_schema_and_each_field_a_description() -> None:
    schema = StatedScenario.model_json_schema()
    jsonschema.validate(DENSE, schema)
    for name, part in {"StatedScenario": schema, **schema["$defs"]}.items():
        for field, told in part["properties"].items():
            assert told.get("description"), f"{name}.{field}"

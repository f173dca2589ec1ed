"""The time of a forward: what binds, what is written, what is shared out among devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.core import InvalidRequest
from paceline.roofline.architecture.work import MEASURED, Correlation, distinct_experts
from paceline.roofline.cost import Options, Workload
from paceline.roofline.device import IDEAL, PRESETS, Calibration, hardware, preset
from tests.roofline.golden import forward_time, model

B200 = hardware("B200")


def seconds(
    name: str,
    load: Workload,
    options: Options | None = None,
    calibration: Calibration = IDEAL,
) -> float:
    return forward_time(model(name), B200, load, options, calibration).total


def test_a_single_row_takes_the_weights_and_the_cache_at_full_bandwidth() -> None:
    dense = model("Qwen3-8B")
    read = 2 * dense.active_parameters() + dense.kv_bytes_per_token() * 1001
    logits = 4 * dense.vocabulary
    found = forward_time(dense, B200, Workload(1, 1, 1000)).total
    assert found == pytest.approx((read + logits) / 8e12, rel=1e-6)


def test_many_rows_take_the_arithmetic_at_peak() -> None:
    dense = model("Qwen3-8B")
    rows = 10**5
    found = forward_time(dense, B200, Workload(rows, 1, 0)).components
    body = dense.active_parameters() - dense.vocabulary * dense.hidden
    arithmetic = 2 * body * rows / 2250e12
    assert found["projections"] + found["feed_forward"] == pytest.approx(arithmetic)


def test_the_components_add_up() -> None:
    for name in ("DeepSeek-V4-Pro", "Qwen3.5-35B-A3B", "gpt-oss-120b", "GLM-5"):
        step = forward_time(model(name), B200, Workload(8, 4, 4096))
        assert step.total == pytest.approx(sum(step.components.values()))
        assert all(value >= 0 for value in step.components.values())


def test_a_verify_row_costs_next_to_nothing_while_memory_binds() -> None:
    """Drafts are free on a dense model, and not on a mixture: further tokens wake more experts."""
    one, five = Workload(1, 1, 4096), Workload(1, 5, 4096)
    assert seconds("Qwen3-8B", five) / seconds("Qwen3-8B", one) < 1.01
    assert seconds("Qwen3-235B-A22B", five) / seconds("Qwen3-235B-A22B", one) > 2


def test_windows_and_states_do_not_grow_with_the_context() -> None:
    def growth(name: str, part: str) -> float:
        near = forward_time(model(name), B200, Workload(8, 1, 8192)).components[part]
        far = forward_time(model(name), B200, Workload(8, 1, 65536)).components[part]
        return far / near

    assert growth("Qwen3.5-27B", "state") == 1
    assert growth("Qwen3.5-27B", "attention") == pytest.approx(8, rel=0.01)
    assert growth("DeepSeek-V4-Flash", "attention") < 3  # windows and chosen entries


def test_a_snapshot_per_row_replay_and_half_states() -> None:
    def state(rows: int, **options: str) -> float:
        load = Workload(16, rows, 4096)
        return forward_time(model("Qwen3.5-27B"), B200, load, Options(**options)).components[  # type: ignore[arg-type]
            "state"
        ]

    assert state(1) == state(1, snapshots="replay")
    assert state(16) / state(1) == pytest.approx(17 / 2)
    assert state(16, snapshots="replay") / state(1) == pytest.approx(1, abs=0.1)
    assert state(16, state_precision="bf16") == pytest.approx(state(16) / 2)


def test_sparse_selections_that_differ_are_read_apart() -> None:
    load = Workload(1, 2, 65536)
    shared = forward_time(model("GLM-5"), B200, load).components["attention"]
    apart = Options(selection_overlap=0.0)
    found = forward_time(model("GLM-5"), B200, load, apart).components["attention"]
    assert found == pytest.approx(2 * shared, rel=0.01)


def test_distinct_experts() -> None:
    assert distinct_experts(256, 8, 1) == pytest.approx(8)
    found = [round(distinct_experts(256, 8, count), 1) for count in (2, 4, 8, 16)]
    assert found == [15.8, 30.5, 57.4, 102.0]


def test_measured_correlation_touches_what_was_measured() -> None:
    depth = {4: 21.13, 16: 53.58}
    width = {8: 53.25, 16: 89.32}
    for count, seen in depth.items():
        assert distinct_experts(256, 8, MEASURED.tokens(1, count)) == pytest.approx(seen)
    for count, seen in width.items():
        assert distinct_experts(256, 8, MEASURED.tokens(count, 1)) == pytest.approx(seen)
    shares = [round(dict(MEASURED.depth)[count], 2) for count in (2, 4, 8, 16)]  # type: ignore[arg-type]
    assert shares == [0.62, 0.57, 0.51, 0.43]


def test_correlated_tokens_make_a_mixtures_verification_cheaper() -> None:
    load = Workload(1, 8, 4096)
    uniform = seconds("Qwen3.5-35B-A3B", load)
    alike = seconds("Qwen3.5-35B-A3B", load, Options(correlation=MEASURED))
    same = seconds("Qwen3.5-35B-A3B", load, Options(correlation=Correlation(depth=0.0)))
    assert same < alike < uniform


def test_tensor_parallel_shares_weights_and_pays_for_exchanges() -> None:
    load = Workload(1, 1, 4096)
    dense = model("Meta-Llama-3.1-70B")
    alone = forward_time(dense, B200, load)
    eight = forward_time(dense, B200, load, Options(tensor_parallel=8))
    quiet = forward_time(dense, B200, load, Options(tensor_parallel=8, communication="ignored"))
    assert quiet.total == pytest.approx(alone.total / 8)
    # two all-reduces per layer, and the logits' gather, at 5 µs a call
    assert eight.components["communication"] == pytest.approx(161 * 5e-6, rel=0.02)
    assert "communication" not in quiet.components


def test_a_latent_cache_is_not_shared_out() -> None:
    load, quiet = Workload(32, 1, 32768), Options(tensor_parallel=8, communication="ignored")
    latent = model("DeepSeek-V3")
    alone = forward_time(latent, B200, load).components["attention"]
    assert forward_time(latent, B200, load, quiet).components["attention"] == pytest.approx(alone)
    groups = Options(data_parallel=8, expert_parallel=8, communication="ignored")
    shared = forward_time(latent, B200, load, groups).components["attention"]
    assert shared == pytest.approx(alone / 8)


def test_dealt_experts_wait_for_the_busiest_device() -> None:
    load = Workload(256, 1, 1024)
    even = Options(data_parallel=8, expert_parallel=8)
    uneven = replace(even, expert_imbalance=1.5)
    mixture = model("DeepSeek-V3")
    experts = forward_time(mixture, B200, load, even).components["experts"]
    waited = forward_time(mixture, B200, load, uneven).components["experts"]
    assert waited == pytest.approx(experts * 1.5)


def test_a_device_without_a_link_stands_alone() -> None:
    with pytest.raises(InvalidRequest, match="link"):
        forward_time(
            model("Qwen3-8B"), hardware("Apple-M4-Max"), Workload(), Options(tensor_parallel=2)
        )


def test_a_calibration_is_the_identity_by_default_and_never_faster() -> None:
    load = Workload(8, 4, 4096)
    ideal = seconds("Qwen3-8B", load)
    assert seconds("Qwen3-8B", load, calibration=Calibration()) == ideal
    for change in (
        {"memory_efficiency": 0.5},
        {"overlap": 0.0},
        {"row_tile": 4096},
        {"half_rows": 1e4},
        {"attention_memory_efficiency": 0.5},
        {"sampling_efficiency": 0.5},
        {"step_overhead": 1e-3},
        {"layer_overhead": 1e-6},
        {"request_overhead": 1e-6},
        {"row_overhead": 1e-6},
    ):
        slower = Calibration.read(change)
        assert seconds("Qwen3-8B", load, calibration=slower) > ideal, change


def test_overheads_are_per_step_layer_request_and_row() -> None:
    load = Workload(8, 4, 4096)
    slow = Calibration(
        step_overhead=1.0, layer_overhead=1.0, request_overhead=1.0, row_overhead=1.0
    )
    extra = seconds("Qwen3-8B", load, calibration=slow) - seconds("Qwen3-8B", load)
    assert extra == pytest.approx(1 + 36 * (1 + 8 + 32))


def test_presets_and_their_refusals() -> None:
    assert preset("ideal") == Calibration()
    assert set(PRESETS) == {"ideal", "sglang-b200", "dense-tuned", "hybrid-sglang"}
    with pytest.raises(InvalidRequest, match="hybrid-sglang"):
        preset("fast")
    for wrong in (
        {"memory_efficiency": 0},
        {"overlap": 1.5},
        {"row_tile": 0.5},
        {"step_overhead": -1},
        {"speed": 1},
    ):
        with pytest.raises(InvalidRequest, match=rf"calibration\.{next(iter(wrong))}"):
            Calibration.read(wrong)


def test_what_autoregressive_decoding_measured_on_llama() -> None:
    """158.3 tok/s: Llama-3.1-8B, one H100, SGLang, one request (EAGLE-3 paper)."""
    dense, device = model("Meta-Llama-3.1-8B"), hardware("H100-SXM")
    tuned = preset("dense-tuned")
    step = forward_time(dense, device, Workload(1, 1, 256), calibration=tuned)
    assert 1 / step.total == pytest.approx(158.3, rel=0.05)


@pytest.mark.parametrize(
    ("name", "devices", "speeds"),
    [
        ("Qwen3.5-27B", 1, {1: 84, 8: 625, 16: 1121, 32: 1949}),
        ("Qwen3.5-35B-A3B", 1, {1: 235, 8: 1266, 16: 1954, 32: 2755}),
        ("Qwen3.5-122B-A10B", 8, {1: 250}),
        ("Qwen3.5-397B-A17B", 8, {1: 202.9}),
    ],
)
def test_what_autoregressive_decoding_measured_on_qwen(
    name: str, devices: int, speeds: dict[int, float]
) -> None:
    """Tokens per second by concurrency: B200, SGLang (cards of z-lab's drafters, LMSYS). The preset
    was set by the first of each row; the others are its predictions."""
    options = Options(tensor_parallel=devices, communication="ignored")
    for batch, measured in speeds.items():
        found = seconds(name, Workload(batch, 1, 2048), options, preset("hybrid-sglang"))
        assert batch / found == pytest.approx(measured, rel=0.12), batch


def test_a_switch_that_reduces_halves_the_traffic() -> None:
    load, dense = Workload(4096, 1, 128), model("Meta-Llama-3.1-70B")

    def exchanged(kind: str) -> float:
        options = Options(tensor_parallel=8, communication=kind)
        return forward_time(dense, B200, load, options).components["communication"]

    assert exchanged("in-network") == pytest.approx(exchanged("ring") * 8 / 14, rel=0.1)


def test_groups_send_tokens_to_their_experts_and_back() -> None:
    mixture, load = model("DeepSeek-V3"), Workload(4096, 1, 128)
    options = Options(data_parallel=8, expert_parallel=8)
    found = forward_time(mixture, B200, load, options).components["communication"]
    sent = 58 * (7 / 8) * (4096 / 8) * 8 * 7168 * 3 / 900e9  # fp8 there, bf16 back
    assert found == pytest.approx(sent + 58 * 2 * 5e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"batch": 1.5},
        {"rows_per_request": 0},
        {"context": -1},
        {"context": 10**9 + 1},
    ],
)
def test_a_workload_that_is_none_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Workload(**wrong)
    assert refused.value.field == next(iter(wrong))


def test_options_that_cannot_be_are_refused() -> None:
    for name, value in (
        ("tensor_parallel", 0),
        ("expert_parallel", 3),
        ("snapshots", "never"),
        ("communication", "smoke signals"),
        ("state_precision", "fp4"),
        ("selection_overlap", 2),
    ):
        with pytest.raises(InvalidRequest, match=name):
            Options(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="context"):
        forward_time(model("SmolLM2-135M-Instruct"), B200, Workload(1, 1, 10**6))

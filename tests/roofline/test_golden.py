"""Published values: the expected lengths, Finn's economics, Modal's calculator, and its claims."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from paceline.roofline.cost import (
    Deployment,
    DrafterCost,
    Options,
    SpeedupRow,
    Workload,
    share_of_step,
    speedup_curve,
)
from paceline.roofline.device import hardware
from tests.roofline.golden import FINN, FINN_DEVICE, Geometric, by_batch, model, optimum

MTP = (share_of_step(0.10), Geometric(0.75))
DFLASH = (share_of_step(0.10, per_block=16), Geometric(0.89))

FINN_MTP = """1:(1,1.171) 2:(1,1.064) 4:(0,1) 8:(0,1) 16:(3,1.028) 32:(5,1.352) 64:(4,1.668)
 100:(4,1.752) 128:(3,1.743) 256:(3,1.584) 512:(2,1.380) 1000:(1,1.218) 2048:(1,1.114)
 4096:(1,1.041) 10000:(0,1)"""
FINN_MTP_1K = "16:(4,1.039) 32:(6,1.41) 64:(5,1.793) 128:(4,1.956)"
FINN_MTP_128K = "16:(0,1) 32:(1,1.032) 64:(1,1.071)"
FINN_DFLASH = """1:(5,1.53) 2:(4,1.277) 4:(6,1.184) 8:(16,1.525) 16:(16,2.304) 32:(16,3.192)
 64:(14,3.656) 128:(10,3.357) 256:(8,2.599) 1000:(4,1.539) 4096:(2,1.125)"""


def finn(text: str) -> list[tuple[int, int, float]]:
    rows = []
    for entry in text.split():
        batch, pair = entry.split(":")
        length, speedup = pair.strip("()").split(",")
        rows.append((int(batch), int(length), float(speedup)))
    return rows


@pytest.mark.parametrize(
    ("text", "drafter", "context", "longest"),
    [
        (FINN_MTP, MTP, 4096, 64),
        (FINN_MTP_1K, MTP, 1024, 64),
        (FINN_MTP_128K, MTP, 131072, 64),
        (FINN_DFLASH, DFLASH, 4096, 16),
    ],
)
def test_finns_values(
    text: str, drafter: tuple[DrafterCost, Geometric], context: int, longest: int
) -> None:
    for batch, length, speedup in finn(text):
        load = Workload(batch, 1, context)
        best = optimum(
            speedup_curve(Deployment(FINN, FINN_DEVICE), *drafter, load, max_draft=longest)
        )
        assert (best.draft_length, round(best.speedup, 3)) == (length, speedup), batch


def modal(name: str, batch: int, drafter: tuple[DrafterCost, Geometric]) -> SpeedupRow:
    """As Modal's calculator sums: over the layers, without the vocabulary's projection."""
    layers_only = replace(model(name), head=())
    return optimum(
        speedup_curve(Deployment(layers_only, hardware("B200")), *drafter, Workload(batch))
    )


@pytest.mark.parametrize(
    ("name", "batch", "drafter", "lengths", "shown"),
    [
        ("DeepSeek-V4-Flash", 8, MTP, (0, 1), "1.0x"),
        ("DeepSeek-V4-Flash", 8, DFLASH, (16,), "1.6x"),
        ("DeepSeek-V4-Pro", 32, MTP, (6,), "1.2x"),
        ("DeepSeek-V4-Pro", 32, DFLASH, (16,), "3.0x"),
    ],
)
def test_modals_published_outputs(
    name: str,
    batch: int,
    drafter: tuple[DrafterCost, Geometric],
    lengths: tuple[int, ...],
    shown: str,
) -> None:
    best = modal(name, batch, drafter)
    assert best.draft_length in lengths
    assert f"{best.speedup:.1f}x" == shown


# An independent reconstruction's tables: optimal draft length / speedup at B = 1, 2, 4 … 1024, S =
# 4096, B200. It leaves out sampling and some compressors: speedups agree to 4 %.
TABLES = {
    ("DeepSeek-V4-Flash", "mtp"): "2/1.26 1/1.12 1/1.03 1/1.00 4/1.06 6/1.44 5/1.82 4/1.99 4/1.91"
    " 3/1.73 3/1.51",
    ("DeepSeek-V4-Flash", "dflash"): "6/1.74 5/1.42 7/1.29 16/1.67 16/2.60 16/3.87 16/4.93"
    " 16/5.01 13/4.12 9/3.16 7/2.37",
    ("DeepSeek-V4-Pro", "mtp"): "2/1.24 1/1.10 1/1.01 0/1.00 0/1.00 6/1.17 5/1.58 5/1.90 4/1.96"
    " 4/1.82 3/1.62",
    ("DeepSeek-V4-Pro", "dflash"): "5/1.67 4/1.35 4/1.18 16/1.25 16/1.89 16/2.98 16/4.26 16/5.01"
    " 15/4.62 11/3.67 8/2.77",
    ("Qwen3.5-27B", "mtp"): "5/2.17 5/2.15 5/2.11 4/2.05 4/1.96 4/1.82 3/1.68 1/1.40 1/1.16"
    " 1/1.14 1/1.14",
    ("Qwen3.5-27B", "dflash"): "16/6.83 16/6.57 16/6.12 16/5.42 14/4.52 8/3.53 4/2.48 4/1.79"
    " 4/1.44 4/1.41 4/1.41",
    ("Qwen3.5-35B-A3B", "mtp"): "2/1.25 1/1.12 1/1.05 1/1.04 5/1.20 5/1.54 4/1.75 3/1.71 3/1.54"
    " 2/1.41 2/1.34",
    ("Qwen3.5-35B-A3B", "dflash"): "6/1.73 6/1.45 16/1.45 16/1.98 16/2.83 15/3.50 12/3.59 9/3.09"
    " 7/2.49 6/2.11 5/1.89",
    ("Qwen3.5-122B-A10B", "dflash"): "5/1.56 5/1.33 16/1.36 16/1.93 16/2.88 16/3.74 13/3.95"
    " 10/3.41 8/2.67 6/2.15 5/1.83",
    ("Qwen3.5-397B-A17B", "mtp"): "1/1.13 1/1.03 0/1 0/1 0/1 6/1.28 5/1.67 4/1.87 4/1.81 3/1.65"
    " 2/1.47",
    ("Qwen3.5-397B-A17B", "dflash"): "4/1.41 3/1.20 4/1.11 16/1.35 16/2.12 16/3.23 16/4.20"
    " 14/4.33 11/3.65 9/2.86 7/2.28",
    ("Meta-Llama-3.1-8B", "mtp"): "5/2.19 5/2.19 5/2.19 5/2.19 5/2.19 5/2.19 4/2.11 3/1.89 3/1.75"
    " 3/1.74 3/1.74",
    ("Meta-Llama-3.1-8B", "dflash"): "16/7.12 16/7.12 16/7.12 16/7.12 16/7.12 10/5.39 10/4.21"
    " 10/3.61 10/3.30 10/3.27 10/3.27",
}


@pytest.mark.parametrize(("name", "drafter"), TABLES)
def test_the_reconstructions_tables(name: str, drafter: str) -> None:
    kind = {"mtp": MTP, "dflash": DFLASH}[drafter]
    batches = [2**power for power in range(11)]
    found = by_batch(Deployment(model(name), hardware("B200")), *kind, batches)
    for (batch, best), entry in zip(found, TABLES[name, drafter].split(), strict=True):
        length, speedup = entry.split("/")
        assert abs(best.draft_length - int(length)) <= 1, batch
        assert best.speedup == pytest.approx(float(speedup), rel=0.04), batch


def test_without_fp4_units_experts_compute_at_the_fp8_rate() -> None:
    table = "6/1.74 5/1.41 7/1.29 16/1.67 16/2.56 16/3.73 16/4.63 15/4.53 11/3.65 6/2.69 3/1.83"
    batches = [2**power for power in range(11)]
    found = by_batch(Deployment(model("DeepSeek-V4-Flash"), hardware("H200")), *DFLASH, batches)
    for (batch, best), entry in zip(found, table.split(), strict=True):
        assert best.speedup == pytest.approx(float(entry.split("/")[1]), rel=0.04), batch


def test_dense_falls_with_the_batch_and_a_mixture_makes_a_u() -> None:
    batches = [2**power for power in range(11)]

    def speedups(name: str) -> list[float]:
        found = by_batch(Deployment(model(name), hardware("B200")), *MTP, batches)
        return [best.speedup for _, best in found]

    for name in ("Qwen3.5-27B", "Meta-Llama-3.1-8B", "Qwen3-8B"):
        dense = speedups(name)
        assert all(after <= before + 1e-9 for before, after in itertools.pairwise(dense)), name
    mixture = speedups("DeepSeek-V4-Pro")
    lowest = mixture.index(min(mixture))
    assert 0 < lowest < 8
    assert mixture[0] > 1.2 and mixture[8] > 1.9 and mixture[lowest] == 1.0


def test_replaying_the_state_keeps_long_drafts_worth_it_in_large_batches() -> None:
    """What a gated delta layer writes per drafted token decides the large-batch result."""
    device, hybrid = hardware("B200"), model("Qwen3.5-35B-A3B")
    replayed = Deployment(hybrid, device, Options(snapshots="replay"))
    replay = by_batch(replayed, *DFLASH, [128, 1024])
    found = [(best.draft_length, best.speedup) for _, best in replay]
    assert found == [(16, pytest.approx(5.64, rel=0.04)), (10, pytest.approx(4.03, rel=0.04))]
    half = Deployment(hybrid, device, Options(state_precision="bf16"))
    halved = by_batch(half, *DFLASH, [128])
    assert 3.2 < halved[0][1].speedup < 5.4

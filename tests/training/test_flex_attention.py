"""Flex attention of training against the plain twin.

On a CPU: the values by torch's own flex attention, and the gradient by a product that sees what the
tiles and the mask show, since torch has no backward pass of flex attention there. What only a GPU
can prove are the kernels of CUDA; the last tests ask for one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from paceline.models.config import Attention
from paceline.training import flex_attention as flex_module
from paceline.training.flex_attention import TILE, FlexAttention, compiled, tiles
from paceline.training.packs import Pack
from tests.training.attention_twin import (
    KINDS,
    dense,
    flex_by_tiles,
    listed,
    rows,
    shown_by_tiles,
    small_pack,
)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
# The last one has tiles that are seen wholly, and tiles that its window cuts.
FLEX_KINDS = [*KINDS, Attention(400, True)]
# Several tiles, in which texts end; the contexts of the last pack begin behind its texts' starts.
PACKS: dict[str, dict[str, Any]] = {
    "tiny": {"lengths": (12,), "anchors": 5},
    "small": {},
    "long": {"lengths": (300, 18, 700), "anchors": 120},
    "cut": {"lengths": (600, 560, 700), "anchors": 90, "prompt": 430, "window": 400},
}


def inputs(pack: Pack, heads: int = 4, kv_heads: int = 2, dim: int = 16) -> list[Tensor]:
    of_queries = rows(pack, heads, 0, False, dim)
    return [of_queries, *(rows(pack, kv_heads, seed, True, dim) for seed in (1, 2))]


def values_and_gradient(mixed: Tensor, parts: list[Tensor]) -> tuple[Tensor, ...]:
    outer = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(9)).to(mixed.device)
    return mixed.detach(), *torch.autograd.grad((mixed * outer).sum(), parts)


def apart(ours: Tensor, twin: Tensor) -> float:
    return float((ours.float() - twin.float()).norm() / twin.float().norm())


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize("kind", FLEX_KINDS, ids=str)
def test_torchs_flex_attention_gives_the_twins_values(kind, name, kv_heads):
    pack = small_pack(**PACKS[name])
    assert all(pack.firsts) == (name == "cut")
    parts = [part.detach() for part in inputs(pack, kv_heads=kv_heads)]
    mixed = FlexAttention(pack, flex_attention)(kind, *parts)
    torch.testing.assert_close(mixed, dense(pack, kind, *parts), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["long", "cut"])
@pytest.mark.parametrize("kind", FLEX_KINDS, ids=str)
def test_what_tiles_and_mask_show_gives_the_twins_gradient(kind, name):
    pack = small_pack(**PACKS[name])
    parts = inputs(pack)
    ours = values_and_gradient(flex_by_tiles(pack)(kind, *parts), parts)
    twin = values_and_gradient(dense(pack, kind, *parts), parts)
    for one, other in zip(ours, twin, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize("kind", FLEX_KINDS, ids=str)
def test_the_tiles_are_those_that_torch_finds_pair_by_pair(kind, name):
    """But for few tiles more with a window, where a tile has the end of a text and the start of
    another one."""
    mask = FlexAttention(small_pack(**PACKS[name]))._mask(kind)
    pairs = create_block_mask(mask.mask_mod, None, None, *mask.seq_lengths, "cpu", TILE)
    whole = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert torch.equal(whole, listed(pairs.full_kv_num_blocks, pairs.full_kv_indices))
    assert bool(whole.any()) == (name in ("long", "cut") and (kind.window or TILE) >= TILE)
    some = listed(mask.kv_num_blocks, mask.kv_indices)
    needed = listed(pairs.kv_num_blocks, pairs.kv_indices)
    assert not (needed & ~some).any() and not (some & whole).any()
    more = int((some & ~needed).sum())
    assert more == 0 if kind.window is None else more <= max(1, int(needed.sum()) / 10)


def moved(run: int, by: int) -> Callable[[Tensor], Tensor]:
    def wrong(runs: Tensor) -> Tensor:
        change = torch.zeros(4, 1, dtype=torch.int32)
        change[run] = by
        return runs + change

    return wrong


WRONG_RUNS = {
    "the anchor's own feature": moved(1, 1),
    "no feature right before the anchor": moved(1, -1),
    "not the first token of context": moved(0, 1),
    "the block before": moved(2, -1),
    "the block behind": moved(3, 1),
}


@pytest.mark.parametrize("product", [flex_attention, shown_by_tiles])
@pytest.mark.parametrize("wrong", WRONG_RUNS)
def test_a_wrong_mask_is_found(wrong, product, monkeypatch):
    kind, pack = KINDS[0], small_pack(**PACKS["long"])
    parts = [part.detach() for part in inputs(pack)]
    twin, right = dense(pack, kind, *parts), FlexAttention._runs
    assert apart(FlexAttention(pack, product)(kind, *parts), twin) < 1e-5
    monkeypatch.setattr(
        FlexAttention, "_runs", lambda self, kind: WRONG_RUNS[wrong](right(self, kind))
    )
    assert apart(FlexAttention(pack, product)(kind, *parts), twin) > 1e-2


@pytest.mark.parametrize("wrong", ["left out", "taken as whole"])
def test_a_wrong_tile_is_found(wrong, monkeypatch):
    kind, pack = KINDS[0], small_pack(**PACKS["long"])
    parts = [part.detach() for part in inputs(pack)]

    def wrong_tiles(runs: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        some, whole = tiles(runs, keys)
        row, column = (some & ~whole).nonzero()[1].tolist()
        (some if wrong == "left out" else whole)[row, column] ^= True
        return some, whole

    monkeypatch.setattr(flex_module, "tiles", wrong_tiles)
    assert apart(flex_by_tiles(pack)(kind, *parts), dense(pack, kind, *parts)) > 1e-2


def test_autocast_multiplies_in_its_numbers():
    """Rotated queries and keys are float32, values bfloat16."""
    pack, taken = small_pack(), []

    def product(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        taken.append({q.dtype, k.dtype, v.dtype, torch.is_autocast_enabled("cpu")})
        return flex_attention(q, k, v, **options)

    q, k, v = (part.detach() for part in inputs(pack))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = FlexAttention(pack, product)(KINDS[1], q, k, v.bfloat16())
    assert taken == [{torch.bfloat16, False}] and mixed.dtype is torch.bfloat16
    assert apart(mixed, dense(pack, KINDS[1], q, k, v)) < 1e-2


def test_packs_and_kinds_share_one_compiled_product():
    """Also where the layers around it are compiled, and have no part in it."""
    torch._dynamo.reset()
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Any:
        graphs.append(graph.code)
        return graph.forward

    def layer(attend: FlexAttention, kind: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return 2 * attend(kind, q + 1, k, v)

    around = torch.compile(layer, backend="eager", dynamic=True)
    for options in PACKS.values():
        pack = small_pack(**options)
        attend = FlexAttention(pack, compiled(backend))
        # As many heads as tiles would be one size to torch, and compiled once more.
        parts = [part.detach() for part in inputs(pack, 10, 5)]
        for kind in FLEX_KINDS:
            mixed = layer(attend, kind, *parts)
            twin = 2 * dense(pack, kind, parts[0] + 1, *parts[1:])
            torch.testing.assert_close(mixed, twin, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(around(attend, kind, *parts), mixed)
    assert len(graphs) == 1 and "flex_attention" in graphs[0]


@pytest.mark.slow  # compiles C++
def test_the_compiled_product_of_a_cpu_gives_the_twins_values():
    """Its kernel goes by the lists of tiles."""
    torch._dynamo.reset()
    counters.clear()
    for options in PACKS.values():
        pack = small_pack(**options)
        parts = [part.detach() for part in inputs(pack, 10, 5)]
        for kind in FLEX_KINDS:
            mixed = FlexAttention(pack)(kind, *parts)
            torch.testing.assert_close(mixed, dense(pack, kind, *parts), rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-3), (torch.bfloat16, 1.5e-2)])
def test_on_cuda_kernels_give_the_twins_values_and_gradient(dtype, most):
    torch._dynamo.reset()
    counters.clear()
    for options in PACKS.values():
        pack = small_pack(**options).to("cuda")
        parts = [
            part.detach().to("cuda", dtype).requires_grad_() for part in inputs(pack, 16, 8, 128)
        ]
        plain = [part.detach().float().requires_grad_() for part in parts]
        for kind in FLEX_KINDS:
            ours = values_and_gradient(FlexAttention(pack)(kind, *parts), parts)
            twin = values_and_gradient(dense(pack, kind, *plain), plain)
            assert max(apart(*pair) for pair in zip(ours, twin, strict=True)) < most, kind
            other = Attention(kind.window, not kind.causal)  # negative control: another mask
            seen = values_and_gradient(dense(pack, other, *plain), plain)
            assert min(apart(*pair) for pair in zip(ours, seen, strict=True)) > 3 * most, kind
    assert counters["stats"]["unique_graphs"] == 1, "packs and kinds must not compile again"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_scores_are_not_in_memory():
    heads = 16
    pack = small_pack(lengths=(4000, 3000), anchors=300).to("cuda")
    parts = [part.detach().cuda().bfloat16().requires_grad_() for part in inputs(pack, heads, 8)]
    scores = 2 * heads * pack.ids.numel() * int(pack.anchors.max())  # bytes

    def peak() -> int:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        values_and_gradient(FlexAttention(pack)(KINDS[0], *parts), parts)
        return torch.cuda.max_memory_allocated() - before

    peak()  # compiles
    assert peak() < scores / 4

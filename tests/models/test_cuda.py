"""TorchNetwork on a GPU: the same numbers as on CPU, and rows that depend on themselves alone."""

from __future__ import annotations

import pytest
import torch

from paceline.core import InvalidRequest
from paceline.kernels import fp8
from paceline.models.config import ModelConfig, RopeConfig
from paceline.models.network import TorchNetwork
from paceline.models.quantized import Recipe, recipe_of
from tests.models.tiny import random_ids, run_in_chunks
from tests.random_weights import random_weights

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# Two layers of Qwen2.5-0.5B's shape: kernels choose their order of sums by size.
CONFIG = ModelConfig(
    family="qwen2",
    vocab_size=4000,
    hidden_size=896,
    intermediate_size=4864,
    num_layers=2,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    rms_norm_eps=1e-6,
    qkv_bias=True,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tie_word_embeddings=True,
    max_position_embeddings=4096,
    rope=RopeConfig(theta=1e6),
)
IDS = random_ids(900, CONFIG.vocab_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [[1, 2, 5, 17, 31, 33, 100], [512, 1, 16], [16]], ids=str)
def test_chunk_borders_do_not_change_bits(dtype: torch.dtype, sizes: list[int]) -> None:
    network = TorchNetwork(CONFIG, random_weights(CONFIG, 1), "cuda", dtype)
    whole = run_in_chunks(network, IDS, [len(IDS)])
    assert torch.equal(run_in_chunks(network, IDS, sizes), whole)


@pytest.fixture
def recipe() -> Recipe:
    try:
        return recipe_of("int8", "cuda", "bfloat16")
    except InvalidRequest as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("sizes", [[1, 2, 5, 17, 31, 33, 100], [512, 1, 16], [16]], ids=str)
def test_chunk_borders_do_not_change_bits_in_fp8(recipe: Recipe, sizes: list[int]) -> None:
    weights = random_weights(CONFIG, 1)
    network = TorchNetwork(CONFIG, weights, "cuda", torch.bfloat16, recipe=recipe)
    whole = run_in_chunks(network, IDS, [len(IDS)])
    assert torch.equal(run_in_chunks(network, IDS, sizes), whole)


def test_fp8_products_equal_their_twin(recipe: Recipe) -> None:
    """Return the CPU's result in float32 from the same fp8 numbers."""
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(n, 896, generator=generator) for n in (512, 32))
    small, scales = fp8.quantize_rows(weight)
    twin = fp8.linear(x.bfloat16(), small, scales).float()
    on_gpu = fp8.linear(x.bfloat16().cuda(), small.cuda(), scales.cuda()).float().cpu()
    assert torch.allclose(on_gpu, twin, rtol=2**-7, atol=0.05)


def test_logits_equal_the_cpus_in_float32() -> None:
    weights = random_weights(CONFIG, 1)
    on_gpu = run_in_chunks(TorchNetwork(CONFIG, weights, "cuda"), IDS[:300], [300])
    on_cpu = run_in_chunks(TorchNetwork(CONFIG, weights, "cpu"), IDS[:300], [300])
    assert torch.allclose(on_gpu.cpu(), on_cpu, atol=1e-3)


def test_noise_has_the_same_bits_on_both_devices() -> None:
    from paceline.kernels import reference

    for position in range(3):
        key = {"seed": 2**63 + 5, "choice": 1, "position": position}
        logits = torch.randn(50_000, generator=torch.Generator().manual_seed(position))
        for temperature in (0.5, 1.0):
            on_cpu = reference.gumbel_argmax(logits, inv_temperature=1 / temperature, **key)
            on_gpu = reference.gumbel_argmax(logits.cuda(), inv_temperature=1 / temperature, **key)
            assert on_cpu == on_gpu

"""The noise is a promise: a seed gives the same text for ever, on any machine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.kernels import ops, reference

# Random123's published vectors of Philox4x32-10: counter, key, output.
KNOWN_ANSWERS = [
    ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, output) -> None:
    seed = key[0] | key[1] << 32
    assert tuple(reference.philox(list(counter), seed)) == output
    tensors = reference.philox([torch.tensor([word]) for word in counter], seed)
    assert tuple(int(word) for word in tensors) == output


def test_noise_is_near_the_true_gumbel_also_at_the_ends() -> None:
    middle = torch.randint(0, 2**32, (100_000,), generator=torch.Generator().manual_seed(0))
    x = torch.cat([torch.arange(5000), middle, torch.arange(2**32 - 5000, 2**32)])
    v = ((x.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24).double()
    true = -torch.log(-torch.log1p(-v))
    assert (reference.gumbel_of_bits(x).double() - true).abs().max() < 2e-6


def test_noise_is_gumbel_distributed() -> None:
    noise = ops.gumbel_noise(200_000, 1, choice=0, position=0).double()
    assert abs(noise.mean() - 0.577216) < 0.02
    assert abs(noise.var() - np.pi**2 / 6) < 0.05


@pytest.mark.parametrize("vocab", [1, 7, 64, 100, 49152])
def test_native_noise_equals_the_twin(kernel_path: str, vocab: int) -> None:
    keys = {"choice": 3, "position": 77, "round_start": 5, "role": ops.ROLE_DRAFT}
    seed = 2**63 + 12345
    ops._library.cache_clear()
    native = ops.gumbel_noise(vocab, seed, **keys)
    ops._library.cache_clear()
    assert torch.equal(native, reference.gumbel_noise(vocab, seed, **keys))


def test_every_key_word_gives_another_stream() -> None:
    base = {"seed": 1, "choice": 0, "position": 0, "round_start": 0, "role": ops.ROLE_TARGET}
    changes = [{}, {"seed": 2}, {"seed": 1 + 2**32}, {"choice": 1}, {"position": 1}]
    changes += [{"round_start": 1}, {"role": ops.ROLE_RESIDUAL}]
    rows = [tuple(ops.gumbel_noise(8, **base | change).tolist()) for change in changes]
    assert len(set(rows)) == len(rows)
    assert rows[0] == tuple(ops.gumbel_noise(1000, **base)[:8].tolist())


def test_uniform_is_strictly_inside_and_uniform() -> None:
    draws = np.array([ops.uniform(7, choice=0, position=p) for p in range(4000)])
    assert 0 < draws.min() < draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.03
    assert abs(np.mean(draws < 0.25) - 0.25) < 0.04
    assert ops.uniform(7, choice=0, position=0) != ops.uniform(
        7, choice=0, position=0, round_start=1
    )


def test_golden_values() -> None:
    noise = ops.gumbel_noise(6, 0x0123456789ABCDEF, choice=1, position=42)
    assert noise.view(torch.int32).tolist() == GOLDEN_NOISE
    drawn = ops.uniform(0x0123456789ABCDEF, choice=1, position=42, round_start=40)
    assert drawn.hex() == GOLDEN_UNIFORM


GOLDEN_NOISE = [-1086448623, 1070391352, 1065498391, 1052969081, -1082001656, 1027756563]
GOLDEN_UNIFORM = "0x1.748d53b1d74f6p-2"


@pytest.mark.parametrize("role", [ops.ROLE_TARGET, ops.ROLE_DRAFT])
def test_noise_of_single_tokens_is_that_of_the_whole_row(role: int) -> None:
    ids = torch.tensor([[0, 1, 2, 3], [7, 151_000, 64, 4], [5, 5, 9, 30]])
    positions = torch.tensor([[3], [4], [2**20]]).expand_as(ids)
    key = {"choice": 2, "round_start": 3, "role": role}
    got = ops.gumbel_noise_of(ids, positions, 2**63 + 9, **key)
    for row, position in enumerate(positions[:, 0].tolist()):
        whole = ops.gumbel_noise(151_936, 2**63 + 9, position=position, **key)
        assert torch.equal(got[row], whole[ids[row]])

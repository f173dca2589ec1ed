"""Native sampling ops equal their torch twins to the bit, and both do what the words say."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from paceline.kernels import ops, reference

VOCABS = (1, 5, 100, 1000, 20_000)
FILTERS = [(0, 1.0, 0.0), (1, 1.0, 0.0), (7, 1.0, 0.0), (0, 0.5, 0.0), (0, 0.99, 0.0)]
FILTERS += [(0, 0.01, 0.0), (0, 1.0, 0.1), (5, 0.8, 0.05), (0, 0.9, 0.02), (50, 0.999, 0.0)]


def rows(seed: int) -> Iterator[torch.Tensor]:
    """Flat and peaked rows, with ties, and with banned tokens."""
    generator = torch.Generator().manual_seed(seed)
    for vocab in VOCABS:
        for scale in (0.1, 1.0, 8.0):
            row = torch.randn(vocab, generator=generator) * scale
            yield row
            yield (row * 2).round() / 2
            banned = row.clone()
            banned[1 + torch.randperm(vocab - 1, generator=generator)[: vocab // 3]] = -math.inf
            yield banned


@pytest.fixture(autouse=True)
def _fresh_library(kernel_path: str) -> Iterator[None]:
    ops._library.cache_clear()
    yield
    ops._library.cache_clear()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_gumbel_argmax_equals_the_twin(temperature: float) -> None:
    for index, row in enumerate(rows(1)):
        keys = {"inv_temperature": 1 / temperature, "seed": index, "choice": 1, "position": index}
        assert ops.gumbel_argmax(row, **keys) == reference.gumbel_argmax(row, **keys)


def test_rows_drawn_at_once_are_those_drawn_one_by_one() -> None:
    logits = torch.stack([row for row in rows(4) if len(row) == 1000])
    chosen = [*range(len(logits)), 3, 0]
    keys = {
        "inv_temperatures": [1 / (0.3 + 0.2 * index) for index in range(len(chosen))],
        "seeds": [7 * index for index in range(len(chosen))],
        "choices": [index % 3 for index in range(len(chosen))],
        "positions": [index + 1 for index in range(len(chosen))],
    }
    alone = [
        ops.gumbel_argmax(
            logits[row], inv_temperature=inv, seed=seed, choice=choice, position=position
        )
        for row, inv, seed, choice, position in zip(chosen, *keys.values(), strict=True)
    ]
    assert ops.gumbel_argmax_rows(logits, chosen, **keys) == alone
    wide = torch.zeros(1000, len(logits)).T.copy_(logits)  # not contiguous: the twin's turn
    assert ops.gumbel_argmax_rows(wide, chosen, **keys) == alone
    assert len(set(alone)) > 5


def test_other_threads_cannot_overwrite_what_a_kernel_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call gives up the GIL, so another thread may take any memory that nothing holds."""

    class Library:
        def pl_gumbel_argmax_rows(
            self,
            logits: int,
            vocab: int,
            rows: int,
            count: int,
            noises: object,
            inv_temperatures: int,
            threads: int,
            ids: int,
        ) -> None:
            taken = [np.full(count, 99, kind) for kind in (np.int64, np.float32) for _ in range(50)]
            assert list((ctypes.c_int64 * count).from_address(rows)) == list(range(count))
            assert set((ctypes.c_float * count).from_address(inv_temperatures)) == {0.5}
            ctypes.memset(ids, 0, 8 * count)
            assert len(taken) == 100

    monkeypatch.setattr(ops, "_native", lambda logits: Library())
    keys = {"seeds": [1] * 20, "choices": [0] * 20, "positions": [1] * 20}
    tokens = ops.gumbel_argmax_rows(
        torch.zeros(20, 8), range(20), inv_temperatures=[0.5] * 20, **keys
    )
    assert tokens == [0] * 20


@pytest.mark.parametrize("filters", FILTERS)
def test_top_threshold_equals_the_twin(filters: tuple[int, float, float]) -> None:
    for index, row in enumerate(rows(2)):
        inv_temperature = (0.5, 1.0, 1 / 0.7)[index % 3]
        kept = ops.top_threshold(row, inv_temperature, *filters)
        assert kept == reference.top_threshold(row, inv_temperature, *filters)
        keys = {"inv_temperature": inv_temperature, "seed": 3, "choice": 0, "position": index}
        keys |= {"threshold": kept[0], "tie_id": kept[1]}
        assert ops.gumbel_argmax(row, **keys) == reference.gumbel_argmax(row, **keys)


def test_logsumexp_equals_the_twin_and_the_truth() -> None:
    for row in rows(3):
        value = ops.logsumexp(row)
        assert value == reference.logsumexp(row)
        assert value == pytest.approx(float(row.double().logsumexp(0)), abs=2e-6)


def test_logsumexp_of_rows_is_that_of_each_row() -> None:
    for vocab in VOCABS:
        logits = torch.stack([row for row in rows(3) if len(row) == vocab])
        alone = [ops.logsumexp(row) for row in logits]
        assert ops.logsumexp_rows(logits) == alone
        assert ops.logsumexp_rows(logits.T.contiguous().T) == alone  # the twin's turn
        logits[1, vocab // 2] = math.inf
        with pytest.raises(ValueError, match="infinity"):
            ops.logsumexp_rows(logits)


def kept_ids(row: torch.Tensor, *filters: float) -> list[int]:
    threshold, tie_id = ops.top_threshold(row, 1.0, *filters)
    return [
        i for i, x in enumerate(row.tolist()) if x > threshold or (x == threshold and i <= tie_id)
    ]


def test_top_threshold_keeps_what_the_words_say() -> None:
    row = torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1]).log()
    assert kept_ids(row, 0, 1.0, 0.0) == [0, 1, 2, 3, 4]
    assert kept_ids(row, 2, 1.0, 0.0) == [1, 2]  # of equals the lowest id
    assert kept_ids(row, 0, 0.39, 0.0) == [1]
    assert kept_ids(row, 0, 0.41, 0.0) == [1, 2]
    assert kept_ids(row, 0, 0.79, 0.0) == [1, 2, 3]
    assert kept_ids(row, 0, 1.0, 0.45) == [1, 2, 3]
    assert kept_ids(row, 3, 0.7, 0.0) == [1, 2]  # 0.75 of what top_k left


def test_gumbel_argmax_draws_from_the_softmax() -> None:
    probs = torch.tensor([0.5, 0.25, 0.15, 0.1])
    keys = {"inv_temperature": 1.0, "seed": 5, "choice": 0}
    draws = [ops.gumbel_argmax(probs.log(), position=p, **keys) for p in range(4000)]
    shares = torch.bincount(torch.tensor(draws), minlength=4) / len(draws)
    assert torch.allclose(shares, probs, atol=0.03)


def test_a_strided_or_half_precision_row_takes_the_twin() -> None:
    wide = torch.randn(50, 2)
    keys = {"inv_temperature": 1.0, "seed": 5, "choice": 0, "position": 0}
    assert ops.gumbel_argmax(wide[:, 0], **keys) == ops.gumbel_argmax(
        wide[:, 0].contiguous(), **keys
    )

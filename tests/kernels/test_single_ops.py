"""Each fused operation against its torch twin, and each row's bits in any company."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from paceline.kernels import abi
from paceline.kernels.packing import Arena, pack, packed_bytes, padded
from paceline.models.attention import attend, make_plan
from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.layers import pad_rows, rms_norm, rotate, swiglu

THREADS = 2


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def at(tensor: torch.Tensor | np.ndarray) -> ctypes.c_void_p:
    address = tensor.ctypes.data if isinstance(tensor, np.ndarray) else tensor.data_ptr()
    return ctypes.c_void_p(address)


def close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> bool:
    """Equal but for the order of a sum: a step of bfloat16, a few of float32."""
    step = torch.finfo(dtype).eps * (1 if dtype == torch.bfloat16 else 8)
    return torch.allclose(got.float(), expected.float(), rtol=step, atol=step)


@pytest.mark.parametrize("width", [32, 80, 576, 1536])
def test_rms_norm(ops: ctypes.CDLL, width: int) -> None:
    rows, stride = 5, padded(width, 32)
    x, weight = random(rows, width), random(width, seed=1)
    got = torch.full((rows, stride), torch.nan, dtype=torch.bfloat16)
    sizes = (rows, width, stride)
    ops.op_rms_norm(at(x), at(weight), *map(ctypes.c_int64, sizes), ctypes.c_float(1e-5), at(got))
    expected = rms_norm(x, weight, 1e-5).to(torch.bfloat16)
    assert close(got[:, :width], expected) and not got[:, width:].any()
    if width % 16 == 0:
        heads = x.clone()
        ops.op_head_norm(
            at(heads), at(weight), *map(ctypes.c_int64, (rows, width)), ctypes.c_float(1e-5)
        )
        assert close(heads, rms_norm(x, weight, 1e-5), torch.float32)


@pytest.mark.parametrize("half", [8, 16, 32, 64])
def test_rotary(ops: ctypes.CDLL, half: int) -> None:
    rows = 7
    x, angle = random(rows, 1, 2 * half), random(rows, half, seed=1)
    cos, sin = angle.cos(), angle.sin()
    got = x.clone()
    ops.op_rotate(at(got), at(cos), at(sin), *map(ctypes.c_int64, (rows, half)))
    assert close(got, rotate(x, cos, sin), torch.float32)


def test_swiglu(ops: ctypes.CDLL) -> None:
    gate, up = 8 * random(1, 4096), random(1, 4096, seed=1)
    got = torch.empty(1, 4096, dtype=torch.bfloat16)
    ops.op_swiglu(at(gate), at(up), ctypes.c_int64(4096), at(got))
    assert close(got, swiglu(torch.cat([gate, up], -1)))


@pytest.mark.parametrize("size", [1.0, 1e-19], ids=["usual", "tiny"])
@pytest.mark.parametrize(("n", "k"), [(48, 64), (199, 80), (1536, 896), (96, 8960)])
def test_linear_and_its_rows(ops: ctypes.CDLL, n: int, k: int, size: float) -> None:
    """A row's bits are those it has alone, whatever the number of rows and wherever it stands; also
    where some products, sums and weights are subnormal numbers."""
    weight, values = random(n, k) * size, random(300, k, seed=1) * size
    if size < 1:  # every seventh weight is subnormal, its product about as large as the others
        weight[:, ::7] *= 5e-39 / size
        values[:, ::7] /= size
    weight = weight.to(torch.bfloat16)
    room = Arena(packed_bytes(n, k)).take_matrix(n, k)
    pack(weight, room)
    matrix, stride = abi.Matrix(room.data_ptr(), None, None, n, k), padded(k, 32)
    x = torch.zeros(300 + 32, stride, dtype=torch.bfloat16)
    x[:300, :k] = values

    def linear(first: int, rows: int) -> torch.Tensor:
        out = torch.full((rows, n), torch.nan)
        sizes = map(ctypes.c_int64, (stride, rows, THREADS))
        ops.op_linear(ctypes.byref(matrix), at(x[first:]), *sizes, at(out))
        return out

    whole = linear(0, 300)
    exact = x[:300, :k].double() @ weight.double().T
    if size == 1:
        assert (whole - exact).abs().max() < 2e-6 * k * exact.abs().mean()
    assert whole.abs().max() > torch.finfo(torch.float32).tiny
    for rows in (1, 2, 3, 6, 7, 12, 13, 16, 17, 31, 32, 33, 48, 193):
        for first in (0, 5, 300 - rows):
            assert torch.equal(linear(first, rows), whole[first : first + rows]), (rows, first)


SHAPES = [(9, 3, 64), (14, 2, 64), (4, 1, 128), (4, 2, 96), (6, 3, 80)]  # heads, KV heads, width
LENGTHS, WIDTH = (700, 37), 48  # of two sequences, and blocks of each
TABLES = np.random.default_rng(0).permutation(2 * WIDTH).reshape(2, WIDTH).astype(np.int32)
Part = tuple[int, int, int]  # of a batch: sequence, first position, end


class Sequences:
    """Two sequences over scattered blocks, whose keys and values are written as they attend."""

    def __init__(self, ops: ctypes.CDLL, heads: int, kv_heads: int, dim: int) -> None:
        self.q, self.k, self.v = (
            random(sum(LENGTHS), n, dim, seed=s).to(torch.bfloat16)
            for s, n in enumerate((heads, kv_heads, kv_heads))
        )
        slots = TABLES.size * BLOCK_SIZE
        self._ops, self._cache = ops, self.k.new_zeros(2, slots * kv_heads * dim)
        self._layer = abi.Layer(kv=self._cache.data_ptr())
        self._model = abi.Model(heads=heads, kv_heads=kv_heads, head_dim=dim, scale=dim**-0.5)

    def batch(self, *parts: Part) -> ForwardBatch:
        counts = [end - first for _, first, end in parts]
        return ForwardBatch(
            ids=np.zeros(sum(counts), np.int32),
            positions=np.concatenate([np.arange(a, b, dtype=np.int32) for _, a, b in parts]),
            seq_starts=np.cumsum([0, *counts]).astype(np.int32),
            block_tables=np.ascontiguousarray(TABLES[[s for s, _, _ in parts]]),
            logit_rows=np.zeros(0, np.int32),
        )

    def attend(self, *parts: Part) -> torch.Tensor:
        given, starts = self.batch(*parts), (0, LENGTHS[0])
        rows = np.concatenate([np.arange(starts[s] + a, starts[s] + b) for s, a, b in parts])
        q, k, v = (tensor[torch.from_numpy(rows)] for tensor in (self.q, self.k, self.v))
        kv_heads, dim = k.shape[1:]
        placed = q.view(len(q), kv_heads, -1, dim).transpose(0, 1).reshape(-1, dim)
        queries = torch.cat([placed, torch.full((32, dim), torch.nan)]).to(torch.bfloat16)
        to = abi.Batch(rows=len(rows), sequences=len(parts), table_stride=WIDTH, threads=THREADS)
        for name in ("positions", "seq_starts", "block_tables"):
            setattr(to, name, getattr(given, name).ctypes.data)
        out, keys, values = q.new_empty(len(q), q[0].numel()), k.float(), v.float()
        structures = map(ctypes.byref, (self._model, to, self._layer))
        self._ops.op_attend(*structures, at(keys), at(values), at(queries), at(out))
        return out


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_kv_write_and_attention_and_their_rows(
    ops: ctypes.CDLL, heads: int, kv_heads: int, dim: int
) -> None:
    """Attention is equal to the twin's, and cut in chunks bit for bit."""
    both = Sequences(ops, heads, kv_heads, dim)
    everything = [(0, 0, LENGTHS[0]), (1, 0, LENGTHS[1])]
    whole = both.attend(*everything)
    # The kernel rounds probabilities to bfloat16 before it weighs the values.
    error = whole.float() - twin(both.batch(*everything), both.q, both.k, both.v).float()
    assert error.abs().max() < 0.02
    first, second = whole[: LENGTHS[0]], whole[LENGTHS[0] :]
    for a, b in ((0, 1), (255, 257), (300, 316), (100, 500), (699, 700)):
        assert torch.equal(both.attend((0, a, b)), first[a:b]), (a, b)
    parts = both.attend((1, 36, 37), (0, 690, 700))
    assert torch.equal(parts, torch.cat([second[36:], first[690:]]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3.4e38], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_a_value_that_is_not_finite_reaches_the_rows_that_see_it_alone(
    ops: ctypes.CDLL, heads: int, kv_heads: int, dim: int, value: float
) -> None:
    both, place = Sequences(ops, heads, kv_heads, dim), 299
    wanted = both.attend((0, 0, LENGTHS[0]))
    both.v = both.v.float()
    both.v[place, 0, dim // 2] = value
    got, of_the_head = both.attend((0, 0, LENGTHS[0])), heads // kv_heads * dim
    assert torch.equal(got[:place], wanted[:place])
    assert got[place:, :of_the_head].isnan().all()
    assert torch.equal(got[:, of_the_head:], wanted[:, of_the_head:])
    again = both.attend((0, place - 2, place))  # what is left behind them is in their block
    assert torch.equal(again, wanted[place - 2 : place])


def twin(batch: ForwardBatch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows, kv_heads, dim = k.shape
    plan = make_plan(batch, TABLES.size * BLOCK_SIZE, kv_heads, torch.device("cpu"))
    caches = []
    for new in (k, v):
        cache = torch.zeros(TABLES.size + 1, BLOCK_SIZE, kv_heads, dim, dtype=torch.bfloat16)
        cache.view(-1, kv_heads, dim)[plan.write_slots] = new
        caches.append(cache)
    padding = q.new_zeros(pad_rows(rows) - rows, *q.shape[1:])
    return attend(torch.cat([q, padding]), *caches, plan)[:rows]


def work_items(
    ops: ctypes.CDLL,
    rows: list[int],
    kv_heads: int,
    group: int,
    threads: int,
    before: int | list[int],
    team: int = 1,
) -> tuple[np.ndarray, list[int]]:
    """The items of sequences of so many rows behind `before` tokens each, [items, (sequence, KV
    head, first row, end, first chunk, end)], and where those of each thread of a team end."""
    contexts = [before] * len(rows) if isinstance(before, int) else before
    spans = zip(contexts, rows, strict=True)
    positions = np.concatenate([n + np.arange(count, dtype=np.int32) for n, count in spans])
    seq_starts = np.cumsum([0, *rows]).astype(np.int32)
    batch = abi.Batch(rows=sum(rows), sequences=len(rows), threads=threads)
    batch.positions, batch.seq_starts = positions.ctypes.data, seq_starts.ctypes.data
    items = np.zeros((1000, 6), np.int32)
    ends = np.zeros(team, np.int64)
    heads, sizes = map(ctypes.c_int64, (kv_heads, group)), map(ctypes.c_int64, (len(items), team))
    count = ops.op_plan(ctypes.byref(batch), *heads, at(items), *sizes, at(ends))
    assert 0 <= count <= len(items)
    return items[:count], ends.tolist()


@pytest.mark.parametrize(
    ("rows", "kv_heads", "group", "threads", "items", "longest"),
    [
        pytest.param([16], 2, 7, 2, 4, 8, id="as many as fit"),  # 13 rows do
        pytest.param([32], 4, 3, 2, 4, 32, id="whole"),
        pytest.param([16], 3, 3, 2, 6, 8, id="halves"),
        pytest.param([16, 16], 3, 3, 4, 12, 8, id="halves of two"),
        pytest.param([16] * 3, 3, 3, 4, 36, 4, id="quarters of three"),
        pytest.param([20, 20, 9], 3, 3, 2, 24, 7, id="thirds of the longest"),
        pytest.param([6], 3, 3, 2, 3, 6, id="too few rows to cut"),
        pytest.param([5], 1, 24, 3, 2, 3, id="nothing that divides"),
    ],
)
def test_work_items_of_attention_go_evenly_round_the_threads(
    ops: ctypes.CDLL,
    rows: list[int],
    kv_heads: int,
    group: int,
    threads: int,
    items: int,
    longest: int,
) -> None:
    made, _ = work_items(ops, rows, kv_heads, group, threads, before=40)
    assert (len(made), (made[:, 3] - made[:, 2]).max()) == (items, longest)
    check_whole(made, rows, kv_heads, chunks=1)


def test_few_rows_behind_a_long_context_share_its_chunks(ops: ctypes.CDLL) -> None:
    """Three items for two threads would leave one of them idle."""
    made, _ = work_items(ops, [1], 3, 3, 2, before=1023)
    assert len(made) == 9
    check_whole(made, [1], 3, chunks=4)


@pytest.mark.parametrize("team", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "contexts", [[200] * 32, [10], [5000, 20, 20, 20], [10, 300, 700, 1500, 40]], ids=str
)
def test_threads_get_equal_runs_of_adjacent_items(
    ops: ctypes.CDLL, contexts: list[int], team: int
) -> None:
    """The threads of a team that is smaller than what was asked for get them, too."""
    made, ends = work_items(ops, [1] * len(contexts), 3, 3, 7, contexts, team)
    assert ends[-1] == len(made)
    work = (made[:, 3] - made[:, 2]) * (made[:, 5] - made[:, 4])
    runs = [work[a:b].sum() for a, b in zip([0, *ends], ends, strict=False)]
    assert sum(runs) == work.sum()
    assert max(abs(run - work.sum() / team) for run in runs) < work.max()


def check_whole(made: np.ndarray, rows: list[int], kv_heads: int, chunks: int) -> None:
    """Every row meets every chunk once for each KV head, and the most work comes first."""
    seen = np.zeros((kv_heads, sum(rows), chunks), int)
    for sequence, head, first, end, chunk, last in made:
        assert sum(rows[:sequence]) <= first < end <= sum(rows[: sequence + 1])
        seen[head, first:end, chunk:last] += 1
    assert (seen == 1).all()
    work = (made[:, 3] - made[:, 2]) * (made[:, 5] - made[:, 4])
    assert (np.diff(work) <= 0).all()

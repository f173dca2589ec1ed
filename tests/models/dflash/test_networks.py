"""The serving forms against the training form: context injected piece by piece, blocks one by one.

Nothing here knows an engine: rows, slots and blocks are laid out by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.core import ModelError
from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.dflash.batch import BlockOutput, DFlashNetwork
from paceline.models.dflash.checkpoint import DFlashCheckpoint, load_checkpoint
from paceline.models.dflash.module import DFlashModule, draft_logits
from paceline.models.dflash.networks import build_dflash, planned_bytes
from paceline.models.native_network import NativeNetwork, native_available
from paceline.models.network import TorchNetwork
from paceline.models.quantized import INT8, UNQUANTIZED, recipe_of
from tests.engine.tiny import tiny_config
from tests.models.dflash.tiny import write_drafter
from tests.random_weights import random_weights

BLOCKS = 64
SHAPES: list[dict[str, Any]] = [
    {"layers": 1, "block": 4},
    {"layers": 3, "block": 16},
    {"layers": 3, "block": 8, "sliding": "ssf", "window": 24},
    {"layers": 2, "block": 6, "sliding": "ss", "window": 5, "is_causal": False},
    {"layers": 2, "block": 6, "sliding": "sf", "window": 300, "is_causal": True},
    {"layers": 2, "block": 7, "attention_bias": True, "num_attention_heads": 6, "head_dim": 32},
    {"layers": 2, "block": 8, "input_embedding_scale": 8.0, "output_multiplier": 0.5,
     "final_logit_softcapping": 3.0},
    {"layers": 2, "block": 5, "second": True},
    {"layers": 2, "block": 6, "second": True, "output_multiplier": 0.25,
     "final_logit_softcapping": 3.0},
    {"layers": 3, "block": 8, "second": True, "sliding": "sfs", "window": 20},
]  # fmt: skip
FORMS = [
    "torch-float32",
    "torch-bfloat16",
    "native-bfloat16",
    pytest.param("cuda-float32", marks=pytest.mark.cuda),
    pytest.param("cuda-bfloat16", marks=pytest.mark.cuda),
]


@dataclass
class Case:
    """A serving form, and what the training form says with the very same weights."""

    checkpoint: DFlashCheckpoint
    network: DFlashNetwork
    module: DFlashModule
    embedding: torch.Tensor
    head: torch.Tensor
    exact: bool  # float32
    hidden: torch.Tensor | None = None  # of the mask slots last expected

    @property
    def mask(self) -> int:
        return self.checkpoint.config.mask_token_id

    def expected(
        self, features: torch.Tensor, anchor: int, count: int, token: int, first: int = 0
    ) -> torch.Tensor:
        """Logits of `count` mask slots behind `token` at `anchor`, context from `first` on."""
        config = self.checkpoint.config
        ids = torch.tensor([token] + [self.mask] * count)
        embedded = self.embedding[ids].clone()
        if self.checkpoint.mask_embedding is not None:
            embedded[1:] = self.checkpoint.mask_embedding
        embedded = embedded * config.embedding_scale
        context = features[first:anchor]
        with torch.inference_mode():
            hidden = self.module(context, embedded[None], torch.tensor([anchor]), first)
            self.hidden = hidden[0, 1:]
            return draft_logits(config, self.hidden, self.head)


def make_case(
    form: str, folder: Path, cut: list[int] | None = None, quantize: str | None = None
) -> Case:
    backend, dtype = form.split("-")
    device = "cuda" if backend == "cuda" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    backend = "torch" if device == "cuda" else backend
    config, recipe = tiny_config(), recipe_of(quantize, device, dtype)
    weights = random_weights(config, 0, getattr(torch, dtype))
    if backend == "native":
        runs, why = native_available(config)
        if not runs:
            pytest.skip(why)
        target: Any = NativeNetwork(config, weights, 1024, recipe)
    else:
        target = TorchNetwork(config, weights, device, getattr(torch, dtype), 1024, recipe)
    checkpoint = load_checkpoint(folder)
    head_ids = None if cut is None else torch.tensor(cut)
    network = build_dflash(
        checkpoint,
        target,
        dtype=dtype,
        backend=backend,
        quantize=quantize,
        head_ids=head_ids,
        max_positions=900,
    )
    network.allocate_kv(BLOCKS)
    module = DFlashModule(checkpoint.config)
    module.load_state_dict(
        {name: checkpoint.weights[name].to(network.dtype).float() for name in checkpoint.weights}
    )
    everything = torch.arange(256)
    head = target.head_rows(everything).float().cpu()
    return Case(
        checkpoint,
        network,
        module.eval(),
        target.embedding_rows(everything).float().cpu(),
        head if head_ids is None else head[head_ids],
        dtype == "float32",
    )


def inject(case: Case, features: torch.Tensor, blocks: list[int], start: int, end: int) -> None:
    positions = np.arange(start, end, dtype=np.int32)
    table = np.array(blocks, dtype=np.int32)
    slots = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    rows = features[start:end].to(case.network.device, case.network.dtype)
    case.network.inject(rows, positions.tolist(), slots.tolist())


def draft(
    case: Case, jobs: list[tuple[list[int], int, int, int]], first: list[int] | None = None
) -> BlockOutput:
    """Drafts for jobs (blocks, anchor, count, token) in one batch."""
    ids: list[int] = []
    positions: list[int] = []
    starts, rows = [0], []
    for _, anchor, count, token in jobs:
        rows += range(len(ids) + 1, len(ids) + 1 + count)
        ids += [token] + [case.mask] * count
        positions += range(anchor, anchor + count + 1)
        starts.append(len(ids))
    tables = np.zeros((len(jobs), max(len(blocks) for blocks, *_ in jobs)), np.int32)
    for row, (blocks, *_) in enumerate(jobs):
        tables[row, : len(blocks)] = blocks
    output = case.network.draft(
        ForwardBatch(
            ids=np.array(ids, np.int32),
            positions=np.array(positions, np.int32),
            seq_starts=np.array(starts, np.int32),
            block_tables=tables,
            logit_rows=np.array(rows, np.int32),
            first=None if first is None else np.array(first, np.int32),
        ),
        logits=True,
    )
    assert output.logits is not None
    hidden = None if output.hidden is None else output.hidden.float().cpu()
    logits = output.logits.cpu()
    return BlockOutput(output.argmax, output.confidence, logits, hidden)


def features_of(case: Case, tokens: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = case.checkpoint.config.feature_size
    return torch.randn(tokens, size, generator=generator).to(case.network.dtype).float()


def agree(case: Case, output: BlockOutput, expected: torch.Tensor) -> None:
    assert output.logits is not None
    if case.exact:
        torch.testing.assert_close(output.logits, expected, rtol=1e-4, atol=1e-4)
    else:  # roundings of 8 bits
        error = (output.logits - expected).square().mean().sqrt()
        assert error < 0.1 * expected.square().mean().sqrt()
    if output.hidden is not None and case.checkpoint.config.second is not None:
        error = (output.hidden - case.hidden).square().mean().sqrt()
        assert error < (1e-4 if case.exact else 0.1) * case.hidden.square().mean().sqrt()
    column = output.logits.argmax(-1)
    ids = column if case.network.head_ids is None else case.network.head_ids[column]
    assert output.argmax == ids.tolist()
    torch.testing.assert_close(
        torch.tensor(output.confidence),
        torch.softmax(output.logits, -1).amax(-1),
        rtol=1e-3,
        atol=1e-4,
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_equal_the_training_form_as_the_context_grows(shape, form, tmp_path):
    case = make_case(form, write_drafter(tmp_path / "drafter", **shape))
    features, blocks = features_of(case, 700), list(range(50, 3, -1))
    block, done = case.checkpoint.config.block_size, 0
    for anchor, count in [(1, block - 1), (5, 1), (31, 3), (257, block - 1), (690, 2)]:
        count = min(count, block - 1)
        inject(case, features, blocks, done, anchor)
        done = anchor
        output = draft(case, [(blocks, anchor, count, 17)])
        agree(case, output, case.expected(features, anchor, count, 17))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2], SHAPES[-1]], ids=str)
def test_a_ragged_batch_gives_every_request_what_it_gets_alone(shape, form, tmp_path):
    case = make_case(form, write_drafter(tmp_path / "drafter", **shape))
    block = case.checkpoint.config.block_size
    jobs, contexts = [], []
    for index, (anchor, count) in enumerate([(3, block - 1), (40, 1), (300, 4), (16, 2)]):
        blocks = list(range(20 * index, 20 * index + 20)) if index < 3 else [61, 60]
        features = features_of(case, anchor, seed=index)
        inject(case, features, blocks, 0, anchor)
        jobs.append((blocks, anchor, count, 30 + index))
        contexts.append(features)
    alone = []
    for job in jobs:
        output = draft(case, [job])
        alone.append((output.argmax, output.confidence, output.logits.clone()))
    together = draft(case, jobs)
    argmax, confidence, logits = zip(*alone, strict=True)
    assert together.argmax == list(chain(*argmax)), "batch mates changed a draft"
    assert together.confidence == list(chain(*confidence)), "batch mates changed the bits"
    assert torch.equal(together.logits, torch.cat(logits)), "batch mates changed the bits"
    end = 0
    for (_, anchor, count, token), features in zip(jobs, contexts, strict=True):
        rows = slice(end, end + count)
        end += count
        part = BlockOutput(together.argmax[rows], together.confidence[rows], together.logits[rows])
        agree(case, part, case.expected(features, anchor, count, token))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", [1, 40, 256, 520, 599])
def test_context_before_the_first_visible_position_does_not_count(form, first, tmp_path):
    case = make_case(form, write_drafter(tmp_path / "d", layers=2, sliding="sf", window=200))
    features, blocks = features_of(case, 600), list(range(40))
    inject(case, features, blocks, 0, 600)
    output = draft(case, [(blocks, 600, 5, 9)], first=[first])
    agree(case, output, case.expected(features, 600, 5, 9, first))
    before = output.logits.clone()
    inject(case, features + 1, blocks, 0, first)
    assert torch.equal(draft(case, [(blocks, 600, 5, 9)], first=[first]).logits, before)
    if first > 400:  # within the window of both layers
        inject(case, features + 1, blocks, first, first + 1)
        assert not torch.equal(draft(case, [(blocks, 600, 5, 9)], first=[first]).logits, before)


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_head_knows_its_tokens_only(form, tmp_path):
    ids = [3, 17, 18, 90, 91, 92, 200, 255]
    case = make_case(form, write_drafter(tmp_path / "drafter"), cut=ids)
    features, blocks = features_of(case, 50), list(range(8))
    inject(case, features, blocks, 0, 50)
    output = draft(case, [(blocks, 50, 5, 9)])
    agree(case, output, case.expected(features, 50, 5, 9))
    assert set(output.argmax) <= set(ids)
    assert output.logits.shape == (5, len(ids))


@pytest.mark.parametrize("form", FORMS)
def test_the_mask_embedding_takes_the_place_of_the_targets_row(form, tmp_path):
    folder = write_drafter(tmp_path / "drafter", mask_embedding=torch.randn(64))
    case = make_case(form, folder)
    features, blocks = features_of(case, 20), list(range(4))
    inject(case, features, blocks, 0, 20)
    agree(case, draft(case, [(blocks, 20, 5, 9)]), case.expected(features, 20, 5, 9))


@pytest.mark.parametrize("cut", [None, list(range(0, 256, 3))], ids=["full", "cut"])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_the_planned_bytes_are_those_of_the_network(cut, second, quantize, tmp_path):
    folder = write_drafter(tmp_path / "d", second=second)
    case = make_case("native-bfloat16", folder, cut, quantize)
    config, recipe = case.checkpoint.config, INT8 if quantize else UNQUANTIZED
    planned = planned_bytes(config, torch.bfloat16, case.network.head_ids, recipe)
    selector = 2 * (2 * 256 * 12 + 12 * 64) if second else 0  # beside the network
    tables = 2 * 900 * 8 * 4  # rotary
    error = 0.25 if quantize else 0.2  # scales, and pages that so small matrices do not fill
    assert planned - selector == pytest.approx(case.network.weight_bytes - tables, rel=error)


@pytest.mark.parametrize("cut", [None, list(range(0, 256, 3))], ids=["full", "cut"])
@pytest.mark.parametrize("shape", SHAPES[3:8], ids=str)
def test_int8_is_the_same_in_both_serving_forms(shape, cut, tmp_path):
    folder = write_drafter(tmp_path / "drafter", **shape)
    cases = [make_case(f, folder, cut, "int8") for f in ("native-bfloat16", "torch-float32")]
    features, blocks = features_of(cases[1], 60), list(range(8))
    outputs = []
    for case in cases:
        for start, end in ((0, 1), (1, 41), (41, 50)):
            inject(case, features, blocks, start, end)
        outputs.append(draft(case, [(blocks, 50, shape["block"] - 1, 9)]))
    ours, theirs = (output.logits for output in outputs)
    exact = cases[1].expected(features, 50, shape["block"] - 1, 9)
    cost = (theirs - exact).norm() / exact.norm()
    assert 0.002 < cost < 0.15
    # Inputs that differ by a rounding to bf16 are rounded to int8 independently.
    assert (ours - theirs).norm() / exact.norm() < 1.7 * cost
    # A row's bits are its own, in int8 too.
    together = draft(cases[0], [(blocks, 50, shape["block"] - 1, 9)] * 3)
    assert torch.equal(together.logits, ours.repeat(3, 1))


@pytest.mark.parametrize("form", FORMS)
def test_control_one_position_off_is_noticed(form, tmp_path):
    case = make_case(form, write_drafter(tmp_path / "drafter", layers=3, block=16))
    features, blocks = features_of(case, 50), list(range(8))
    inject(case, features, blocks, 0, 50)
    output = draft(case, [(blocks, 50, 15, 9)])
    moved = torch.cat((features[:1], features))
    with pytest.raises(AssertionError):
        agree(case, output, case.expected(moved, 51, 15, 9))


def test_queries_that_fill_no_whole_panel_run_on_torch(tmp_path):
    """The kernels' keys and values begin at a panel of 32 outputs; 3 heads of 16 end within one."""
    folder = write_drafter(tmp_path / "drafter", num_attention_heads=3, num_key_value_heads=1)
    with pytest.raises(ModelError, match="its queries are 48 wide, which is no multiple of 32"):
        make_case("native-bfloat16", folder)

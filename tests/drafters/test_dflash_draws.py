"""A DFlash draft's tokens where requests sample: text, coupling, q."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.core import SamplingParams
from paceline.models.batch import ForwardBatch
from paceline.models.dflash.batch import BlockOutput
from paceline.models.network import TorchNetwork
from tests.deltas import run_to_end, stats_of
from tests.drafters.watched import (
    answers_of_jobs,
    jobs,
    make_engine,
    run,
    tiny_target,
)
from tests.models.dflash.tiny import SECOND, authors_model, write_drafter


@pytest.mark.parametrize(
    "draw", ["argmax", pytest.param("coupled", marks=pytest.mark.slow), "sample"]
)
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_sampled_requests_keep_their_text_however_tokens_are_drawn(draw, second, cut, tmp_path):
    ids = list(range(0, 256, 2)) if cut else None
    folder = write_drafter(tmp_path / "drafter", second=second, head_ids=ids)
    work, expected = jobs(6), answers_of_jobs(6)
    engine = make_engine(f"d={folder},draw={draw}")
    assert run(engine, work, 4) == expected
    drafted = engine.stats().speculation.draft_tokens
    assert drafted > 100


@pytest.mark.parametrize("second", [False, True])
def test_a_coupled_draft_is_the_targets_own_token_where_the_logits_agree(second, tmp_path):
    """The noise is the target's: with the target's logits in place of the drafter's, every token is
    accepted. A selector chooses among as many candidates as the request's top_k leaves."""
    folder = write_drafter(tmp_path / "drafter", second=second)
    engine = make_engine(f"d={folder},draw=coupled")
    if second:
        engine.drafters["d"]._draws.selector._predecessors.zero_()  # codebooks that say nothing
    top_k = SECOND["selector_top_k"] if second else 0
    options = {"temperature": 1.0, "top_k": top_k, "seed": 8, "max_tokens": 40, "ignore_eos": True}
    prompt, params = list(range(30)), SamplingParams(**options)
    (truth,) = run(engine, [(prompt, params)], 1, off=True)
    logits_of = all_logits(tiny_target(), prompt + truth)
    network = engine.drafters["d"].network
    draft = network.draft

    def oracle(batch, *, logits=False):
        output = draft(batch, logits=True)
        start = int(batch.positions[0])
        output.logits[:] = logits_of[start : start + len(output.logits)]
        return output

    network.draft = oracle
    (request,) = engine.make_requests(prompt, params, request_id="x")
    stats = stats_of(run_to_end(engine, [request]))
    assert request.output_ids == truth
    assert stats.draft_rounds > 3 and stats.acceptance_rate == 1.0


def all_logits(target: TorchNetwork, tokens: list[int]) -> torch.Tensor:
    count = len(tokens)
    batch = ForwardBatch(
        ids=np.array(tokens, np.int32),
        positions=np.arange(count, dtype=np.int32),
        seq_starts=np.array([0, count], np.int32),
        block_tables=np.arange(-(-count // 16), dtype=np.int32)[None],
        logit_rows=np.arange(count, dtype=np.int32),
    )
    return target.forward(batch).logits


def test_a_selector_draft_knows_its_q(tmp_path):
    folder = write_drafter(tmp_path / "drafter", second=True)
    engine = make_engine(f"d={folder}", rule="token")
    seen = []
    verify = engine.verifier.verify
    engine.verifier.verify = lambda rows, draft, q: (
        seen.append((draft, q)),
        verify(rows, draft, q),
    )[1]
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=30, ignore_eos=True)
    run(engine, [(list(range(20)), params)], 1)
    drafts = [(draft, q) for draft, q in seen if draft]
    assert drafts and all(q is not None and len(q) == len(draft) for draft, q in drafts)
    for draft, q in drafts:
        for token, row in zip(draft, q, strict=True):
            assert len(row.ids) == 6 and token in row.ids.tolist()
            assert float(row.probs.sum()) == pytest.approx(1.0)


@torch.inference_mode()
def test_the_first_q_of_a_selector_is_the_authors(tmp_path):
    folder = write_drafter(tmp_path / "drafter", second=True)
    engine = make_engine(f"d={folder}", rule="token")
    selector, theirs = engine.drafters["d"]._draws.selector, authors_model(folder)
    hidden, logits = torch.randn(4, 64), torch.randn(4, 256)
    output = BlockOutput(logits.argmax(-1).tolist(), [1.0] * 4, logits, hidden)
    for temperature in (0.5, 1.0):
        params = SamplingParams(temperature=temperature, seed=1)
        (request,) = engine.make_requests([5, 9], params, request_id=f"q{temperature}")
        drawn = selector.walk(request, output, slice(0, 4), "sample")
        _, candidates, q = theirs.candidate_selector.select(
            hidden[None], logits[None], torch.tensor([9]), temperature
        )
        expected = torch.zeros(256).index_copy(0, candidates[0, 0], q[0, 0])
        got = torch.zeros(256).index_copy(0, drawn[0].q.ids, drawn[0].q.probs)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)

"""The DFlash drafter in an engine: what is drafted is what the training form would draft, whatever
acceptance, chunks, preemption and prefix hits did to the draft KV before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.core import InvalidRequest, ModelError, SamplingParams, SpeculativeParams
from paceline.doctor import serving_check
from paceline.drafters import build, parse_spec
from paceline.drafters.reference import Recorder, Trained
from paceline.models import hub
from paceline.models.batch import ForwardBatch
from paceline.models.dflash.batch import BlockOutput
from paceline.models.dflash.features import sequence_features
from paceline.models.native_network import NativeNetwork, native_available
from paceline.models.network import TorchNetwork
from paceline.models.random_weights import random_weights
from tests.drafters.watched import (
    SIZES,
    check_drafts,
    jobs,
    make_engine,
    run,
    tiny_target,
    watch,
)
from tests.engine.tiny import tiny_config, tiny_model
from tests.models.dflash.tiny import SECOND, authors_model, rewrite_weights, write_drafter

SHAPES: list[dict[str, Any]] = [
    {"layers": 2, "block": 6},
    {"layers": 3, "block": 16, "sliding": "ssf", "window": 30},
    {"layers": 2, "block": 5, "second": True},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_serving_drafts_what_training_would(shape, tmp_path):
    folder = write_drafter(tmp_path / "drafter", **shape)
    work = jobs(12)
    truth_runs = run(make_engine(None, prefix_cache=False), work, together=1)
    truth = {tuple(p): out for (p, _), out in zip(work, truth_runs, strict=True)}
    per_token = make_engine(f"d={folder}", **SIZES).plan.kv_bytes_per_token
    engine = make_engine(f"d={folder}", **SIZES, kv_memory=per_token * 16 * 15)
    watched = watch(engine, truth)
    assert run(engine, work, together=8) == truth_runs, "the text changed"
    stats = engine.stats()
    assert stats.preemptions > 0 and stats.prefix_hits > 0, "memory was never short"
    histogram = stats.spec_accepted_per_pos
    assert histogram[0] > 20 and histogram[2] > 5, "too little was accepted to test anything"
    assert len(watched.drafts) > 100
    check_drafts(watched)


def test_a_window_bounds_what_drafts_see(tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    engine = make_engine(f"d={folder}", draft_window=20)
    watched = watch(engine, {})
    run(engine, jobs(4), together=2)
    check_drafts(watched, window=20)


def test_a_prefix_hit_reuses_draft_kv_and_nothing_is_injected_again(tmp_path):
    engine = make_engine(f"d={write_drafter(tmp_path / 'drafter')}")
    network = engine.drafters["d"].network
    inject, injected = network.inject, []

    def counted(features, positions, slots):
        injected.extend(positions.tolist())
        inject(features, positions, slots)

    network.inject = counted
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 8
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    run(engine, [(prompt, params)], 1)
    assert min(injected) == 0
    injected.clear()
    watched = watch(engine, {})
    run(engine, [(prompt, params)], 1)
    assert min(injected) == 48, "63 tokens before the anchor, 3 whole blocks of them known"
    assert {draft.first for draft in watched.drafts} == {0}


def test_a_prefix_hit_without_draft_kv_still_counts_for_the_target(tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    engine = make_engine(f"d={folder}")
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 8
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    plain = run(engine, [(prompt, params)], 1, off=True)
    watched = watch(engine, {tuple(prompt): plain[0]})
    (request,) = engine.make_requests(prompt, params, request_id="again")
    engine.add([request])
    while engine.has_work:
        engine.step()
    assert request.output_ids == plain[0] and request.cached_tokens == 48
    assert {draft.first for draft in watched.drafts} == {48}, "it sees what it was shown"
    check_drafts(watched)


def test_requests_choose_between_two_drafters_in_one_engine(tmp_path):
    one = write_drafter(tmp_path / "one", seed=1, taps=(0,))
    two = write_drafter(tmp_path / "two", seed=2, layers=1, block=9, sliding="s", window=12)
    work = jobs(8)
    expected = run(make_engine(None, prefix_cache=False), work, 1)
    engine = make_engine((f"one={one}", f"two={two}"))
    assert engine.default_drafter == "one"
    names, outputs = ["one", "two", None], []
    requests = []
    for index, (prompt, params) in enumerate(work):
        name = names[index % 3]
        wish = SpeculativeParams(off=True) if name is None else SpeculativeParams(drafter=name)
        requests += engine.make_requests(prompt, params, wish, request_id=str(index))
    engine.add(requests)
    while engine.has_work:
        engine.step()
    outputs = [request.output_ids for request in requests]
    assert outputs == expected
    longest = {name: 0 for name in names}
    for request in requests:
        drafted = max(request.stats.per_step_drafted, default=0)
        longest[request.drafter] = max(longest[request.drafter], drafted)
    assert longest == {"one": 5, "two": 8, None: 0}


def test_two_drafters_see_their_own_layers(tmp_path):
    """On a deeper target, tapping different layers: each gets its own, in its own order."""
    config = tiny_config(num_layers=5)
    loaded = replace(tiny_model("float32"), config=config, weights=random_weights(config, 0))
    one = write_drafter(tmp_path / "one", taps=(0, 2), target_layers=5)
    two = write_drafter(tmp_path / "two", seed=2, taps=(3, 1, 2), target_layers=5)
    engine = make_engine((f"one={one}", f"two={two}"), loaded)
    shown: dict[str, list[Any]] = {"one": [], "two": []}
    for name, drafter in engine.drafters.items():

        def observe(rows, name=name, own=drafter.observe):
            shown[name] += [(row.start, row.count, row.features.clone()) for row in rows]
            own(rows)

        drafter.observe = observe
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    requests = {}
    for name in shown:
        wish = SpeculativeParams(drafter=name)
        (requests[name],) = engine.make_requests(list(range(50)), params, wish, request_id=name)
    engine.add(requests.values())
    while engine.has_work:
        engine.step()
    target = tiny_target(num_layers=5)
    for name, request in requests.items():
        layers = engine.drafters[name].feature_layers
        expected = sequence_features(target, request.tokens, layers)
        assert sum(count for _, count, _ in shown[name]) == len(request.tokens) - 1
        for start, count, features in shown[name]:
            rows = expected[start : start + count]
            torch.testing.assert_close(features, rows, rtol=1e-4, atol=1e-4)


def test_no_feature_outlives_its_step(tmp_path):
    """Every feature tensor of a step is dead or meaningless after it: spoiling them changes no
    draft."""
    folder = write_drafter(tmp_path / "drafter")
    work = jobs(6)
    runs = []
    for spoil in (False, True):
        engine = make_engine(f"d={folder}")
        watched = watch(engine, {})
        if spoil:
            forward, kept = engine.runner.network.forward, []

            def spoiled(batch, layers=(), forward=forward, kept=kept):
                for features in kept:
                    features.fill_(torch.nan)
                output = forward(batch, layers)
                kept[:] = [] if output.features is None else [output.features]
                return output

            engine.runner.network.forward = spoiled
        run(engine, work, together=3)
        runs.append({(d.request, len(d.tokens), len(d.logits)): d.logits for d in watched.drafts})
    # How a prompt is cut into chunks depends on the clock, and with it where drafting begins.
    both = runs[0].keys() & runs[1].keys()
    assert len(both) > 100
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in both)


def test_nothing_is_tapped_for_requests_without_a_drafter(tmp_path):
    engine = make_engine(f"d={write_drafter(tmp_path / 'drafter')}")
    forward, tapped = engine.runner.network.forward, []

    def watched(batch, layers=()):
        tapped.append(layers)
        return forward(batch, layers)

    engine.runner.network.forward = watched
    run(engine, jobs(2), 2, off=True)
    assert set(tapped) == {()}
    run(engine, jobs(2), 2)
    assert (0,) in tapped


@pytest.mark.parametrize("draw", ["argmax", "coupled", "sample"])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_sampled_requests_keep_their_text_however_tokens_are_drawn(draw, second, cut, tmp_path):
    ids = list(range(0, 256, 2)) if cut else None
    folder = write_drafter(tmp_path / "drafter", second=second, head_ids=ids)
    work = jobs(6)
    expected = run(make_engine(None, prefix_cache=False), work, 1)
    engine = make_engine(f"d={folder},draw={draw}")
    assert run(engine, work, 4) == expected
    drafted = engine.stats().spec_draft_tokens
    assert drafted > 100


@pytest.mark.parametrize("second", [False, True])
def test_a_coupled_draft_is_the_targets_own_token_where_the_logits_agree(second, tmp_path):
    """The noise is the target's: with the target's logits in place of the drafter's, every token is
    accepted. A selector chooses among as many candidates as the request's top_k leaves."""
    folder = write_drafter(tmp_path / "drafter", second=second)
    engine = make_engine(f"d={folder},draw=coupled")
    if second:
        engine.drafters["d"]._selector._predecessors.zero_()  # codebooks that say nothing
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
    engine.add([request])
    while engine.has_work:
        engine.step()
    assert request.output_ids == truth
    assert request.stats.draft_rounds > 3 and request.stats.acceptance_rate == 1.0


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


def test_the_plan_counts_draft_weights_and_draft_kv(tmp_path):
    plain = make_engine(None).plan
    folder = write_drafter(tmp_path / "drafter", layers=3)
    engine = make_engine(f"d={folder}")
    plan = engine.plan
    assert plan.drafter_kv_bytes_per_token == 2 * 3 * 2 * 16 * 4  # k and v, layers, heads, width
    assert plan.kv_bytes_per_token == plain.kv_bytes_per_token + plan.drafter_kv_bytes_per_token
    # The torch network joins the projections of k and v in a copy of their own.
    own = (folder / "model.safetensors").stat().st_size + 3 * 2 * 32 * 64 * 4
    assert plan.drafter_weight_bytes == pytest.approx(own, rel=0.05)
    assert plan.weight_bytes == plain.weight_bytes + plan.drafter_weight_bytes
    shown = dict(engine.start_up_table())
    assert "the drafters'" in shown["KV cache"] and "the drafters'" in shown["weights"]
    assert "d (up to 5 tokens), default" in shown["drafter"]


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


def test_the_positions_of_a_drafter_end_where_it_was_made_to(tmp_path):
    """Past its own context it drafts nothing more, and the text goes on."""
    folder = write_drafter(tmp_path / "drafter", max_position_embeddings=60)
    prompt, params = list(range(50)), SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    engine = make_engine(f"d={folder}")
    (expected,) = run(engine, [(prompt, params)], 1, off=True)
    watched = watch(engine, {})
    assert run(engine, [(prompt, params)], 1) == [expected]
    ends = [len(draft.tokens) - 1 + len(draft.logits) for draft in watched.drafts]
    assert max(ends) == 59
    check_drafts(watched)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 128}, "hidden_size is 128; expected 64"),
        ({"vocab_size": 300}, "vocab_size is 300; expected 256"),
        ({"target_layers": 7}, "num_target_layers is 7; expected 2"),
        ({"taps": (1,)}, "target_layer_ids has 1; expected layers 0 to 0"),
    ],
    ids=str,
)
def test_a_drafter_made_for_another_target_is_refused_by_name(options, message, tmp_path):
    folder = write_drafter(tmp_path / "drafter", **options)
    with pytest.raises(ModelError, match=message):
        make_engine(f"d={folder}")


def test_a_mask_that_ends_the_targets_text_is_refused(tmp_path):
    folder = write_drafter(
        tmp_path / "drafter",
        eos_token_id=None,
        dflash_config={"mask_token_id": 3, "target_layer_ids": [0]},
    )
    with pytest.raises(ModelError, match="mask_token_id 3 is the end of text as well"):
        make_engine(f"d={folder}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("max_draft_len=9", "max_draft_len: got 9; expected at most 5: it drafts blocks of 6"),
        ("head=cut", "the checkpoint ships no list of frequent tokens"),
        ("head=half", "head: got 'half'; expected one of auto, full, cut"),
        ("window=0", "window: got '0'"),
        ("draw=loud", "draw: got 'loud'"),
        ("colour=red", "got 'colour'; expected one of max_draft_len, window"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(options, message, tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    with pytest.raises(InvalidRequest, match=message):
        build(parse_spec(f"d={folder},{options}"))


def test_a_folder_is_known_for_what_it_holds(tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    assert parse_spec(str(folder)).kind == "dflash"
    assert parse_spec(f"fast={folder}").name == "fast"
    assert parse_spec(f"fast=dflash:{folder},window=128").options == (("window", "128"),)


def test_a_hub_id_is_known_once_it_is_fetched(tmp_path, monkeypatch):
    folder = write_drafter(tmp_path / "drafter", mask_embedding=torch.randn(64))
    asked = []

    def snapshot(repo_id, **options):
        asked.append((repo_id, options["allow_patterns"]))
        return str(folder)

    monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", snapshot)
    engine = make_engine("fast=z-lab/tiny-DFlash,max_draft_len=3")
    drafter = engine.drafters["fast"]
    assert drafter.max_draft_len == 3 and drafter.checkpoint.mask_embedding is not None
    assert {repo for repo, _ in asked} == {"z-lab/tiny-DFlash"}
    assert all("mask_embedding.pt" in patterns for _, patterns in asked)


def test_a_window_without_a_dflash_drafter_is_refused():
    with pytest.raises(InvalidRequest, match="draft_window: got 64; expected a DFlash drafter"):
        make_engine("ngram", draft_window=64)


def test_weights_that_are_finite_and_damaged_are_refused_at_the_start(tmp_path):
    """Exponents gone wrong in a folder that brings no digest."""
    folder = write_drafter(tmp_path / "drafter")
    weights = load_file(folder / "model.safetensors")
    weights["layers.0.mlp.down_proj.weight"][3] = 3e38
    rewrite_weights(folder, weights)
    with pytest.raises(ModelError, match="its drafts are NaN: the weights are damaged"):
        make_engine(f"d={folder}")


def test_a_context_that_overflows_is_not_drafted_from(tmp_path):
    engine = make_engine(f"d={write_drafter(tmp_path / 'drafter')}", draft_policy="throughput")
    inject = engine.drafters["d"].network.inject
    engine.drafters["d"].network.inject = lambda features, *where: inject(
        torch.full_like(features, torch.inf), *where
    )
    work = jobs(3)
    assert run(engine, work, 3) == run(make_engine(None, prefix_cache=False), work, 1)
    assert engine.stats().spec_draft_tokens == 0


@torch.inference_mode()
def test_the_first_q_of_a_selector_is_the_authors(tmp_path):
    folder = write_drafter(tmp_path / "drafter", second=True)
    engine = make_engine(f"d={folder}", rule="token")
    selector, theirs = engine.drafters["d"]._selector, authors_model(folder)
    hidden, logits = torch.randn(4, 64), torch.randn(4, 256)
    output = BlockOutput(logits.argmax(-1), torch.ones(4), logits, hidden)
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


def test_long_texts_over_many_chunks_keep_serving_and_training_equal(tmp_path):
    """Contexts of several attention chunks, with prefix hits and preemption."""
    folder = write_drafter(tmp_path / "drafter", layers=3, block=8, sliding="sff", window=270)
    shared = [7, 3, 11] * 100
    options = {"temperature": 1.0, "ignore_eos": True, "max_tokens": 330}
    work = [([*shared, i], SamplingParams(seed=i, **options)) for i in range(5)]
    truth_runs = run(make_engine(None, prefix_cache=False), work, together=1)
    truth = {tuple(p): out for (p, _), out in zip(work, truth_runs, strict=True)}
    sizes = {"max_model_len": 700, "token_budget": 64, "max_num_seqs": 8}
    per_token = make_engine(f"d={folder}", **sizes).plan.kv_bytes_per_token
    engine = make_engine(f"d={folder}", **sizes, kv_memory=per_token * 16 * 64)
    watched = watch(engine, truth, rate=0.6)
    assert run(engine, work, together=3) == truth_runs
    assert engine.stats().preemptions > 0 and engine.stats().prefix_hits > 0
    assert max(len(draft.tokens) for draft in watched.drafts) > 600
    watched.drafts = watched.drafts[::4]
    check_drafts(watched)


def test_native_drafters_side_by_side_draft_what_training_would(tmp_path):
    """Their features are columns of one buffer: each must find its own."""
    config = tiny_config(num_layers=5)
    runs, why = native_available(config)
    if not runs:
        pytest.skip(why)
    weights = random_weights(config, 0, torch.bfloat16)
    loaded = replace(tiny_model("bfloat16"), config=config, weights=dict(weights))
    one = write_drafter(tmp_path / "one", taps=(0, 2), target_layers=5)
    two = write_drafter(tmp_path / "two", seed=2, taps=(3, 1, 2), target_layers=5)
    native = {"backend": "native", "dtype": "bfloat16"}
    engine = make_engine((f"one={one}", f"two={two}"), loaded, **native)
    recorders = {name: Recorder(drafter) for name, drafter in engine.drafters.items()}
    engine.drafting.drafters.update(recorders)  # type: ignore[attr-defined]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    requests = {}
    for name in recorders:
        wish = SpeculativeParams(drafter=name)
        (requests[name],) = engine.make_requests(list(range(50)), params, wish, request_id=name)
    engine.add(requests.values())
    while engine.has_work:
        engine.step()
    target = NativeNetwork(config, weights, 1024)
    target.allocate_kv(64)
    for name, request in requests.items():
        trained = Trained(target, recorders[name], {request.id: request.tokens})
        check = serving_check(trained, recorders[name].drafts, "bfloat16")
        assert check.ok and len(recorders[name].drafts) > 20, check.detail

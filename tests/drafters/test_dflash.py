"""The DFlash drafter in an engine: what is drafted is what the training form would draft, whatever
acceptance, chunks, preemption and prefix hits did to the draft KV before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.core import Request, SamplingParams, SpeculativeParams
from paceline.drafters.reference import Recorder, Trained
from paceline.engine.engine import Engine
from paceline.engine.startup import start_up_rows
from paceline.evaluate.doctor import serving_check
from paceline.models.native_network import NativeNetwork, native_available
from paceline.models.networks import sequence_features
from tests.deltas import run_to_end
from tests.drafters.watched import (
    SIZES,
    answers_of_jobs,
    check_drafts,
    jobs,
    make_engine,
    run,
    tiny_target,
    watch,
)
from tests.engine.tiny import tiny_config, tiny_model
from tests.models.dflash.tiny import write_drafter
from tests.random_weights import random_weights

SHAPES: list[dict[str, Any]] = [
    {"layers": 2, "block": 6},
    {"layers": 3, "block": 16, "sliding": "ssf", "window": 30},
    {"layers": 2, "block": 5, "second": True},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_serving_drafts_what_training_would(shape, tmp_path):
    folder = write_drafter(tmp_path / "drafter", **shape)
    work, truth_runs = jobs(12), answers_of_jobs(12)
    truth = {tuple(p): out for (p, _), out in zip(work, truth_runs, strict=True)}
    per_token = make_engine(f"d={folder}", **SIZES).plan.kv_bytes_per_token
    engine = make_engine(f"d={folder}", **SIZES, kv_memory=per_token * 16 * 15)
    watched = watch(engine, truth)
    assert run(engine, work, together=8) == truth_runs, "the text changed"
    stats = engine.stats()
    assert stats.preemptions > 0 and stats.prefix_hits > 0, "memory was never short"
    histogram = [accepted for _, accepted in stats.speculation.by_position()]
    assert histogram[0] > 20 and histogram[2] > 5, "too little was accepted to test anything"
    assert len(watched.drafts) > 100
    check_drafts(watched)


def test_a_window_bounds_what_drafts_see(tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    engine = make_engine(f"d={folder}", draft_window=20)
    watched = watch(engine, {})
    run(engine, jobs(4), together=2)
    check_drafts(watched, window=20)


@pytest.mark.parametrize(
    ("trained", "asked", "option", "window"),
    [
        ({"context": 20}, None, "", 20),
        ({"context": 20, "window": 12}, None, "", 12),
        ({"context": 20}, 30, "", 30),
        ({"context": 20}, 0, "", None),
        ({"context": 20}, 30, ",window=9", 9),
        ({"context": 20}, 30, ",window=0", None),
        ({}, None, "", None),
        ({}, 30, "", 30),
    ],
)
@pytest.mark.parametrize("kind", ["dflash", "hybrid"])
def test_a_drafter_sees_what_it_was_trained_on_unless_it_is_told(
    tmp_path, kind, trained, asked, option, window
):
    folder = write_drafter(tmp_path / "drafter", provenance=trained)
    engine = make_engine(f"d={kind}:{folder}{option}", draft_window=asked)
    assert engine.drafters["d"].window == window
    row = dict(start_up_rows(engine))["window of d"]
    assert row.startswith("all tokens" if window is None else f"the last {window} tokens")
    asked_for = asked is not None or option
    reason = "what it was trained on" if trained else "the folder does not say"
    assert ("as asked for" if asked_for else reason) in row


@pytest.mark.parametrize("option", ["", ",window=0", ",window=5", ",window=33"])
def test_the_text_is_the_same_whatever_the_window(tmp_path, option):
    folder = write_drafter(tmp_path / "drafter", provenance={"context": 20})
    work, truth = jobs(12), answers_of_jobs(12)
    engine = make_engine(f"d={folder}{option}")
    watched = watch(engine, {tuple(p): out for (p, _), out in zip(work, truth, strict=True)})
    assert run(engine, work, together=6) == truth
    assert engine.stats().prefix_hits > 0, "no prompt was like another"
    firsts = [(draft.first, len(draft.tokens) - 1) for draft in watched.drafts]
    window = {"": 20, ",window=0": 10**9, ",window=5": 5, ",window=33": 33}[option]
    assert all(first == max(0, anchor - window) for first, anchor in firsts)
    assert any(anchor > 40 for _, anchor in firsts), "no context was long"


def test_a_prefix_hit_reuses_draft_kv_and_nothing_is_injected_again(tmp_path):
    engine = make_engine(f"d={write_drafter(tmp_path / 'drafter')}")
    network = engine.drafters["d"].network
    inject, injected = network.inject, []

    def counted(features, positions, slots):
        injected.extend(positions)
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
    work, expected = jobs(8), answers_of_jobs(8)
    engine = make_engine((f"one={one}", f"two={two}"))
    assert engine.default_drafter == "one"
    names, outputs = ["one", "two", None], []
    requests = []
    for index, (prompt, params) in enumerate(work):
        name = names[index % 3]
        wish = SpeculativeParams(off=True) if name is None else SpeculativeParams(drafter=name)
        requests += engine.make_requests(prompt, params, wish, request_id=str(index))
    deltas = run_to_end(engine, requests)
    outputs = [request.output_ids for request in requests]
    assert outputs == expected
    longest = {name: 0 for name in names}
    for round in (delta.round for delta in deltas):
        name = round.stream.drafter
        longest[name] = max(longest[name], round.drafted)
    assert longest == {"one": 5, "two": 8, None: 0}


def one_request_each(engine: Engine) -> dict[str, Request]:
    """By drafter: the same prompt for all, run together to its end."""
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    requests = {}
    for name in engine.drafters:
        wish = SpeculativeParams(drafter=name)
        (requests[name],) = engine.make_requests(list(range(50)), params, wish, request_id=name)
    engine.add(requests.values())
    while engine.has_work:
        engine.step()
    return requests


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
    requests = one_request_each(engine)
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
    shown = dict(start_up_rows(engine))
    assert "the drafters'" in shown["KV cache"] and "the drafters'" in shown["weights"]
    assert "d (up to 5 tokens), default" in shown["drafter"]


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


def test_a_context_that_overflows_is_not_drafted_from(tmp_path):
    engine = make_engine(f"d={write_drafter(tmp_path / 'drafter')}", draft_policy="throughput")
    inject = engine.drafters["d"].network.inject
    engine.drafters["d"].network.inject = lambda features, *where: inject(
        torch.full_like(features, torch.inf), *where
    )
    assert run(engine, jobs(3), 3) == answers_of_jobs(3)
    assert engine.stats().speculation.draft_tokens == 0


@pytest.mark.slow
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
    requests = one_request_each(engine)
    target = NativeNetwork(config, weights, 1024)
    target.allocate_kv(64)
    for name, request in requests.items():
        trained = Trained(target, recorders[name], {request.id: request.tokens})
        check = serving_check(trained, recorders[name].drafts, "bfloat16")
        assert check.ok and len(recorders[name].drafts) > 20, check.detail

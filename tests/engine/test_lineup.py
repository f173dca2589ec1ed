"""Drafters join and leave between two steps: no text changes, and nothing of them stays."""

from __future__ import annotations

import gc
import random
import resource
import weakref
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core import InvalidRequest, SamplingParams, SpeculativeParams
from paceline.drafters.base import Drafter
from paceline.engine.costs import DraftCost
from paceline.engine.engine import Engine
from paceline.engine.newcomers import LoadFailed, NoRoom
from paceline.engine.routes import Routes
from paceline.models.networks import sequence_features
from tests.deltas import run_to_end
from tests.drafters.watched import check_drafts, tiny_target, watch
from tests.drafters.watched import make_engine as float_engine
from tests.engine.test_streams import EngineFactory, collect, expected, jobs
from tests.engine.tiny import tiny_config, tiny_model
from tests.models.dflash.tiny import write_drafter
from tests.random_weights import random_weights

ROOM = 2**40
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 8


def join(engine: Engine, name: str, spec: str) -> Drafter:
    """Build a drafter and let it take requests, all those that name none."""
    drafter = engine.builder.build(name, spec, ROOM)
    engine.lineup.join(drafter, spec)
    offered = {**engine.admission.drafters, name: drafter}
    engine.admit_by(replace(engine.admission, drafters=offered, routes=Routes(default=name)))
    return drafter


def retire(engine: Engine, name: str) -> None:
    left = {key: each for key, each in engine.admission.drafters.items() if key != name}
    routes = engine.admission.routes
    if routes.default == name:
        routes = Routes(default=next(iter(left), None))
    engine.admit_by(replace(engine.admission, drafters=left, routes=routes))
    engine.lineup.retire(name)


def test_streams_are_equal_while_drafters_come_and_go(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    """Every few steps another drafter takes the new requests, and the one before retires."""
    work = jobs(24)
    folder = write_drafter(tmp_path / "drafter")
    specs = cycle(["ngram", f"dflash:{folder}", "suffix", f"hybrid:{folder}", "auto"])
    engine = make_engine("suffix")
    waiting, got, pinned = list(enumerate(work)), {}, {}
    retired: list[str] = []
    steps = in_flight = 0
    while waiting or engine.has_work:
        if steps % 7 == 3:
            before = engine.default_drafter
            join(engine, f"d{steps}", next(specs))
            retire(engine, before)
            retired.append(before)
        while waiting and in_flight < 8:
            index, (prompt, params) = waiting.pop(0)
            requests = engine.make_requests(prompt, params, request_id=f"job{index}")
            got |= {r.id: [] for r in requests}
            pinned |= {r.id: r.drafter for r in requests}
            engine.add(requests)
            in_flight += len(requests)
        for delta in engine.step():
            got[delta.request_id].append(delta)
            in_flight -= delta.finished
        running = {r.drafter for r in engine.scheduler.running}
        engine.lineup.leave()
        assert running - {None} <= engine.drafters.keys(), "one left before its last request"
        engine.check_integrity()
        steps += 1
    assert [collect(deltas) for deltas in got.values()] == expected(make_engine, work)
    for name, deltas in got.items():
        assert {d.round.stream.drafter for d in deltas if d.round} == {pinned[name]}
    assert len(set(pinned.values())) > 4, "hardly anything was swapped"
    assert engine.stats().speculation.accepted_tokens > 0
    assert engine.drafters.keys() == {engine.default_drafter}
    assert engine.lineup.retiring == set() and len(retired) > 4


def test_kv_of_a_drafter_that_left_is_not_taken_for_that_of_the_next(tmp_path: Path) -> None:
    """The same folder under the same name: only the prefix of the target is reused, since the new
    drafter's memory is empty."""
    folder = write_drafter(tmp_path / "drafter")
    engine = float_engine(f"d={folder}")
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    def run(name: str) -> list[int]:
        (request,) = engine.make_requests(PROMPT, params, request_id=name)
        run_to_end(engine, [request])
        return request.output_ids

    first = run("first")
    retire(engine, "d")
    (left,) = engine.lineup.leave()
    assert left.version and engine.drafters == {}
    drafter = join(engine, "d", f"dflash:{folder}")
    assert drafter.version == left.version
    watched = watch(engine, {tuple(PROMPT): first})
    assert run("second") == first
    assert engine.stats().prefix_hits == 48
    assert {draft.first for draft in watched.drafts} == {48}, "it sees what it was shown"
    check_drafts(watched)


def test_requests_keep_their_layers_when_others_are_tapped(tmp_path: Path) -> None:
    config = tiny_config(num_layers=5)
    loaded = replace(tiny_model("float32"), config=config, weights=random_weights(config, 0))
    one = write_drafter(tmp_path / "one", taps=(0, 2), target_layers=5)
    two = write_drafter(tmp_path / "two", seed=2, taps=(3, 1, 2), target_layers=5)
    engine = float_engine(f"one={one}", loaded)
    shown: dict[str, list[Any]] = {"one": [], "two": []}

    def watch_rows(drafter: Drafter) -> None:
        own = drafter.observe

        def observe(rows: Any) -> None:
            shown[drafter.name] += [(row.start, row.count, row.features.clone()) for row in rows]
            own(rows)

        drafter.observe = observe  # type: ignore[method-assign]

    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    watch_rows(engine.drafters["one"])
    (old,) = engine.make_requests(list(range(50)), params, request_id="old")
    engine.add([old])
    while old.output_len < 10:
        engine.step()
    watch_rows(join(engine, "two", f"dflash:{two}"))
    retire(engine, "one")
    (new,) = engine.make_requests(list(range(60, 100)), params, request_id="new")
    engine.add([new])
    while engine.has_work:
        engine.step()
        engine.lineup.leave()
    assert (old.drafter, new.drafter) == ("one", "two") and engine.drafters.keys() == {"two"}
    target = tiny_target(num_layers=5)
    for request, layers in ((old, (0, 2)), (new, (3, 1, 2))):
        rows = sequence_features(target, request.tokens, layers)
        assert sum(count for _, count, _ in shown[request.drafter]) >= len(request.tokens) - 9
        for start, count, features in shown[request.drafter]:
            torch.testing.assert_close(features, rows[start : start + count], rtol=1e-4, atol=1e-4)


def test_a_drafter_waits_for_its_last_request(make_engine: EngineFactory) -> None:
    engine = make_engine(("ngram", "suffix"))
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    (request,) = engine.make_requests(PROMPT, params, request_id="r")
    engine.add([request])
    retire(engine, "ngram")
    with pytest.raises(InvalidRequest, match=r"speculative\.drafter: got 'ngram'.*suffix"):
        engine.make_requests(PROMPT, params, SpeculativeParams(drafter="ngram"), request_id="x")
    while request.finish_reason is None:
        assert engine.lineup.leave() == [] and request.drafter == "ngram"
        engine.step()
    assert [drafter.name for drafter in engine.lineup.leave()] == ["ngram"]
    assert engine.drafters.keys() == engine.lineup.specs.keys() == {"suffix"}


def test_an_engine_without_a_drafter_gets_its_first(make_engine: EngineFactory) -> None:
    engine = make_engine(None, draft_policy="throughput")
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    (plain,) = engine.make_requests(PROMPT, params, request_id="plain")
    engine.add([plain])
    engine.step()
    join(engine, "first", "ngram")
    (drafted,) = engine.make_requests(PROMPT, params, request_id="drafted")
    run_to_end(engine, [drafted])
    while engine.has_work:
        engine.step()
    assert drafted.output_ids == plain.output_ids
    assert (plain.drafter, drafted.drafter) == (None, "first")
    assert engine.stats().speculation.draft_rounds > 0


def held_by(engine: Engine) -> dict[str, int]:
    """How much an engine keeps in the tables that drafters have entries in."""
    throughput = engine.drafting.lengths._controllers["throughput"]
    tables = {name: getattr(throughput, name) for name in vars(throughput)}
    sizes = {name: len(table) for name, table in tables.items() if isinstance(table, dict)}
    return sizes | {
        "drafters": len(engine.drafters),
        "specs": len(engine.lineup.specs),
        "costs": len(engine.drafting.costs.drafters),
        "draft kv": len(engine.cache._draft_kv),
        "looking up": len(engine.drafting._looking_up),
        "rounds": len(engine._rounds._streams),
        "free blocks": engine.cache.free_blocks,
    }


def megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def most(sizes: list[dict[str, int]]) -> dict[str, int]:
    return {name: max(size[name] for size in sizes) for name in sizes[0]}


def test_two_hundred_swaps_leave_nothing(make_engine: EngineFactory, tmp_path: Path) -> None:
    folders = [write_drafter(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    specs = cycle([f"dflash:{folders[0]}", f"hybrid:{folders[1]}", f"hybrid:{folders[0]}"])
    engine = make_engine("suffix", draft_policy="throughput", kv_memory=2**22)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    rng = random.Random(1)
    gc.collect()
    gc.disable()  # what is freed is freed by its references, at once
    try:
        sizes, memory, alive = [], [], []
        for swap in range(200):
            before = engine.default_drafter
            alive.append(weakref.ref(join(engine, f"d{swap}", next(specs))))
            prompt = [rng.randrange(256) for _ in range(40)]
            run_to_end(engine, engine.make_requests(prompt, params, request_id=f"r{swap}"))
            retire(engine, before)
            assert len(engine.lineup.leave()) == 1
            sizes.append(held_by(engine))
            memory.append(megabytes())
    finally:
        gc.enable()
    assert sum(ref() is not None for ref in alive) == 1
    # what the clock decides about one drafter is there or not, so single swaps may differ by that
    first, last = most(sizes[:20]), most(sizes[-20:])
    assert {name: size for name, size in last.items() if size > first[name]} == {}
    assert sizes[-1]["free blocks"] == sizes[2]["free blocks"]
    assert max(memory[100:]) - memory[50] < 25
    engine.check_integrity()


def test_a_newcomer_costs_what_one_of_its_shape_does_and_is_not_timed(
    make_engine: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (write_drafter(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    other = write_drafter(tmp_path / "other", layers=1)
    engine = make_engine(f"one={one}")
    known = engine.drafting.costs.of("one")
    assert known.proposing.count > 0, "start-up has timed it"
    drafters = [
        engine.builder.build(n, f"dflash:{f}", ROOM) for n, f in (("two", two), ("o", other))
    ]
    for drafter in drafters:
        monkeypatch.setattr(type(drafter), "rehearse", lambda *_: pytest.fail("timed"))
        engine.lineup.join(drafter, "spec")
    costs = engine.drafting.costs
    assert costs.of("two") is not known and costs.of("two").proposing == known.proposing
    assert costs.of("o").proposing == DraftCost().proposing and costs.of("o").parallel


def test_a_drafter_that_does_not_fit_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "drafter")
    engine = float_engine(f"d={folder}", spare_drafter_memory=0, kv_memory=2**22)
    taken = engine.plan.drafter_bytes
    needs = engine.drafters["d"].weight_bytes + engine.plan.kv_bytes_of(engine.drafters["d"])
    assert taken == needs
    with pytest.raises(
        NoRoom, match=r"drafter e needs .* are missing; retire .*drafter-memory 1MiB"
    ):
        engine.builder.build("e", f"dflash:{folder}", 0)
    assert engine.builder.build("text", "suffix", 0).weight_bytes == 0
    roomy = float_engine(f"d={folder}", kv_memory=2**22)
    assert roomy.plan.spare_bytes >= needs
    assert roomy.builder.build("e", f"dflash:{folder}", roomy.plan.spare_bytes).kv is not None
    with pytest.raises(InvalidRequest, match="would fit: --spare-drafter-memory 0") as refused:
        float_engine(f"d={folder}", spare_drafter_memory=2**60, kv_memory=2**22)
    assert refused.value.field == "spare_drafter_memory"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nonsense", "spec: drafter: got 'nonsense'; expected one of"),
        ("ngram,max_draft_len=99", "spec: drafter e, max_draft_len: got '99'"),
        ("other=ngram", "a spec without a name, or with e="),
        ("dflash:/no/such/folder", "/no/such/folder"),
        ("hybrid", "after it, as hybrid:PATH"),
    ],
)
def test_a_bad_spec_is_refused_by_name(make_engine: EngineFactory, spec: str, words: str) -> None:
    engine = make_engine("ngram")
    with pytest.raises(InvalidRequest, match=words) as refused:
        engine.builder.build("e", spec, ROOM)
    assert (refused.value.field, refused.value.value) == ("spec", spec)


def test_a_drafter_of_another_target_is_refused(make_engine: EngineFactory, tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", target_layers=7)
    engine = make_engine("ngram")
    with pytest.raises(InvalidRequest, match="spec: drafter e: num_target_layers is 7; expected 2"):
        engine.builder.build("e", f"dflash:{folder}", ROOM)


def test_a_load_that_dies_leaves_nothing(
    make_engine: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_drafter(tmp_path / "drafter")
    engine = make_engine("ngram")
    alive: list[weakref.ref[Drafter]] = []

    def attach(drafter: Any, target: object) -> None:
        alive.append(weakref.ref(drafter))
        raise MemoryError("no memory for a forward of 3 rows")

    from paceline.drafters.dflash import DFlashDrafter

    monkeypatch.setattr(DFlashDrafter, "attach", attach)
    before, threads = held_by_drafters(engine), torch.get_num_threads()
    with pytest.raises(LoadFailed, match="no memory for a forward of 3 rows"):
        engine.builder.build("e", f"dflash:{folder}", ROOM)
    assert len(alive) == 1 and alive[0]() is None, "something holds what was loaded"
    assert held_by_drafters(engine) == before and torch.get_num_threads() == threads


def held_by_drafters(engine: Engine) -> tuple[set[str], set[str]]:
    return set(engine.drafters), set(engine.drafting.costs.drafters)

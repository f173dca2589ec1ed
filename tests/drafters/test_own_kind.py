"""A kind of drafter that a test registers is served by name, with the engine unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.core import InvalidRequest
from paceline.drafters import kinds
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.kinds import DRAFT_LENGTH, BuildContext, DrafterSpec, register
from paceline.models.networks import build_network
from tests.drafters.watched import jobs, make_engine, run
from tests.engine.tiny import tiny_model

CONTEXTS: list[BuildContext] = []


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kind "twin": a network with the target's own weights, run as the target runs."""
    monkeypatch.setitem(kinds.KINDS, "twin", kinds.KINDS["ngram"])  # taken out afterwards

    @register("twin")
    def build(spec: DrafterSpec, context: BuildContext) -> DraftModelDrafter:
        CONTEXTS.append(context)
        assert context.target is not None
        loaded = tiny_model("float32")
        network, _ = build_network(
            loaded,
            dtype=context.dtype,
            device=context.device,
            backend=context.backend,
            max_positions=context.target.max_context,
        )
        settings = spec.settings(DRAFT_LENGTH)
        return DraftModelDrafter(
            spec.name, network, max_positions=loaded.max_context, min_token_prob=0.0, **settings
        )

    yield
    CONTEXTS.clear()


def test_a_kind_of_ones_own_drafts_and_changes_no_text(twin: None) -> None:
    engine, work = make_engine("mine=twin,max_draft_len=4"), jobs(6)
    assert run(engine, work, 4) == run(make_engine(None), work, 1)
    stats = engine.stats().speculation
    assert stats.draft_tokens > 100
    assert stats.accepted_tokens > 0.8 * stats.draft_tokens, "it is the target's twin"


def test_a_factory_knows_the_engine_it_builds_for(twin: None) -> None:
    make_engine("twin", rule="token")
    (context,) = CONTEXTS
    assert (context.dtype, context.backend, context.device) == ("float32", "torch", "cpu")
    assert context.needs_q and context.window is None and context.quantize is None


def test_a_window_that_no_drafter_looks_at_is_refused(twin: None) -> None:
    with pytest.raises(InvalidRequest, match="draft_window"):
        make_engine("twin", draft_window=8)


def test_a_kind_that_nobody_registered_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"one of .*auto, dflash"):
        make_engine("twin")

"""What a store of drafters allows, what it refuses by name, and what it tells."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.autospec.store import (
    TRANSITIONS,
    ArtefactDamaged,
    DrafterStore,
    StoreChange,
    TargetIdentity,
    VersionState,
)
from paceline.autospec.store.place import default_folder
from paceline.core import InvalidRequest
from tests.autospec.store.stores import (
    COHORT,
    ME,
    add_version,
    drafter_folder,
    faults,
    store_with,
)

OTHER = "Qwen3-8B|chat|fr|eu"
LIVE, RETIRED = VersionState.LIVE, VersionState.RETIRED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_the_room_needs_no_torch() -> None:
    script = (
        "import sys, paceline.autospec.store, paceline.autospec.jobs;"
        "assert not {'torch', 'transformers', 'fastapi'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("before", [*VersionState])
@pytest.mark.parametrize("after", [state for state in VersionState if state is not RETIRED])
def test_a_promotion_keeps_to_the_table(
    before: VersionState, after: VersionState, folder: Path
) -> None:
    allowed = after in TRANSITIONS[before] and before not in (VersionState.REGISTERED, RETIRED)
    with store_with(folder, a=before) as store:
        if allowed:
            store.promote("a", ME, after, cohort=COHORT if after is LIVE else "")
            assert store.version("a").state is after
            return
        with pytest.raises(InvalidRequest):
            store.promote("a", ME, after)
        assert store.version("a").state is before


def test_a_promotion_goes_to_the_next_state_by_default(folder: Path) -> None:
    with store_with(folder, a="trained") as store:
        states = []
        for _ in range(4):
            store.promote("a", ME)
            states.append(str(store.version("a").state))
        assert states == ["scored", "shadow", "canary", "live"]
        assert [str(step.after) for step in store.history("a")] == ["trained", *states]


def test_a_version_is_scored_only_with_a_score(folder: Path) -> None:
    with DrafterStore(folder, create=True) as store:
        store.register("a", ME, spec="suffix")
        with pytest.raises(InvalidRequest, match=r"to: got 'scored'; expected .* a has none"):
            store.promote("a", ME)


def test_one_version_is_live_for_a_cohort(folder: Path) -> None:
    with store_with(folder, a="live", b="trained", c="trained") as store:
        assert store.promote("b", ME, LIVE, cohort=COHORT) == StoreChange(COHORT, "b", ())
        assert store.live() == {"": "a", COHORT: "b"}
        assert store.promote("c", ME, LIVE) == StoreChange("", "c", ("a",))
        assert store.promote("c", ME, LIVE, cohort=COHORT) == StoreChange(COHORT, "c", ("b",))
        assert store.live() == {"": "c", COHORT: "c"} and store.serves("c") == ["", COHORT]
        assert store.history("b")[-1].reason == "replaced by c: because"
        with pytest.raises(InvalidRequest, match=r"expected a version that does not serve all"):
            store.promote("c", ME, LIVE)
    assert faults(folder) == []


def test_a_version_stays_live_while_it_serves_anyone(folder: Path) -> None:
    with store_with(folder, a="live", b="trained") as store:
        store.promote("a", ME, LIVE, cohort=COHORT)
        assert store.promote("b", ME, LIVE).retired == ()
        assert store.version("a").state is LIVE and store.serves("a") == [COHORT]
        store.retire("a", ME)
        assert store.live() == {"": "b"}


def test_rollbacks_go_back_step_by_step(folder: Path) -> None:
    with store_with(folder, a="live", b="trained", c="trained") as store:
        store.promote("b", ME, LIVE)
        store.promote("c", ME, LIVE)
        assert store.rollback(ME) == StoreChange("", "b", ("c",))
        previous = store.previous()
        assert previous is not None and previous.name == "a"
        assert store.rollback(ME) == StoreChange("", "a", ("b",))
        assert store.previous() is None
        with pytest.raises(InvalidRequest, match=r"nothing to go back to: no .* before a"):
            store.rollback(ME)
        store.promote("a", ME, LIVE, cohort=COHORT)
        with pytest.raises(InvalidRequest, match=r"not retired; a rollback may make b live again"):
            store.promote("b", ME, LIVE)
    assert faults(folder) == []


def test_a_rollback_of_a_cohort_leaves_the_others(folder: Path) -> None:
    with store_with(folder, a="live", b="trained") as store:
        store.promote("b", ME, LIVE, cohort=COHORT)
        store.promote("b", ME, LIVE, cohort=OTHER)
        assert store.rollback(ME, COHORT) == StoreChange(COHORT, None, ())
        assert store.live() == {"": "a", OTHER: "b"}
        assert store.rollback(ME, OTHER) == StoreChange(OTHER, None, ("b",))
        assert store.live() == {"": "a"}
    assert faults(folder) == []


def test_a_rollback_brings_back_what_was_retired_last(folder: Path) -> None:
    with store_with(folder, a="live") as store:
        store.retire("a", ME)
        assert store.live() == {}
        assert store.rollback(ME) == StoreChange("", "a", ())
        assert store.live() == {"": "a"}
    assert faults(folder) == []


def test_a_change_that_comes_too_late_is_refused(folder: Path) -> None:
    with store_with(folder, a="shadow") as store:
        store.promote("a", ME)
        with pytest.raises(
            InvalidRequest, match=r"expected a version that is shadow; it is canary"
        ):
            store.promote("a", ME, expected=VersionState.SHADOW)
        assert store.version("a").state is VersionState.CANARY


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a,b", "x" * 101, "ä"])
def test_a_name_is_one_that_a_server_takes(name: str, folder: Path) -> None:
    with (
        DrafterStore(folder, create=True) as store,
        pytest.raises(InvalidRequest, match=r"^name: "),
    ):
        store.register(name, ME, spec="suffix")


def test_names_are_given_once_and_misspelt_ones_are_hinted_at(folder: Path) -> None:
    with store_with(folder, **{"chat-1": "trained"}) as store:
        with pytest.raises(InvalidRequest, match=r"expected a name that no version has yet"):
            store.register("chat-1", ME, spec="ngram")
        with pytest.raises(InvalidRequest, match=r"did you mean chat-1"):
            store.version("chat1")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mine=suffix", "expected a spec without NAME="),
        ("hybrid:/no/such/folder", "expected a folder that exists"),
        ("suffix,corpus=/no/such/folder", "expected a folder that exists"),
        ("suffix,corpus", "no key=value"),
        ("suffix,x={y}", "expected a spec without braces"),
    ],
)
def test_a_wrong_spec_is_refused_and_leaves_nothing(spec: str, message: str, folder: Path) -> None:
    with DrafterStore(folder, create=True) as store:
        with pytest.raises(InvalidRequest, match=message):
            store.register("a", ME, spec=spec)
        assert store.versions() == []


def test_a_spec_leads_to_the_copies_in_the_store(folder: Path, tmp_path: Path) -> None:
    network, corpus = drafter_folder(tmp_path / "n"), drafter_folder(tmp_path / "c", b"tokens")
    with DrafterStore(folder, create=True) as store:
        store.register("a", ME, spec=f"hybrid:{network},corpus={corpus},max_draft_len=4")
        store.register("b", ME, spec=str(network))
        a, b = store.version("a"), store.version("b")
        places = store.folders(a)
        assert store.spec(a) == (
            f"hybrid:{places['network']},corpus={places['corpus']},max_draft_len=4"
        )
        assert (b.kind, store.spec(b)) == ("dflash", f"dflash:{places['network']}")
        assert (places["corpus"] / "model.safetensors").read_bytes() == b"tokens"
        assert len([path for path in store.artefacts.folder.iterdir() if path.is_dir()]) == 2
        assert a.checksum != b.checksum


def test_changed_bytes_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    network = drafter_folder(tmp_path / "n")
    with DrafterStore(folder, create=True) as store:
        store.register("a", ME, spec=str(network))
        weights = store.folders(store.version("a"))["network"] / "model.safetensors"
        weights.chmod(0o644)
        weights.write_bytes(b"weightz")
        fault = "version a: .*the content of model.safetensors has changed"
        for state in (VersionState.SHADOW, VersionState.CANARY, LIVE):
            with pytest.raises(ArtefactDamaged, match=fault):
                store.promote("a", ME, state)
        assert store.version("a").state is VersionState.TRAINED
        store.register("b", ME, spec=str(network))  # the same bytes, whole again
        store.promote("a", ME, LIVE)


def test_a_rollback_to_changed_bytes_changes_nothing(folder: Path, tmp_path: Path) -> None:
    with DrafterStore(folder, create=True) as store:
        store.register("a", ME, spec=str(drafter_folder(tmp_path / "n")))
        store.promote("a", ME, LIVE)
        add_version(store, "b", LIVE)
        (store.folders(store.version("a"))["network"] / "config.json").unlink()
        with pytest.raises(ArtefactDamaged, match=r"version a: .*config.json is missing"):
            store.rollback(ME)
        assert store.live() == {"": "b"}


def test_discarded_files_are_gone_and_the_version_stays(folder: Path, tmp_path: Path) -> None:
    shared, own = drafter_folder(tmp_path / "n"), drafter_folder(tmp_path / "c", b"tokens")
    with DrafterStore(folder, create=True) as store:
        store.register("a", ME, spec=f"hybrid:{shared},corpus={own}")
        store.register("b", ME, spec=str(shared))
        places = store.folders(store.version("a"))
        with pytest.raises(InvalidRequest, match=r"expected a version that is retired"):
            store.discard("a")
        store.promote("a", ME, LIVE)
        store.promote("b", ME, LIVE)
        store.discard("a")
        assert places["network"].is_dir() and not places["corpus"].exists()
        with pytest.raises(ArtefactDamaged, match=r"version a: its files were removed"):
            store.rollback(ME)
        assert store.live() == {"": "b"} and len(store.history("a")) == 3


def test_a_version_knows_its_target_and_its_parents(folder: Path, tmp_path: Path) -> None:
    network = drafter_folder(tmp_path / "n")
    target = {"name": "tiny", "weights_sha256": "w", "tokenizer_sha256": "t", "template": "x"}
    (network / "provenance.json").write_text(json.dumps({"target": target}))
    with DrafterStore(folder, create=True) as store:
        store.register("a", ME, spec=str(network))
        assert store.version("a").target == TargetIdentity("tiny", "w", "t", "x")
        store.register("b", ME, parent="a")
        store.complete("b", f"hybrid:{network}", ME)
        store.register("c", ME, spec="suffix", parent="b")
        assert store.lineage("c") == ["b", "a"]
        assert store.version("c").target == store.version("a").target
        with pytest.raises(InvalidRequest, match=r"parent: got 'a'; expected .* tokenizer u; a is"):
            store.register("d", ME, parent="a", target=TargetIdentity(tokenizer="u"))
        with pytest.raises(InvalidRequest, match=r"drafter for the weights that was stated"):
            store.register("d", ME, spec=str(network), target=TargetIdentity(weights="v"))
        with pytest.raises(InvalidRequest, match=r"parent: got 'nobody'"):
            store.register("d", ME, parent="nobody")


def test_folders_for_two_targets_are_refused(folder: Path, tmp_path: Path) -> None:
    places = []
    for name in ("one", "two"):
        place = drafter_folder(tmp_path / name)
        target = {"name": "tiny", "tokenizer_sha256": name}
        (place / "provenance.json").write_text(json.dumps({"target": target}))
        places.append(place)
    with (
        DrafterStore(folder, create=True) as store,
        pytest.raises(InvalidRequest, match=r"folders for one tokenizer of the target"),
    ):
        store.register("a", ME, spec=f"hybrid:{places[0]},corpus={places[1]}")


def test_the_latest_score_on_each_cohort_counts(folder: Path) -> None:
    with DrafterStore(folder, create=True) as store:
        store.register("a", ME, spec="suffix")
        for cohort, al in itertools.product(("", COHORT), (2.0, 3.0)):
            store.add_score("a", cohort, al, al - 0.1, al + 0.1, 50, "traces")
        assert [(score.cohort, score.al) for score in store.scores("a")] == [
            ("", 3.0),
            (COHORT, 3.0),
        ]


@pytest.mark.parametrize("numbers", [(0.5, 0.4, 0.6), (2.0, 2.1, 2.2), (2.0, 1.0, float("nan"))])
def test_a_score_that_is_none_is_refused(numbers: tuple[float, ...], folder: Path) -> None:
    with store_with(folder, a="trained") as store, pytest.raises(InvalidRequest, match=r"^al: "):
        store.add_score("a", "", *numbers, 10, "traces")


def test_a_cohort_is_a_label(folder: Path) -> None:
    with store_with(folder, a="trained") as store:
        with pytest.raises(InvalidRequest, match=r"cohort: got 'chat'; expected model\|app"):
            store.promote("a", ME, LIVE, cohort="chat")
        with pytest.raises(InvalidRequest, match=r"only a live version serves a cohort"):
            store.promote("a", ME, VersionState.CANARY, cohort=COHORT)


def test_the_default_lies_in_the_users_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_folder() == Path("/data/paceline/autospec")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_folder() == Path("/home/me/.local/share/paceline/autospec")

"""A DFlash drafter that does not fit is refused at the start, by name; its folder is found."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from paceline.core import InvalidRequest, ModelError
from paceline.drafters.spec import build, parse_spec
from paceline.models import catalog
from tests.drafters.watched import (
    make_engine,
)
from tests.models.dflash.tiny import rewrite_weights, write_drafter


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
        ("window=all", "window: got 'all'; expected a whole number from 0"),
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

    monkeypatch.setattr(catalog.huggingface_hub, "snapshot_download", snapshot)
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

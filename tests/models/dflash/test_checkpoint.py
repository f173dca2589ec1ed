"""Drafters' folders: both formats, and refusals that name the culprit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.core import ModelError
from paceline.models.dflash.checkpoint import is_drafter, load_checkpoint, save_checkpoint
from paceline.models.dflash.config import default_layer_ids, read_dflash_config
from paceline.models.dflash.tensors import dflash_tensors
from tests.models.dflash.tiny import (
    authors_model,
    config_json,
    random_drafter_weights,
    rewrite_weights,
    speculators_json,
    write_drafter,
    write_speculators,
)


def change_config(folder: Path, **changes: Any) -> None:
    """Changes config.json as a careless hand would; None takes a key out."""
    path = folder / "config.json"
    hf = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in hf.items() if value is not None}))
    (folder / "paceline.json").unlink(missing_ok=True)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_checkpoint(folder)
    assert f"drafter {folder.name}" in str(caught.value)


@pytest.mark.parametrize("second", [False, True])
def test_what_is_written_is_read_back(second, tmp_path):
    hf = config_json(layers=3, sliding="sfs", second=second)
    config = read_dflash_config(hf)
    weights, mask = random_drafter_weights(config), torch.randn(64)
    provenance = {"target": "tiny", "target_layer_ids": [0], "context": 512}
    ids = [9, 4, 200, 30, 31, 32]
    save_checkpoint(
        tmp_path / "d", hf, weights, mask_embedding=mask, head_ids=ids, provenance=provenance
    )
    read = load_checkpoint(tmp_path / "d")
    assert read.config == config and read.format == "z-lab"
    assert set(read.weights) == set(dflash_tensors(config))
    assert all(torch.equal(read.weights[name], weights[name]) for name in weights)
    assert torch.equal(read.mask_embedding, mask)
    assert read.head_ids.tolist() == sorted(ids)
    assert read.provenance.context == 512 and read.provenance.target_layer_ids == (0,)
    assert read.provenance.template is None


def test_tensors_have_the_formats_names_and_shapes(tmp_path):
    """11 N + 3 tensors, named as in the authors' releases."""
    folder = write_drafter(tmp_path / "d", layers=2, head_dim=32, intermediate_size=80)
    stored = {name: list(t.shape) for name, t in load_file(folder / "model.safetensors").items()}
    assert len(stored) == 11 * 2 + 3
    assert stored["fc.weight"] == [64, 64] and stored["hidden_norm.weight"] == [64]
    assert stored["norm.weight"] == [64]
    assert stored["layers.1.self_attn.q_proj.weight"] == [128, 64]
    assert stored["layers.1.self_attn.k_proj.weight"] == [64, 64]
    assert stored["layers.1.self_attn.k_norm.weight"] == [32]
    assert stored["layers.1.mlp.down_proj.weight"] == [64, 80]


def test_the_version_follows_the_content(tmp_path):
    one, same = write_drafter(tmp_path / "a", seed=1), write_drafter(tmp_path / "b", seed=1)
    other = write_drafter(tmp_path / "c", seed=2)
    versions = [load_checkpoint(folder).version for folder in (one, same, other)]
    assert versions[0] == versions[1] != versions[2]


def test_default_layers_are_the_authors():
    assert default_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert default_layer_ids(64, 5) == (1, 16, 31, 46, 61)
    assert default_layer_ids(28, 5) == (1, 7, 13, 19, 25)
    assert default_layer_ids(16, 5) == (1, 4, 7, 10, 13)
    assert default_layer_ids(30, 1) == (15,)


@pytest.mark.parametrize("place", ["top", "dflash_config"])
def test_block_size_may_stand_in_either_place(place, tmp_path):
    hf = config_json(block=6)
    if place == "dflash_config":
        hf["dflash_config"]["block_size"] = hf.pop("block_size")
    assert read_dflash_config(hf).block_size == 6
    hf.pop("block_size", None)
    hf["dflash_config"].pop("block_size", None)
    assert read_dflash_config(hf).block_size == 16


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(None, False)] * 3),
        ({"layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
          "sliding_window": 9, "use_sliding_window": True}, [(9, True), (None, False), (9, True)]),
        ({"layer_types": ["sliding_attention"] * 3, "sliding_window": 9,
          "use_sliding_window": True, "is_causal": False}, [(9, False)] * 3),
        ({"is_causal": True}, [(None, True)] * 3),
        ({"layer_types": None, "use_sliding_window": True, "sliding_window": 7,
          "max_window_layers": 2}, [(None, False), (None, False), (7, True)]),
    ],
    ids=["full", "mixed", "sliding, not causal", "all causal", "by max_window_layers"],
)  # fmt: skip
def test_causality_and_windows_follow_the_authors_rule(changes, expected):
    config = read_dflash_config(config_json(layers=3, **changes))
    assert [(kind.window, kind.causal) for kind in config.attention] == expected


# -- speculators -----------------------------------------------------------------------------------


def test_speculators_format_is_the_same_drafter_with_layers_counted_from_one(tmp_path):
    copy = torch.zeros(256, 64)  # of the target's, which it may carry along
    folder = write_speculators(tmp_path / "s", speculators_json(), **{"embed_tokens.weight": copy})
    read, ours = load_checkpoint(folder), read_dflash_config(config_json())
    assert read.format == "speculators" and read.config.target_layer_ids == (0,)
    assert read.config.layers == ours.layers and read.config.attention == ours.attention
    assert "embed_tokens.weight" not in read.weights
    hf = {**read.config_json, "num_target_layers": 2}
    save_checkpoint(tmp_path / "z", hf, {n: read.weights[n] for n in read.weights})
    again = load_checkpoint(tmp_path / "z")
    assert again.format == "z-lab"
    assert replace(again.config, num_target_layers=None) == read.config
    assert authors_model(tmp_path / "z").target_layer_ids == [0], "the authors' package loads it"


@pytest.mark.parametrize(("flag", "causal"), [(False, True), (True, False)])
def test_speculators_sliding_layers_are_causal_unless_told(flag, causal, tmp_path):
    hf = speculators_json(sliding_window_non_causal=flag)
    hf["transformer_layer_config"] |= {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 12,
    }
    read = load_checkpoint(write_speculators(tmp_path / "s", hf))
    kinds = [(kind.window, kind.causal) for kind in read.config.attention]
    assert kinds == [(12, causal), (None, False)]
    hf = {**read.config_json, "num_target_layers": 2}
    save_checkpoint(tmp_path / "z", hf, {n: read.weights[n] for n in read.weights})
    theirs = authors_model(tmp_path / "z")
    assert [layer.self_attn.is_causal for layer in theirs.layers] == [causal, False]
    assert [layer.self_attn.sliding_window for layer in theirs.layers] == [12, None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle3"}, "speculators_model_type 'eagle3' is not read"),
        ({"speculators_model_type": "dspark"}, "speculators_model_type 'dspark' is not read"),
        ({"draft_vocab_size": 100}, "draft_vocab_size is 100, .*d2t/t2d.*vocabulary \\(256\\)"),
        ({"target_hidden_size": 96}, "target_hidden_size is 96; expected .*\\(64\\)"),
        ({"aux_hidden_state_layer_ids": [0, 1]}, "aux_hidden_state_layer_ids has 0, the embedding"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids is None"),
        ({"sample_from_anchor": True}, "sample_from_anchor .* is not supported"),
        ({"mask_token_id": None}, "mask_token_id is None"),
    ],
    ids=str,
)
def test_speculators_configs_we_cannot_honour_are_refused(changes, message, tmp_path):
    refused(write_speculators(tmp_path / "s", speculators_json(**changes)), message)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen3DSparkModel"]}, "DSpark drafters are not read"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "EAGLE drafters are not read"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "no DFlash drafter; expected DFlashDraftModel"),
        ({"markov_rank": 256}, "markov_rank \\(a DSpark drafter\\)"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is unsupported"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
         "rope_theta is 10000.0, rope_parameters.rope_theta is 1000000.0; expected one"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2},
          "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
         "is .* in rope_parameters and .* in rope_scaling; expected one value"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2},
          "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4}},
         "factor is 4 in rope_parameters and 2 in rope_scaling"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"block_size": 1}, "block_size is 1; expected at least 2"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries; expected .* 2 layers"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 8},
         "use_sliding_window is False"),
        ({"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True},
         "sliding_window is None"),
        ({"pad_token_id": 250}, "mask_token_id 250 is the padding token as well"),
        ({"eos_token_id": [1, 250]}, "mask_token_id 250 is the end of text as well"),
        ({"vocab_size": 200}, "mask_token_id is 250; expected an id of the vocabulary, 0 to 199"),
    ],
    ids=str,
)  # fmt: skip
def test_configs_we_cannot_honour_are_refused(changes, message, tmp_path):
    folder = write_drafter(tmp_path / "d")
    change_config(folder, **changes)
    refused(folder, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projector_type": "domino"}, "projector_type 'domino' \\(a Domino drafter\\)"),
        ({"shift_label": True}, "shift_label \\(a Domino drafter\\)"),
        ({"attention_sink_bias": True}, "attention_sink_bias"),
        ({"mask_token_id": "<mask>"}, "mask_token_id is '<mask>'; expected a token id"),
        ({"target_layer_ids": [1, 1]}, "target_layer_ids is \\[1, 1\\]; expected distinct"),
        ({"target_layer_ids": [5]}, "target_layer_ids has 5; expected layers 0 to 1"),
        ({"input_embeding_scale": 45.0}, "dflash_config.input_embeding_scale is not known"),
        ({"attention_value_scale": 0.5}, "attention_value_scale \\(scaled attention values\\)"),
        ({"block_size": 9}, "block_size is 6, dflash_config.block_size is 9; expected one"),
    ],
    ids=str,
)
def test_dflash_configs_we_cannot_honour_are_refused(changes, message, tmp_path):
    folder = write_drafter(tmp_path / "d")
    change_config(folder, dflash_config={**config_json()["dflash_config"], **changes})
    refused(folder, message)


def test_windows_that_contradict_each_other_are_refused(tmp_path):
    folder = write_drafter(tmp_path / "d", sliding="ss", window=2048)
    extra = config_json()["dflash_config"] | {"swa_window_size": 512}
    change_config(folder, dflash_config=extra)
    refused(folder, "sliding_window is 2048, dflash_config.swa_window_size is 512")


def test_a_neutral_value_is_no_reason_to_refuse(tmp_path):
    folder = write_drafter(tmp_path / "d")
    extra = config_json()["dflash_config"] | {"attention_value_scale": 1.0, "use_swa": False}
    change_config(folder, dflash_config=extra)
    assert load_checkpoint(folder).config.attention[0].window is None


def test_a_convolution_that_does_not_divide_the_width_is_refused(tmp_path):
    folder = write_drafter(tmp_path / "d", second=True)
    extra = config_json(second=True)["dflash_config"] | {"conv_group_size": 24}
    change_config(folder, dflash_config=extra)
    refused(folder, "conv_group_size is 24; expected a divisor of hidden_size \\(64\\)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": None}, "tensor fc.weight is missing"),
        ({"layers.1.mlp.up_proj.weight": torch.zeros(3, 64)},
         "layers.1.mlp.up_proj.weight has shape \\[3, 64\\]; the config asks for \\[96, 64\\]"),
        ({"extra.weight": torch.zeros(2)}, "unexpected tensor extra.weight"),
        ({"d2t": torch.zeros(2)}, "tensor d2t is EAGLE's map from a reduced vocabulary"),
        ({"prefix_gru.weight_ih": torch.zeros(2)}, "is a Domino drafter's"),
        ({"markov_head.w1": torch.zeros(2)}, "is a DSpark drafter's"),
        ({"lm_head.weight": torch.zeros(2, 2)}, "a head of the drafter's own"),
        ({"norm.weight": torch.full((64,), torch.nan)}, "norm.weight holds NaN or infinity"),
        ({"norm.weight": torch.zeros(64, dtype=torch.int32)}, "is stored as I32"),
        ({"rotary_emb.inv_freq": torch.ones(8)}, "is not the RoPE of the config"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_tensors_that_do_not_belong_are_refused_by_name(change, message, tmp_path):
    folder = write_drafter(tmp_path / "d")
    weights = {**load_file(folder / "model.safetensors"), **change}
    rewrite_weights(folder, {name: t for name, t in weights.items() if t is not None})
    refused(folder, message)


def test_stored_rotary_frequencies_may_agree(tmp_path):
    folder = write_drafter(tmp_path / "d")
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    weights = load_file(folder / "model.safetensors")
    rewrite_weights(folder, {**weights, "rotary_emb.inv_freq": frequencies})
    assert "rotary_emb.inv_freq" not in load_checkpoint(folder).weights


@pytest.mark.parametrize("damage", ["truncated", "one bit", "header"])
def test_a_damaged_file_is_refused(damage, tmp_path):
    folder = write_drafter(tmp_path / "d")
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[:-100]
    elif damage == "one bit":
        data[-1000] ^= 4
    else:
        data[20:40] = bytes(20)
    path.write_bytes(data)
    refused(folder, "SHA-256" if damage == "one bit" else "not a readable safetensors file")


def test_a_config_changed_behind_the_digest_is_refused(tmp_path):
    folder = write_drafter(tmp_path / "d")
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    refused(folder, "damaged or changed since it was written")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"embedding": torch.zeros(63)}, "embedding is \\[63\\]; expected \\[64\\]"),
        ({"embedding": torch.zeros(64), "mask_token_id": 7}, "mask_token_id is 7; expected .*250"),
        ({"embedding": torch.full((64,), torch.inf)}, "NaN or infinity"),
        ({"embedding": torch.zeros(6, 64), "per_position": True}, "per_position"),
        ({}, "embedding is NoneType"),
    ],
    ids=str,
)
def test_a_mask_embedding_that_does_not_fit_is_refused(state, message, tmp_path):
    folder = write_drafter(tmp_path / "d")
    (folder / "paceline.json").unlink()
    torch.save(state, folder / "mask_embedding.pt")
    refused(folder, f"mask_embedding.pt: .*{message}")


def test_a_mask_embedding_that_runs_code_is_refused(tmp_path):
    folder = write_drafter(tmp_path / "d")
    (folder / "paceline.json").unlink()

    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    torch.save({"embedding": Evil()}, folder / "mask_embedding.pt")
    refused(folder, "mask_embedding.pt: not readable")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"head_token_ids": [1, 256]}, "head_token_ids must be token ids from 0 to 255"),
        ({"head_token_ids": [2, 1]}, "ascending"),
        ({"head_token_ids": []}, "head_token_ids"),
        (
            {"provenance": {"context": "512"}},
            "provenance.context: got '512'; expected a whole number",
        ),
        (
            {"provenance": {"target_layer_ids": [0.5]}},
            "provenance.target_layer_ids.*: got 0.5; expected a whole number",
        ),
        ({"provenance": {"colour": "red"}}, "provenance.colour: unknown field"),
        (
            {"provenance": {"rope_theta": 5.0}},
            "rope_theta is 10000; the drafter was trained with 5",
        ),
    ],
    ids=str,
)
def test_what_we_wrote_ourselves_is_checked_too(own, message, tmp_path):
    folder = write_drafter(tmp_path / "d")
    (folder / "paceline.json").write_text(json.dumps(own))
    refused(folder, message)


def test_a_theta_may_be_written_without_a_point(tmp_path):
    folder = write_drafter(tmp_path / "d")
    (folder / "paceline.json").write_text('{"provenance": {"rope_theta": 10000}}')
    assert load_checkpoint(folder).provenance.rope_theta == 10000


def test_a_selector_needs_enough_tokens_in_a_cut_head(tmp_path):
    with pytest.raises(ModelError, match="head_token_ids has 3 ids; expected at least"):
        write_drafter(tmp_path / "d", second=True, head_ids=[1, 2, 3])
    assert not (tmp_path / "d" / "config.json").exists(), "a half-written folder must not load"


def test_a_folder_that_is_written_again_keeps_nothing_of_the_old_drafter(tmp_path):
    write_drafter(tmp_path / "d", seed=1, mask_embedding=torch.randn(64), head_ids=[1, 2])
    (tmp_path / "d" / "model.safetensors.index.json").write_text('{"weight_map": {"x": "old"}}')
    again = load_checkpoint(write_drafter(tmp_path / "d", seed=2))
    assert again.mask_embedding is None and again.head_ids is None


def test_folders_are_told_apart(tmp_path):
    assert is_drafter(write_drafter(tmp_path / "d"))
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    assert not is_drafter(model) and not is_drafter(tmp_path)

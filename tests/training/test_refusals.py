"""What cannot be trained is refused by name, before time is spent."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from paceline.core import InvalidRequest
from paceline.dataset.training_set import read_manifest, read_rows, write_manifest
from paceline.training import run
from paceline.training.run import train
from tests.training.conftest import PROMPTS, write_set
from tests.training.runs import config, quiet


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("layers", 9, "layers: got 9; expected a whole number from 1 to 8"),
        ("block", 1, "block: got 1"),
        ("weights", "linear", "weights: got 'linear'; expected 'dpace'"),
        ("mix", {"mse": 1.0}, "mix: got 'mse'; expected objectives among ce, kl"),
        ("mix", {}, "at least one objective"),
        ("epochs", 1.0, "steps: got 1; expected either steps, epochs or hours"),
        ("hours", 1.0, "steps: got 1; expected either steps, epochs or hours"),
        ("micro", 3, "a divisor of texts"),
        ("trackers", ("excel",), r"trackers\[0\]: got 'excel'"),
        ("lr", float("nan"), "lr: got nan"),
        ("seed", -1, "seed: got -1"),
        ("on_regression", "stop", "on_regression: got 'stop'; expected init beside it"),
        ("regression", 0.1, "regression: got 0.1; expected init beside it"),
        ("matrix_lr", 0.1, "matrix_lr: got 0.1; expected optimizer muon"),
        ("soft_tokens", 8, "soft_tokens: got 8; expected an objective .* or on_policy beside it"),
        ("short_share", 0.1, "short_share: got 0.1; expected short_block"),
        ("short_share", 0.5, "short_share: got 0.5; expected a number from 0 to 0.2"),
        ("shard_target", True, "features_gb: got 0.1; expected no shard_target"),
        ("target_engine", "mlx", "got 'mlx'; expected 'paceline', .* or 'sglang'"),
        ("target_url", "http://a:1", "target_url: got 'http://a:1'; expected target_engine sglang"),
        ("features_only", True, "features_only: got true; expected features_folder beside it"),
        ("attention", "dense", "attention: got 'dense'; expected 'auto', 'padded' or 'flex'"),
        ("attention", "flex", "attention: got 'flex'; expected auto or padded, .* on a CPU"),
        ("target_devices", 2, "target_devices: got 2; expected target_engine vllm beside it"),
        ("target_python", "python3", "target_python: got 'python3'; expected target_engine vllm"),
        ("target_options", {"dtype": "auto"}, "target_options: got 'dtype'; expected an option th"),
        ("target_options", {"seed": "1"}, "target_options: got .*; expected target_engine vllm"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(field, value, match, target, tmp_path):
    with pytest.raises(InvalidRequest, match=match):
        config(target, tmp_path, tmp_path / "run", steps=1, **{field: value})


@pytest.mark.parametrize(("field", "value"), [("compile", True), ("attention", "flex")])
def test_what_compiles_on_cuda_asks_for_triton(field, value, target, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    plain = config(target, tmp_path, tmp_path / "run", steps=1, device="cuda")
    run.check_compiler(plain)
    with pytest.raises(InvalidRequest, match=f"{field}: got .*, or the package triton installed"):
        run.check_compiler(replace(plain, **{field: value}))


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("tokenizer_sha256", "tokenizer"),
        ("template", "chat template"),
        ("weights_sha256", "weights"),
    ],
)
def test_a_set_of_another_target_is_refused(key, what, target, tmp_path):
    other = write_set(tmp_path / "other", target, PROMPTS, **{key: "0" * 64})
    with pytest.raises(InvalidRequest, match=f"made with this model's {what}"):
        train(config(target, other, tmp_path / "run", steps=1), quiet)
    assert not (tmp_path / "run").exists()


def test_a_damaged_shard_is_refused(target, trainset, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trainset, copy)
    data = bytearray((copy / "train-00000.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (copy / "train-00000.parquet").write_bytes(bytes(data))
    with pytest.raises(InvalidRequest, match="changed or damaged"):
        train(config(target, copy, tmp_path / "run", steps=1), quiet)


def test_a_folder_that_is_no_set_is_refused(target, tmp_path):
    with pytest.raises(InvalidRequest, match="paceline synth"):
        train(config(target, tmp_path, tmp_path / "run", steps=1), quiet)


def test_a_disk_without_room_is_refused_before_the_first_step(
    target, trainset, tmp_path, monkeypatch
):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InvalidRequest, match="MiB free"):
        train(config(target, trainset, tmp_path / "run", steps=4), quiet)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"taps": 5}, "taps: got 5; expected at most 4"),
        ({"mask_token": 3}, "mask_token: got 3; expected an id of the vocabulary that neither"),
        ({"short_block": 6}, "short_block: got 6; expected less than the block's 6"),
        ({"selector_share": 2.0}, "selector_share: got 2.0; expected generation dflash2"),
        (
            {"mix": {"expected_matches": 1.0}, "weights": "uniform"},
            "weights: got 'uniform'; expected an objective of single slots in mix, such as ce",
        ),
        (
            {"mix": {"expected_speedup": 1.0, "kl": 0.1}, "round_costs": (1.2, 1.3)},
            r"round_costs: got \[1.2, 1.3\]; expected 5 numbers, one for each drafted token",
        ),
        ({"selector_rank": 8}, "selector_rank: got 8; expected generation dflash2"),
        ({"generation": "dflash2", "head_tokens": 8}, "head_tokens: got 8; expected at least 16"),
    ],
    ids=str,
)
def test_a_shape_that_could_not_be_served_is_refused(changes, match, target, trainset, tmp_path):
    with pytest.raises(InvalidRequest, match=match):
        train(config(target, trainset, tmp_path / "run", steps=1, **changes), quiet)


def test_a_mask_token_that_stands_in_the_texts_is_refused(target, trainset, tmp_path):
    token = next(read_rows(trainset, "train")).ids[0]
    with pytest.raises(InvalidRequest, match=f"mask_token: got {token}; expected an id"):
        train(config(target, trainset, tmp_path / "run", steps=1, mask_token=token), quiet)


def test_a_target_is_spread_over_several_processes_only(target, trainset, tmp_path):
    alone = {"shard_target": True, "features_gb": None}
    with pytest.raises(InvalidRequest, match="several processes, started by torchrun"):
        train(config(target, trainset, tmp_path / "run", steps=1, **alone), quiet)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"shard_target": True, "features_gb": None, "target_engine": "paceline"},
         "target_engine: got 'paceline'; expected transformers beside shard_target"),
        ({"quantize": "int8", "target_engine": "transformers"},
         "quantize: got 'int8'; expected target_engine paceline"),
        ({"quantize": "int8", "target_engine": "vllm"},
         "quantize: got 'int8'; expected target_engine paceline"),
        ({"shard_target": True, "features_gb": None, "target_engine": "vllm"},
         "target_engine: got 'vllm'; expected transformers beside shard_target"),
        ({"quantize": "int8", "target_engine": "sglang"},
         "quantize: got 'int8'; expected target_engine paceline"),
        ({"shard_target": True, "features_gb": None, "target_engine": "sglang"},
         "target_engine: got 'sglang'; expected transformers beside shard_target"),
        ({"target_engine": "sglang", "mix": {"kl": 1.0}},
         "target_engine: got 'sglang'; expected paceline or transformers: sglang does not show"),
        ({"target_engine": "vllm", "mix": {"kl": 1.0}},
         "target_engine: got 'vllm'; expected paceline or transformers: vllm does not show the"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_the_target_that_exclude_each_other_are_refused(changes, match, tmp_path):
    with pytest.raises(InvalidRequest, match=match):
        config(tmp_path, tmp_path, tmp_path / "run", steps=1, **changes)


def test_names_of_sets_are_not_shared(target, trainset, tmp_path):
    twice = {"held_out": {"tiny-set": str(trainset)}}
    with pytest.raises(InvalidRequest, match="a name of its own for every set"):
        train(config(target, trainset, tmp_path / "run", steps=1, **twice), quiet)


def test_a_set_that_is_to_be_watched_must_have_what_is_watched(target, trainset, tmp_path):
    """A guard that looks at nothing would be none."""
    bare = tmp_path / "bare"
    shutil.copytree(trainset, bare)
    manifest = read_manifest(bare)
    manifest.shards = manifest.of("train")
    write_manifest(bare, manifest)
    watched = {"out_of_domain": {"bare": str(bare)}}
    with pytest.raises(InvalidRequest, match=r"out_of_domain: .* a set with a held_out split"):
        train(config(target, trainset, tmp_path / "run", steps=1, **watched), quiet)
    watched = {"held_out": {"bare": str(bare)}}
    with pytest.raises(InvalidRequest, match=r"held_out: .* held_out or foreign split"):
        train(config(target, trainset, tmp_path / "run", steps=1, **watched), quiet)
    with pytest.raises(InvalidRequest, match=r"held_out: .* a set with a held_out split"):
        train(config(target, bare, tmp_path / "run", steps=1), quiet)


def test_a_place_that_is_taken_is_refused(target, trainset, tmp_path):
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(InvalidRequest, match=r"out: .* a folder, new or of the same run"):
        train(config(target, trainset, taken, steps=1), quiet)
    (tmp_path / "run" / "drafter").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="a folder without a drafter/ of another run"):
        train(config(target, trainset, tmp_path / "run", steps=1), quiet)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(target, trainset, tmp_path):
    with pytest.raises(InvalidRequest, match="device: got 'cuda'; expected cpu"):
        train(config(target, trainset, tmp_path / "run", steps=1, device="cuda"), quiet)

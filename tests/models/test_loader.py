"""Loading Hugging Face folders: what comes out, and refusals that name the culprit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import errors
from safetensors.torch import load_file, save_file

from paceline.core import InvalidRequest, ModelError
from paceline.models import catalog
from paceline.models.catalog import pull
from paceline.models.loader import load_model
from paceline.models.networks import build_network
from paceline.models.tensors import EMBEDDING, HEAD, expected_tensors
from tests.models.tiny import Cache, random_ids, save_model
from tests.random_weights import random_weights

NORM = "model.layers.1.input_layernorm.weight"


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    weights = {**load_file(path), **changes}
    save_file({k: v for k, v in weights.items() if v is not None}, path, {"format": "pt"})


def test_folder_loads_with_all_that_serving_needs(tmp_path: Path) -> None:
    model = save_model(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    change_config(tmp_path, eos_token_id=9)
    loaded = load_model(str(tmp_path))
    assert loaded.config.family == "llama" and loaded.max_context == 2048
    assert loaded.eos_ids == {2, 7, 9}
    assert loaded.tokenizer("w5 w7")["input_ids"] == [5, 7]
    assert set(loaded.weights) == set(expected_tensors(loaded.config))
    assert all(torch.equal(loaded.weights[k], v) for k, v in model.state_dict().items())


def test_sharded_folder_loads(tmp_path: Path) -> None:
    model = save_model(tmp_path, max_shard_size="60KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    loaded = load_model(str(tmp_path))
    assert all(torch.equal(loaded.weights[k], v) for k, v in model.state_dict().items())
    shards[1].unlink()
    with pytest.raises(ModelError, match=shards[1].name):
        load_model(str(tmp_path))


def test_tied_head_may_be_stored(tmp_path: Path) -> None:
    save_model(tmp_path, tie_word_embeddings=True)
    assert HEAD not in load_model(str(tmp_path)).weights
    embedding = load_file(tmp_path / "model.safetensors")[EMBEDDING]
    change_weights(tmp_path, **{HEAD: embedding.clone()})
    loaded = load_model(str(tmp_path))
    assert loaded.config.tie_word_embeddings and HEAD not in loaded.weights
    change_weights(tmp_path, **{HEAD: embedding + 1})
    loaded = load_model(str(tmp_path))
    assert not loaded.config.tie_word_embeddings and HEAD in loaded.weights


def test_stored_rotary_frequencies_are_harmless(tmp_path: Path) -> None:
    save_model(tmp_path)
    change_weights(tmp_path, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)})
    assert (
        len(load_model(str(tmp_path)).weights) == len(load_file(tmp_path / "model.safetensors")) - 1
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({NORM: None}, [NORM, "missing"]),
        ({HEAD: None}, [HEAD, "missing"]),
        ({NORM: torch.ones(47)}, [NORM, "[47]", "[48]"]),
        ({HEAD: torch.ones(198, 48)}, [HEAD, "[198, 48]", "[199, 48]"]),
        (
            {"model.layers.3.mlp.up_proj.weight": torch.ones(1)},
            ["layers.3.mlp.up_proj", "unexpected"],
        ),
        ({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}, ["q_proj.bias", "unexpected"]),
        ({NORM: torch.ones(48, dtype=torch.int8)}, [NORM, "I8", "BF16"]),
    ],
)
def test_wrong_tensors_are_refused_by_name(
    tmp_path: Path, changes: dict[str, torch.Tensor | None], named: list[str]
) -> None:
    save_model(tmp_path)
    change_weights(tmp_path, **changes)
    with pytest.raises(ModelError) as refusal:
        load_model(str(tmp_path))
    for word in named:
        assert word in str(refusal.value)


def test_unusable_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(str(tmp_path))
    save_model(tmp_path)
    change_config(tmp_path, quantization_config={"quant_method": "gptq"})
    with pytest.raises(ModelError, match="gptq"):
        load_model(str(tmp_path))
    change_config(tmp_path, quantization_config=None)
    (tmp_path / "tokenizer.json").rename(tmp_path / "gone.json")
    with pytest.raises(ModelError, match="tokenizer"):
        load_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(ModelError, match="not a readable safetensors"):
        load_model(str(tmp_path))
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*save_pretrained"):
        load_model(str(tmp_path))
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="no weights"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="JSON"):
        load_model(str(tmp_path))


def test_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, vocab_size=100)
    with pytest.raises(ModelError, match=r"150 tokens.*100"):
        load_model(str(tmp_path))


def test_hub_id_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path)
    asked: list[tuple[str, str | None]] = []

    def snapshot(repo_id: str, *, revision: str | None, **patterns: Any) -> str:
        asked.append((repo_id, revision))
        assert "*.safetensors" in patterns["allow_patterns"]
        return str(tmp_path)

    monkeypatch.setattr(catalog.huggingface_hub, "snapshot_download", snapshot)
    loaded = load_model("some-org/some.model", revision="v2")
    assert asked == [("some-org/some.model", "v2")]
    assert loaded.path == tmp_path and loaded.name == "some-org/some.model"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.LocalEntryNotFoundError("no"), "cannot be reached"),
        (errors.OfflineModeIsEnabled("no"), "cannot be reached"),
        (ConnectionError("no"), "cannot be reached"),
    ],
)
def test_hub_without_network_says_so(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def snapshot(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(catalog.huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(ModelError, match=rf"org/name: .*{said}.* or one of smollm2-135m,"):
        load_model("org/name")
    with pytest.raises(ModelError, match="did you mean Qwen3-8B"):
        load_model("Qwen/Qwen3-8C")
    with pytest.raises(ModelError, match=r"(?!.*did you mean).*from PyPI$"):
        load_model("Qwen/Qwen3-8B")


@pytest.mark.parametrize("name", ["no-such-model", "/nowhere/at/all", "a b/c", ""])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="`paceline list`"):
        pull(name)


def test_file_that_is_no_gguf_and_stray_revision_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match=r"\.gguf"):
        pull(str(file))
    with pytest.raises(ModelError, match="revision 'main'"):
        pull(str(tmp_path), revision="main")


def test_build_network_says_what_it_chose(tmp_path: Path) -> None:
    save_model(tmp_path)
    loaded = load_model(str(tmp_path))
    network, why = build_network(loaded, dtype="float32", max_positions=64)
    assert why.startswith("torch") and "float32" in why
    cache = Cache(network, 1, 64)
    assert network.forward(cache.batch([(0, 0, random_ids(64))], "last")).logits.shape == (1, 199)
    with pytest.raises(ValueError, match="position 64"):
        network.forward(Cache(network, 1, 80).batch([(0, 60, [1, 2, 3, 4, 5])]))
    streamed = [w for name, w in loaded.weights.items() if w.dim() == 2 and name != EMBEDDING]
    assert network.streamed_bytes == sum(weight.nbytes for weight in streamed)
    embedding = loaded.weights[EMBEDDING]
    assert network.weight_bytes == network.streamed_bytes + embedding.nbytes
    network.read_weights()
    _, why = build_network(loaded, backend="torch")
    assert why == "torch (asked for)"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"backend": "native", "dtype": "float32"}, ["native", "float32"]),
        ({"dtype": "int8"}, ["dtype", "int8", "bfloat16"]),
        ({"device": "tpu"}, ["device", "tpu", "cuda"]),
        ({"backend": "fast"}, ["backend", "fast", "auto"]),
    ],
)
def test_build_network_refuses_what_cannot_be(
    tmp_path: Path, options: dict[str, str], named: list[str]
) -> None:
    save_model(tmp_path)
    with pytest.raises(ModelError) as refusal:
        build_network(load_model(str(tmp_path)), **options)
    for word in named:
        assert word in str(refusal.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    with pytest.raises(InvalidRequest, match="device: got 'cuda'; expected cpu"):
        build_network(load_model(str(tmp_path)), device="cuda")


def test_random_weights_fit_and_repeat(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3", head_dim=16)
    config = load_model(str(tmp_path)).config
    first, again = (
        random_weights(config, 1, torch.bfloat16),
        random_weights(config, 1, torch.bfloat16),
    )
    assert {k: tuple(v.shape) for k, v in first.items()} == expected_tensors(config)
    assert all(v.dtype == torch.bfloat16 and torch.equal(v, again[k]) for k, v in first.items())
    assert not torch.equal(random_weights(config, 2)[HEAD], first[HEAD].float())

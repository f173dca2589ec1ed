"""GGUF files: what llama.cpp's converter would write reads back as the same network."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from paceline.core import ModelError
from paceline.models import gguf_convert
from paceline.models.config import RopeConfig
from paceline.models.families import config_from_hf
from paceline.models.gguf_config import LAYER_NAMES, TOP_NAMES
from paceline.models.loader import LoadedModel, load_model
from paceline.models.network import TorchNetwork
from paceline.models.on_disk import local_folder
from paceline.models.rope import rope_frequencies
from tests.models.tiny import Cache, hf_config, hf_model, random_ids, run_in_chunks

VOCAB = 280  # 256 bytes, three merges, special tokens; the rest is padding
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def gguf_name(name: str) -> str:
    for theirs, ours in TOP_NAMES.items():
        if ours == name:
            return theirs
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    (theirs,) = [a for a, b in LAYER_NAMES.items() if b == stem]
    return f"blk.{layer}.{theirs}.{kind}"


def permute(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder q and k of Llama models as llama.cpp's converter does."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def write_gguf(
    path: Path,
    model: Any,
    arch: str,
    edit: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **changes: Any,
) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, changes.get("named_arch", arch))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    add_vocabulary(writer, changes.get("pre", "smollm"))
    edit(writer)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if arch == "llama" and ".q_proj." in name:
            values = permute(values, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            values = permute(values, config.num_key_value_heads)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
        else:
            packed = gguf.quants.quantize(np.ascontiguousarray(values), kind)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: gguf.GGUFWriter, pre: str) -> None:
    letters = list(bytes_to_unicode().values())
    tokens = [*SPECIALS, *letters, "he", "ll", "hell"]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), VOCAB)]
    types = [gguf.TokenType.NORMAL] * VOCAB
    types[: len(SPECIALS)] = [gguf.TokenType.CONTROL] * len(SPECIALS)
    types[-VOCAB + len(SPECIALS) + 259 :] = [gguf.TokenType.UNUSED] * (VOCAB - len(SPECIALS) - 259)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["h e", "l l", "he ll"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template(TEMPLATE)


def rounded(model: Any) -> Any:
    """The model with weights as bfloat16 has them: the conversion stores no more."""
    with torch.no_grad():
        for weight in model.parameters():  # not the rotary frequencies, which are buffers
            weight.copy_(weight.bfloat16())
    return model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


def logits_of(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    return run_in_chunks(TorchNetwork(loaded.config, loaded.weights), ids, [len(ids)])


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied, biases": ("llama", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
}


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_file_reads_back_as_the_same_network(case: str, tmp_path: Path) -> None:
    family, options = CASES[case]
    model = rounded(hf_model(family, vocab_size=VOCAB, **options))
    pre = {"llama": "smollm"}.get(family, "qwen2")
    write_gguf(tmp_path / "tiny.gguf", model, family, pre=pre)
    loaded = load_model(str(tmp_path / "tiny.gguf"))
    assert loaded.config == config_from_hf(hf_config(model))
    assert all(weight.dtype == torch.bfloat16 for weight in loaded.weights.values())
    ids = random_ids(70, VOCAB)
    expected = model(torch.tensor([ids])).logits[0]
    assert (logits_of(loaded, ids) - expected).abs().max() < 1e-4


def test_tokenizer_template_and_ends_come_along(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", hf_model("llama", vocab_size=VOCAB), "llama")
    loaded = load_model(str(tmp_path / "tiny.gguf"))
    tokenizer = loaded.tokenizer
    assert loaded.eos_ids == {0, 2}
    assert tokenizer.backend_tokenizer.encode("hello").tokens == ["hell", "o"]
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi  12"}])
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids[0] == 1 and ids[-1] == 2
    assert tokenizer.decode(ids) == "<|im_start|>hi  12<|im_end|>"
    # SmolLM splits at every digit, so both spaces stay together before "12".
    split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")
    assert [piece for piece, _ in split] == ["a", "ĠĠ", "1", "2"]


def test_quantised_file_is_dequantised(tmp_path: Path) -> None:
    model = hf_model("llama", vocab_size=VOCAB, hidden_size=64, intermediate_size=96)
    kind = gguf.GGMLQuantizationType.Q8_0
    write_gguf(tmp_path / "tiny.gguf", model, "llama", kind=kind)
    loaded = load_model(str(tmp_path / "tiny.gguf"))
    for name, weight in model.state_dict().items():
        assert (loaded.weights[name].float() - weight).abs().max() < 0.02 * weight.abs().max()


def test_conversion_happens_once_per_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, hf_model("llama", vocab_size=VOCAB), "llama")
    converted: list[Path] = []
    real = gguf_convert.convert
    monkeypatch.setattr(
        gguf_convert, "convert", lambda path, folder: (converted.append(path), real(path, folder))
    )
    assert local_folder(str(path)) is None and not converted
    first = load_model(str(path)).path
    assert local_folder(str(path)) == first
    assert load_model(str(path)).path == first and len(converted) == 1
    assert os.listdir(first.parent) == [first.name]
    write_gguf(path, hf_model("llama", seed=1, vocab_size=VOCAB), "llama")
    os.utime(path, (1, 1))
    assert load_model(str(path)).path != first and len(converted) == 2


def test_large_file_becomes_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = rounded(hf_model("llama", vocab_size=VOCAB))
    write_gguf(tmp_path / "tiny.gguf", model, "llama")
    monkeypatch.setattr(gguf_convert, "SHARD_BYTES", 30_000)
    loaded = load_model(str(tmp_path / "tiny.gguf"))
    assert len(list(loaded.path.glob("*.safetensors"))) > 2
    state = model.state_dict()
    assert all(torch.equal(loaded.weights[name].float(), state[name]) for name in state)


def rope_editor(**values: Any) -> Callable[[gguf.GGUFWriter], None]:
    def edit(writer: gguf.GGUFWriter) -> None:
        for name, value in values.items():
            getattr(writer, f"add_rope_scaling_{name}")(value)

    return edit


@torch.no_grad()
@pytest.mark.parametrize(
    ("edit", "rope"),
    [
        (
            rope_editor(type=gguf.RopeScalingType.LINEAR, factor=2.0),
            {"rope_type": "linear", "factor": 2.0},
        ),
        (
            rope_editor(type=gguf.RopeScalingType.YARN, factor=4.0, orig_ctx_len=64),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        (rope_editor(type=gguf.RopeScalingType.NONE), {"rope_type": "default"}),
    ],
    ids=["linear", "yarn", "none"],
)
def test_rope_scaling_comes_along(
    tmp_path: Path, edit: Callable[[gguf.GGUFWriter], None], rope: dict[str, Any]
) -> None:
    parameters = {**rope, "rope_theta": 1e4}
    model = rounded(hf_model("qwen2", vocab_size=VOCAB, rope_parameters=parameters))
    write_gguf(tmp_path / "tiny.gguf", model, "qwen2", edit, pre="qwen2")
    ids = random_ids(150, VOCAB)
    expected = model(torch.tensor([ids])).logits[0]
    loaded = load_model(str(tmp_path / "tiny.gguf"))
    assert (logits_of(loaded, ids) - expected).abs().max() < 1e-4


def test_llama3_rope_is_recognised_by_its_factors(tmp_path: Path) -> None:
    rope = RopeConfig(5e5, "llama3", 32.0, 8192)
    factors = rope_frequencies(RopeConfig(5e5), 64) / rope_frequencies(rope, 64)
    model = hf_model("llama", vocab_size=VOCAB, head_dim=64, rope_parameters={"rope_theta": 5e5})

    def add(values: np.ndarray) -> Callable[[gguf.GGUFWriter], None]:
        return lambda writer: writer.add_tensor("rope_freqs.weight", values)

    write_gguf(tmp_path / "tiny.gguf", model, "llama", add(factors.numpy()), pre="llama-bpe")
    assert load_model(str(tmp_path / "tiny.gguf")).config.rope == rope
    unknown = add(np.linspace(1, 9, 32, dtype=np.float32))
    write_gguf(tmp_path / "other.gguf", model, "llama", unknown)
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        load_model(str(tmp_path / "other.gguf"))


def test_window_caps_the_context(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(512)

    write_gguf(tmp_path / "tiny.gguf", hf_model("llama", vocab_size=VOCAB), "llama", edit)
    assert load_model(str(tmp_path / "tiny.gguf")).max_context == 512


@pytest.mark.parametrize(
    ("changes", "edit", "named"),
    [
        ({"named_arch": "phi3"}, None, ["phi3", "qwen2"]),
        ({}, lambda w: w.add_expert_count(4), ["expert_count", "4"]),
        ({}, lambda w: w.add_rope_dimension_count(6), ["rope.dimension_count", "6"]),
        ({}, rope_editor(type=gguf.RopeScalingType.LONGROPE), ["longrope", "yarn"]),
        ({"pre": "unheard-of"}, None, ["tokenizer.ggml.pre", "unheard-of", "smollm"]),
        (
            {},
            lambda w: w.add_tensor("blk.0.ssm_in.weight", np.ones((2, 2), np.float32)),
            ["blk.0.ssm_in.weight"],
        ),
        (
            {},
            lambda w: w.add_tensor("blk.9.ffn_up.weight", np.ones((2, 2), np.float32)),
            ["model.layers.9.mlp.up_proj.weight", "unexpected"],
        ),
    ],
)
def test_unsupported_file_is_refused_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], edit: Any, named: list[str]
) -> None:
    model = hf_model("llama", vocab_size=VOCAB)
    write_gguf(tmp_path / "tiny.gguf", model, "llama", edit or (lambda writer: None), **changes)
    with pytest.raises(ModelError) as refusal:
        load_model(str(tmp_path / "tiny.gguf"))
    for word in ("tiny.gguf", *named):
        assert word in str(refusal.value)
    assert os.listdir(tmp_path / "cache" / "gguf") == []


def test_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF is what it says, and no more")
    with pytest.raises(ModelError, match=r"tiny\.gguf: not a readable GGUF"):
        load_model(str(path))
    write_gguf(path, hf_model("llama", vocab_size=VOCAB), "llama")
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ModelError, match=r"tiny\.gguf: not a readable GGUF"):
        load_model(str(path))


def test_converted_network_decodes(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", hf_model("llama", vocab_size=VOCAB), "llama")
    loaded = load_model(str(tmp_path / "tiny.gguf"))
    network = TorchNetwork(loaded.config, loaded.weights, dtype=torch.bfloat16)
    out = network.forward(
        Cache(network, 1, 16).batch([(0, 0, loaded.tokenizer("hell")["input_ids"])])
    )
    assert 0 <= int(out.argmax[-1]) < VOCAB

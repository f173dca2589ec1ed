"""Architectures read off real configs: parameters, bytes, formats; what is not known is refused."""

from __future__ import annotations

import json

import pytest

from paceline.core import InvalidRequest, ModelError
from paceline.roofline.architecture import model_names, read_architecture
from paceline.roofline.architecture.families import FAMILIES
from tests.roofline.golden import CONFIGS, model

PARAMETERS = {  # of the text model, in billions, as their makers state them
    "SmolLM2-135M-Instruct": 0.134515,
    "Qwen3-0.6B": 0.596050,
    "Qwen3-8B": 8.190735,
    "Qwen3-30B-A3B": 30.532,
    "Qwen3-235B-A22B": 235.094,
    "Qwen3.5-27B": 25.62 + 1.27,
    "Qwen3.5-35B-A3B": 34.15 + 0.51,
    "Qwen3.5-122B-A10B": 121.35 + 0.76,
    "Qwen3.5-397B-A17B": 395.3 + 1.02,
    "Meta-Llama-3.1-8B": 8.03,
    "Meta-Llama-3.1-70B": 70.55,
    "Mixtral-8x7B-v0.1": 46.703,
    "DeepSeek-V3": 671.0,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
    "gemma-4-26B-A4B": 25.2,
}
ACTIVE_GIGABYTES = {  # read by one token in bf16, without the cache
    "Qwen3.5-27B": 51.24,
    "Qwen3.5-35B-A3B": 5.89,
    "Qwen3.5-122B-A10B": 18.0,
    "Qwen3.5-397B-A17B": 32.7,
    "Meta-Llama-3.1-8B": 15.0,
    "Meta-Llama-3.1-70B": 139.0,
}
CACHE = {  # bytes of a further token of a long context, in bf16
    "Meta-Llama-3.1-8B": 131072,
    "Meta-Llama-3.1-70B": 327680,
    "Qwen3.5-27B": 65536,
    "Qwen3.5-35B-A3B": 20480,
    "Qwen3.5-397B-A17B": 30720,
    "DeepSeek-V3": 70272,
    "gpt-oss-120b": 36864,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    assert model(name).parameters() / 1e9 == pytest.approx(PARAMETERS[name], rel=0.005)


@pytest.mark.parametrize("name", ACTIVE_GIGABYTES)
def test_active_parameters(name: str) -> None:
    active = 2 * model(name).active_parameters() / 1e9
    assert active == pytest.approx(ACTIVE_GIGABYTES[name], rel=0.005)


@pytest.mark.parametrize("name", CACHE)
def test_cache_per_token(name: str) -> None:
    assert model(name).kv_bytes_per_token() == pytest.approx(CACHE[name], rel=1e-6)


def test_gated_delta_states_do_not_grow() -> None:
    hybrid = model("Qwen3.5-27B")
    assert hybrid.state_bytes() / 1e6 == pytest.approx(151, rel=0.005)
    grown = hybrid.cache_bytes(4096) - hybrid.state_bytes()
    assert grown == pytest.approx(4096 * 65536)


def test_a_window_caps_what_its_layers_keep() -> None:
    windowed = model("gpt-oss-120b")
    assert windowed.cache_bytes(100_000) == pytest.approx((100_000 + 128) * 36864)


def test_formats_come_from_the_quantization_config() -> None:
    assert model("gpt-oss-120b").weight_bytes() / 1e9 == pytest.approx(65.2, rel=0.01)
    four_bits = model("Kimi-K2.5")  # experts in int4, the rest left alone
    assert four_bits.weight_bytes() / 1e9 == pytest.approx(594, rel=0.01)
    eight_bits = model("DeepSeek-V3")
    head = eight_bits.vocabulary * eight_bits.hidden * 2  # stays in bf16, embedding too
    expected = eight_bits.parameters() + head
    assert eight_bits.weight_bytes() == pytest.approx(expected, rel=0.001)


def test_formats_can_be_overridden_whole_and_by_part() -> None:
    plain = model("Qwen3-8B")
    half = model("Qwen3-8B", precision="fp8")
    outside = 2 * plain.vocabulary * plain.hidden * 2  # embedding and head keep bf16
    assert half.weight_bytes() - outside == pytest.approx(
        (plain.weight_bytes() - outside) / 2, rel=0.001
    )
    cache = model("Qwen3-8B", precision={"kv": "int8"})
    assert cache.kv_bytes_per_token() == pytest.approx(plain.kv_bytes_per_token() / 2)
    assert cache.weight_bytes() == plain.weight_bytes()


def test_every_shipped_config_reads_as_the_whole_one_does() -> None:
    whole_names = {file.stem.partition("--")[2] for file in CONFIGS.glob("*.json")}
    names = whole_names & set(model_names())
    assert len(names) >= 20
    for name in names:
        shipped, whole = read_architecture(name), model(name)
        assert (shipped.layers, shipped.head) == (whole.layers, whole.head), name
        assert shipped.draft_layer == whole.draft_layer, name


def test_an_unknown_family_is_refused_by_name_with_the_known_ones() -> None:
    with pytest.raises(ModelError) as refused:
        read_architecture({"model_type": "mamba2", "hidden_size": 768})
    assert "'mamba2'" in str(refused.value)
    assert all(family in str(refused.value) for family in FAMILIES)


def test_a_new_text_model_in_a_known_wrapper_is_refused_by_its_own_name() -> None:
    config = json.loads((CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json").read_text("utf-8"))
    wrapped = {"model_type": "mistral", "text_config": {**config, "model_type": "newthing"}}
    with pytest.raises(ModelError, match="does not know the family 'newthing'"):
        read_architecture(wrapped)
    del wrapped["text_config"]["model_type"]  # nothing of its own: the wrapper's
    assert read_architecture(wrapped).family == "mistral"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"text_config": "x"}, "text_config is 'x'; expected an object"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"hidden_size": 10**200}, "expected a whole number, at most 100000000"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers is 10000000; expected a whole number, "
         "at most 10000"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"num_attention_heads": "32"}, "num_attention_heads is '32'"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"quantization_config": {"quant_method": "bitnet"}}, "'bitnet'"),
        ({"layer_types": ["mystery"] * 32}, "'mystery'"),
        ({"dtype": "int3"}, "int3"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(changes: dict[str, object], named: str) -> None:
    config = json.loads((CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json").read_text("utf-8"))
    with pytest.raises(ModelError, match=r"config: ") as refused:
        read_architecture({**config, **changes})
    assert named in str(refused.value)


def test_a_feature_that_is_not_modelled_is_refused() -> None:
    config = json.loads((CONFIGS / "google--gemma-4-26B-A4B.json").read_text("utf-8"))
    config["text_config"]["num_kv_shared_layers"] = 10
    with pytest.raises(ModelError, match="num_kv_shared_layers"):
        read_architecture(config)


def test_windows_need_to_be_told_apart() -> None:
    config = json.loads((CONFIGS / "openai--gpt-oss-20b.json").read_text("utf-8"))
    del config["layer_types"]
    with pytest.raises(ModelError, match="layer_types is missing"):
        read_architecture(config)


def test_a_compressed_tensors_checkpoint_says_its_formats() -> None:
    config = json.loads((CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json").read_text("utf-8"))
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    quantization = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights, "input_activations": weights}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    found = read_architecture({**config, "quantization_config": quantization})
    whole = read_architecture(config)
    assert found.kv_bytes_per_token() == whole.kv_bytes_per_token() / 2
    outside = 2 * found.vocabulary * found.hidden * 2
    assert found.weight_bytes() == pytest.approx(
        outside + (whole.weight_bytes() - outside) / 2, rel=0.001
    )


def test_a_name_that_is_no_model_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_architecture("Qwen9-1T")
    assert "Qwen3-8B" in str(refused.value)


def test_a_wrong_precision_is_refused() -> None:
    for precision in ("fp3", {"experts": "fp3"}, {"wheels": "bf16"}, {"kv": "int4"}):
        with pytest.raises(InvalidRequest, match="precision"):
            model("Qwen3-8B", precision=precision)

"""The trainer reads every configuration that the project keeps, or refuses it by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from paceline.core import ModelError
from paceline.models.any_target import foreign_shape, read_target, text_config
from paceline.models.tokenizer import load_tokenizer
from paceline.training.causal_model import model_class
from paceline.training.transformers_target import TransformersModel
from tests.engine.tiny import byte_tokenizer
from tests.training.foreign import BASE, save_foreign

CONFIGS = Path(__file__).parents[1] / "roofline" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))
# What no transformers reads without code that comes with the checkpoint, and that never runs.
REFUSED = {"moonshotai--Kimi-K2-Instruct": "kimi_k2"}
# Where the class is not called as the checkpoint says.
RENAMED = {"moonshotai--Kimi-K2.5": "Kimi_K25ForConditionalGeneration"}


def folder_of(name: str, folder: Path) -> Path:
    shutil.copy(CONFIGS / f"{name}.json", folder / "config.json")
    return folder


def test_the_configurations_are_all_there():
    assert len(NAMES) == 23 and {*REFUSED, *RENAMED} <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
def test_sizes_and_class_are_those_that_the_file_states(name, tmp_path):
    folder = folder_of(name, tmp_path)
    stated = json.loads((folder / "config.json").read_text())
    sizes = stated.get("text_config", stated)
    shape = foreign_shape(text_config(folder, name, "not served"), name)
    assert (shape.vocab_size, shape.hidden_size, shape.num_layers, shape.num_heads) == tuple(
        sizes[field]
        for field in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    assert model_class(folder, name).__name__ == RENAMED.get(name, stated["architectures"][0])


@pytest.mark.parametrize(("name", "kind"), REFUSED.items())
def test_what_needs_code_of_its_checkpoint_is_refused(name, kind, tmp_path, monkeypatch):
    """transformers would ask at the terminal whether to run it."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = folder_of(name, tmp_path)
    for module in ("configuration_deepseek", "tokenization_kimi"):
        (folder / f"{module}.py").write_text("raise SystemExit('it ran')\n")
    code = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": code}))
    with pytest.raises(ModelError, match=f"no model_type {kind}, and code .* never runs here"):
        text_config(folder, name, "not served")
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(folder, name)


def test_a_checkpoint_states_its_class_without_an_underscore(tmp_path):
    """As Kimi-K2.5 does."""
    folder = save_foreign(tmp_path / "tiny", "kimi_k25")
    stated = json.loads((folder / "config.json").read_text())
    stated["architectures"] = ["KimiK25ForConditionalGeneration"]
    (folder / "config.json").write_text(json.dumps(stated))
    model = TransformersModel(read_target(str(folder)), torch.float32, "cpu")
    assert type(model.module).__name__ == "Kimi_K25ForConditionalGeneration"


def test_a_layer_that_returns_several_rows_for_a_token_is_refused(tmp_path):
    """DeepSeek-V4's return `hc_mult` of them."""
    config = transformers.DeepseekV4Config(
        **BASE
        | {
            "num_key_value_heads": 1,
            "qk_rope_head_dim": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "q_lora_rank": 32,
            "o_lora_rank": 16,
            "o_groups": 2,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_topk": 8,
            "hc_mult": 3,
        }
    )
    transformers.DeepseekV4ForCausalLM(config).float().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    model = TransformersModel(read_target(str(tmp_path)), torch.float32, "cpu")
    model.tap((1,))
    layer = r"layer 1 \(DeepseekV4DecoderLayer\) returns \[1, 5, 3, 64\]"
    with pytest.raises(ModelError, match=f"deepseek_v4: {layer}; expected .*here \\[1, 5, 64\\]"):
        model.forward(torch.arange(5)[None], None, None)

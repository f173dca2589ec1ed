"""Tiny DFlash drafters with random weights, and the authors' own model with the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline.models.dflash.checkpoint import save_checkpoint
from paceline.models.dflash.config import DFlashConfig, read_dflash_config
from paceline.models.dflash.tensors import dflash_tensors
from paceline.models.json_files import read_json

SECOND = {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 12,
    "selector_top_k": 6,
}


def config_json(
    *,
    layers: int = 2,
    block: int = 6,
    taps: tuple[int, ...] = (0,),
    target_layers: int = 2,
    sliding: str = "",
    window: int = 24,
    second: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """A config.json in z-lab's form for the tiny target of tests.engine.tiny. `sliding` has an "s"
    for each sliding layer and an "f" for each full one."""
    kinds = ["sliding_attention" if kind == "s" else "full_attention" for kind in sliding]
    extra: dict[str, Any] = {"mask_token_id": 250, "target_layer_ids": list(taps)}
    return {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": block,
        "dflash_config": extra | (SECOND if second else {}),
        "num_target_layers": target_layers,
        "num_hidden_layers": layers,
        "layer_types": kinds or ["full_attention"] * layers,
        "sliding_window": window if "s" in sliding else None,
        "use_sliding_window": "s" in sliding,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "vocab_size": 256,
        "eos_token_id": 3,
        **changes,
    }


def random_drafter_weights(config: DFlashConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Every tensor, none of them trivial: norms near one, matrices of unit gain."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in sorted(dflash_tensors(config).items()):
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            noise = 1 + 0.1 * noise
        elif name.endswith("base_kernel"):
            noise = 0.5 * noise
            noise[:, 0] += 1
        elif len(shape) == 2:
            noise *= shape[1] ** -0.5
        weights[name] = noise
    return weights


def write_drafter(
    folder: Path,
    seed: int = 0,
    mask_embedding: torch.Tensor | None = None,
    head_ids: list[int] | None = None,
    provenance: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A drafter's folder with random float32 weights; `options` are those of config_json."""
    hf = config_json(**options)
    weights = random_drafter_weights(read_dflash_config(hf), seed)
    save_checkpoint(
        folder, hf, weights, mask_embedding=mask_embedding, head_ids=head_ids, provenance=provenance
    )
    return folder


def authors_model(folder: Path) -> Any:
    """The folder as the authors' own package loads it, in float32."""
    from dflash.model import DFlash2DraftModel, DFlashDraftModel

    second = "DFlash2DraftModel" in read_json(folder / "config.json")["architectures"]
    model = DFlash2DraftModel if second else DFlashDraftModel
    loaded, report = model.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, local_files_only=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    return loaded.eval()


def rewrite_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Puts other tensors into a drafter's folder, behind the back of its digest."""
    save_file(weights, folder / "model.safetensors")
    (folder / "paceline.json").unlink(missing_ok=True)


def speculators_json(**changes: Any) -> dict[str, Any]:
    """The same drafter as config_json() describes, in speculators' words."""
    hf = config_json()
    shape = [key for key in hf if key not in ("architectures", "block_size", "dflash_config",
                                              "num_target_layers")]  # fmt: skip
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "transformer_layer_config": {key: hf[key] for key in shape},
        "block_size": hf["block_size"],
        "aux_hidden_state_layer_ids": [1],
        "mask_token_id": 250,
        "draft_vocab_size": 256,
        "sample_from_anchor": False,
        "sliding_window_non_causal": False,
        **changes,
    }


def write_speculators(folder: Path, hf: dict[str, Any], **more: torch.Tensor) -> Path:
    folder.mkdir()
    weights = random_drafter_weights(read_dflash_config(config_json()))
    save_file({**weights, **more}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hf))
    return folder

"""A tiny drafter that learnt a tiny target's answers by heart: good enough to fall ill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from paceline import LLM, SamplingParams
from paceline.core import Grammar
from paceline.models.dflash.checkpoint import save_checkpoint
from paceline.models.dflash.config import read_dflash_config
from paceline.models.dflash.module import DFlashModule
from paceline.models.networks import sequence_features
from tests.models.dflash.tiny import config_json

TOKENS = 48


def train_tiny(
    folder: Path,
    target: Path,
    prompts: Sequence[str],
    steps: int = 250,
    grammar: Grammar | None = None,
    **options: Any,
) -> Path:
    """Trains on the target's greedy answers and saves the drafter, with what it was trained for."""
    torch.manual_seed(0)
    llm = LLM(str(target), None, dtype="float32", backend="torch", threads=1)
    network = llm.engine.runner.network
    hf = config_json(**options)
    config = read_dflash_config(hf)
    module = DFlashModule(config)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, grammar=grammar)
    texts = []
    for result in llm.generate(list(prompts), params):
        ids = result.prompt_ids + result.token_ids
        features = sequence_features(network, ids, config.target_layer_ids)
        first, last = len(result.prompt_ids), len(ids) - config.block_size
        texts.append((torch.tensor(ids), features, torch.arange(first, last)))
    embedding = network.embedding_rows(torch.arange(256))
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(steps):
        loss = torch.tensor(0.0)
        for ids, features, anchors in texts:
            chosen = anchors[torch.randperm(len(anchors))[:12]]
            block = torch.full((len(chosen), config.block_size), config.mask_token_id)
            block[:, 0] = ids[chosen]
            hidden = module(features, embedding[block], chosen)[:, 1:]
            labels = ids[chosen[:, None] + torch.arange(1, config.block_size)]
            logits = functional.linear(hidden, embedding)
            loss = loss + functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    provenance = {
        "target": target.name,
        "target_layer_ids": list(config.target_layer_ids),
        "mask_token_id": config.mask_token_id,
        "rope_theta": config.layers.rope.theta,
        "dtype": "float32",
        "context": 512,
    }
    save_checkpoint(folder, hf, module.state_dict(), provenance=provenance)
    return folder

"""Over-fits a DFlash drafter to a few dozen prompts: a real drafter to measure serving with.

    python benchmarks/overfit_drafter.py MODEL OUT [--layers 2] [--block 8] [--steps 1200]

It learns the target's greedy answers to the `code` and `chat` prompts by heart, so its acceptance
on them is high and known, and means nothing for other text. Training for real is another command.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from prompts import encoded
from torch.nn import functional

from paceline import LLM, SamplingParams
from paceline.evaluate.doctor import template_digest
from paceline.models.dflash.checkpoint import save_checkpoint
from paceline.models.dflash.config import default_layer_ids, read_dflash_config
from paceline.models.dflash.module import DFlashModule, draft_logits
from paceline.models.networks import sequence_features

SEQUENCES, ANCHORS = 4, 32  # of a step
NEGATIVES = 4096  # tokens beside the answers' own that the loss compares with, drawn anew each step
DECAY = 4.0  # weight exp(-(k - 1) / DECAY) of slot k, the paper's for blocks of 8


def config_json(engine, args) -> dict:
    """A drafter of the target's own width."""
    network = engine.runner.network
    shape = network.config
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": args.block,
        "dflash_config": {
            "mask_token_id": args.mask,
            "target_layer_ids": list(default_layer_ids(shape.num_layers, args.taps)),
        },
        "num_target_layers": shape.num_layers,
        "num_hidden_layers": args.layers,
        "layer_types": [args.kind] * args.layers,
        "use_sliding_window": args.kind == "sliding_attention",
        "sliding_window": 2048 if args.kind == "sliding_attention" else None,
        "max_window_layers": 0 if args.kind == "sliding_attention" else args.layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "attention_bias": False,
        "rope_theta": shape.rope.theta,
        "max_position_embeddings": shape.max_position_embeddings,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def answers(llm: LLM, tokens: int) -> list[tuple[list[int], list[int]]]:
    prompts = [p for name in ("code", "chat") for p in encoded(llm.tokenizer, name)]
    params = SamplingParams(temperature=0, max_tokens=tokens)
    return [(r.prompt_ids, r.token_ids) for r in llm.generate(prompts, params, "off")]


class Example:
    """One sequence: what the target saw, said, and thought on the way."""

    def __init__(self, network, prompt: list[int], answer: list[int], config) -> None:
        self.ids = torch.tensor(prompt + answer)
        self.features = sequence_features(network, prompt + answer, config.target_layer_ids).float()
        self.anchors = torch.arange(len(prompt), len(self.ids) - 1)  # something follows each

    def blocks(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Some anchors, the tokens of the slots behind them, and which of those there are."""
        chosen = self.anchors[torch.randperm(len(self.anchors))[:ANCHORS]]
        slots = chosen[:, None] + torch.arange(1, size)
        return chosen, self.ids[slots.clamp(max=len(self.ids) - 1)], slots < len(self.ids)


def train(module: DFlashModule, examples: list[Example], embedding, head, steps: int) -> None:
    config = module.config
    size, mask = config.block_size, config.mask_token_id
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, steps, pct_start=0.05)
    decay = torch.exp(-torch.arange(size - 1) / DECAY)
    own = torch.cat([example.ids for example in examples]).unique()
    start = time.perf_counter()
    for step in range(steps):
        others = torch.randint(len(head), (NEGATIVES,))
        rows = torch.cat((own, others)).unique()
        total, weights, right = 0.0, 0.0, 0.0
        for index in torch.randperm(len(examples))[:SEQUENCES].tolist():
            example = examples[index]
            anchors, labels, there = example.blocks(size)
            block = torch.full((len(anchors), size), mask)
            block[:, 0] = example.ids[anchors]
            embedded = embedding[block] * config.embedding_scale
            with torch.autocast("cpu", torch.bfloat16):
                hidden = module(example.features, embedded, anchors)[:, 1:]
                logits = draft_logits(config, hidden, head[rows])
            targets = torch.searchsorted(rows, labels)
            flat = logits.flatten(0, 1)
            loss = functional.cross_entropy(flat, targets.flatten(), reduction="none")
            weight = (decay * there).flatten()
            total, weights = total + (loss * weight).sum(), weights + weight.sum()
            right += ((logits.argmax(-1) == targets) & there)[:, 0].float().mean().item()
        optimizer.zero_grad()
        (total / weights).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            seconds = time.perf_counter() - start
            print(f"step {step}: loss {(total / weights).item():.3f}, first slot right "
                  f"{right / SEQUENCES:.2f}, {seconds:.0f} s", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--taps", type=int, default=5)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--mask", type=int, default=5)
    parser.add_argument("--kind", default="full_attention")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1200)
    args = parser.parse_args()
    torch.manual_seed(0)
    llm = LLM(args.model, None)
    network = llm.engine.runner.network
    hf = config_json(llm.engine, args)
    config = read_dflash_config(hf)
    pairs = answers(llm, args.tokens)
    examples = [Example(network, prompt, answer, config) for prompt, answer in pairs if answer[1:]]
    ids = torch.arange(config.layers.vocab_size)
    embedding, head = network.embedding_rows(ids).float(), network.head_rows(ids).float()
    module = DFlashModule(config)
    train(module, examples, embedding, head, args.steps)
    weights = {name: value.bfloat16() for name, value in module.state_dict().items()}
    own = sorted({token for _, answer in pairs for token in answer})
    save_checkpoint(
        args.out, hf, weights, head_ids=own,
        provenance={
            "target": llm.engine.model_name,
            "target_layer_ids": list(config.target_layer_ids),
            "mask_token_id": config.mask_token_id,
            "rope_theta": config.layers.rope.theta,
            "dtype": "bfloat16",
            "template": template_digest(llm.tokenizer.chat_template),
            "context": max(len(example.ids) for example in examples),
        },
    )  # fmt: skip
    (args.out / "prompts.json").write_text(json.dumps([prompt for prompt, _ in pairs]))
    print(f"{sum(v.numel() for v in weights.values()) / 1e6:.1f} M parameters, "
          f"{len(examples)} sequences, {len(own)} tokens in the head, in {args.out}")  # fmt: skip


if __name__ == "__main__":
    main()

"""The drafter's attention in training, forward and backward, in each form that a device has.

    python benchmarks/drafter_attention.py [--device cuda] [--rounds 9]

Random numbers of the shape of a drafter with 16 heads of 128 numbers, 8 of keys: a pack of texts
goes through the attention of three layers and back, in turns by each form. On CUDA flex attention
is beside the padded form, in bfloat16; on a CPU, with smaller packs, the form by text in float32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from harness import machine, table

from paceline.bench.turns import in_turns, ratio
from paceline.models.config import Attention
from paceline.models.dflash.module import Attend
from paceline.training.attention import PackedAttention
from paceline.training.flex_attention import FlexAttention
from paceline.training.packs import Pack, Pick, Text, draw_anchors, make_pack
from paceline.training.padded_attention import PaddedAttention
from paceline.training.seen import Seen

LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 3, 16, 8, 128, 8
KIND = Attention(None, False)
FORMS: dict[str, dict[str, Callable[[Pack], Attend]]] = {
    "cuda": {"padded": PaddedAttention, "flex": FlexAttention},
    "cpu": {"padded": PaddedAttention, "by text": PackedAttention},
}
# Texts, tokens of a text, blocks of a text.
PACKS = {
    "cuda": {"short texts": (64, 1000, 128), "contexts of 8k": (8, 8000, 128)},
    "cpu": {"short texts": (8, 125, 16), "contexts of 1k": (1, 1000, 16)},
}


def pack_of(texts: int, tokens: int, blocks: int) -> Pack:
    """Texts of `tokens` to three quarters of them."""
    picks = []
    for number in range(texts):
        length = tokens - number * tokens // (4 * texts)
        text = Text(number, torch.zeros(length, dtype=torch.int64), torch.ones(length).bool())
        picks.append(Pick(text, draw_anchors(text, blocks, 0, 0)))
    return make_pack(picks, [Seen(torch.zeros(len(pick.text), 1)) for pick in picks], BLOCK, 0)


def step(form: Callable[[Pack], Attend], pack: Pack, rows: list[torch.Tensor]) -> float:
    """Return the seconds of one forward and backward, the making of the form's masks included."""
    waits = torch.cuda.synchronize if rows[0].is_cuda else lambda: None
    waits()
    begin = time.perf_counter()
    attend = form(pack)
    mixed = sum(attend(KIND, *rows).float().square().sum() for _ in range(LAYERS))
    torch.autograd.grad(mixed, rows)
    waits()
    return time.perf_counter() - begin


def measure(name: str, device: str, rounds: int) -> list[list[str]]:
    pack = pack_of(*PACKS[device][name]).to(device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    queries, keys = pack.ids.numel(), pack.ids.numel() + len(pack.tokens)
    rows = [
        torch.randn(count, heads, HEAD_DIM, device=device, dtype=dtype, requires_grad=True)
        for count, heads in ((queries, HEADS), (keys, KV_HEADS), (keys, KV_HEADS))
    ]
    sides, first, peaks = {}, {}, {}
    for form, made in FORMS[device].items():
        side = partial(step, made, pack, rows)
        try:
            first[form] = side()
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                side()
                peaks[form] = torch.cuda.max_memory_allocated() / 2**30
        except torch.OutOfMemoryError:
            continue
        sides[form] = side
    seconds = in_turns(sides, rounds)
    base, *_ = FORMS[device]
    return [
        [name, form, "out of memory", "", "", ""]
        if form not in sides
        else [
            name,
            form,
            f"{1e3 * sorted(seconds[form])[rounds // 2]:.1f}",
            f"{ratio(seconds[form], seconds[base]):.2f}" if base in sides else "",
            f"{peaks[form]:.2f}" if form in peaks else "",
            f"{first[form]:.1f}",
        ]
        for form in FORMS[device]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=FORMS, default="cuda")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    packs = PACKS[args.device]
    lines = [line for name in packs for line in measure(name, args.device, args.rounds)]
    header = ("", "form", "ms", "÷ padded", "peak GiB", "first call, s")
    sizes = "; ".join(f"{name}: {a} x {b} tokens, {c} blocks" for name, (a, b, c) in packs.items())
    where = torch.cuda.get_device_name() if args.device == "cuda" else machine()
    table(f"Attention of {LAYERS} layers, blocks of {BLOCK}; {sizes}; {where}", header, lines)


if __name__ == "__main__":
    main()

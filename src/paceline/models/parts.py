"""What a forward is made of, in the order in which it happens: the names that profiles show.

Products bear the names that recipes give them. A norm counts with the product that follows it in
the fused kernels, and is a part of its own in the torch twin.
"""

from __future__ import annotations

EMBED, NORM, ROTARY, ATTENTION, TAPS, HEAD = (
    "embed", "norm", "rotary", "attention", "taps", "head"
)  # fmt: skip
QKV, OUTPUT, GATE_UP, DOWN = "qkv", "o", "gate_up", "down"
CONVOLUTION = "convolution"  # of DFlash 2: read in qkv, o, gate_up and down of its layers
LAYER = (QKV, ROTARY, ATTENTION, OUTPUT, GATE_UP, DOWN, TAPS)


def forward_parts(layers: int) -> tuple[str, ...]:
    """Names for the ticks of the kernels (native/abi.h): one less than there are ticks."""
    return (EMBED, *LAYER * layers, HEAD)

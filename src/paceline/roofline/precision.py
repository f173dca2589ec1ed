"""Number formats: how many bytes a stored number takes, and at which rate it is multiplied.

Bytes include the scales that travel with block-quantised weights (one byte or more per block).
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Format:
    """`bytes` per stored number; `compute` names the peak that a matmul over it runs at."""

    name: str
    bytes: float
    compute: str


FORMATS = {
    form.name: form
    for form in (
        Format("fp32", 4.0, "fp32"),
        Format("bf16", 2.0, "bf16"),
        Format("fp16", 2.0, "bf16"),
        Format("fp8", 1.0, "fp8"),  # a scale per 128 × 128 numbers is nothing
        Format("int8", 1.0, "int8"),
        Format("fp4", 0.5, "fp4"),  # scales not counted
        Format("mxfp4", 0.5 + 1 / 32, "fp4"),
        Format("nvfp4", 0.5 + 1 / 16, "fp4"),
        Format("int4", 0.5 + 2 / 128, "bf16"),  # weight-only, groups of 128
        Format("int4-g32", 0.5 + 2 / 32, "bf16"),
    )
}
# A device without the unit computes at the next wider rate it has; the bytes stay as stored.
WIDER = {
    "fp4": ("fp4", "fp8", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp32"),
    "int8": ("int8", "bf16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "fp32": ("fp32", "bf16"),  # datasheets that state no fp32 rate: matmuls go through TF32 or bf16
}


def number_format(name: object, field: str = "precision") -> Format:
    """The format of that name. Raises InvalidRequest that lists the names."""
    if not isinstance(name, str) or name not in FORMATS:
        raise InvalidRequest(field, name, f"one of {', '.join(FORMATS)}")
    return FORMATS[name]

"""Safetensors files that others may read, as they may read the files beside them.

safetensors writes to a temporary file, which only its owner may read, and renames it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file as save_numpy

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as a model's weights. Raises OSError or SafetensorError."""
    from safetensors.torch import save_file  # torch takes a second: commands start without it

    save_file(dict(tensors), path, metadata={"format": "pt"})
    allow_usual(path)


def save_arrays(arrays: Mapping[str, NDArray[np.generic]], path: Path) -> None:
    """Write arrays. Raises OSError or SafetensorError."""
    save_numpy(dict(arrays), path)
    allow_usual(path)


def allow_usual(path: Path) -> None:
    """Give a file the mode of a new one here: the umask's, or what the folder's ACL says."""
    probe = path.with_name(f".{path.name}.mode")
    handle = os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666)
    try:
        path.chmod(os.fstat(handle).st_mode & 0o777)
    finally:
        os.close(handle)
        probe.unlink()

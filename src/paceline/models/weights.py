"""Weights by name: from safetensors files, checked by their headers, or random, for mocked models.
Each tensor is read or drawn when it is asked for."""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.core import ModelError
from paceline.core.cache import stamp
from paceline.models.config import ModelConfig
from paceline.models.tensors import HEAD, expected_tensors

Shapes = Mapping[str, tuple[int, ...]]
STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
DTYPES = {name: dtype.itemsize for name, dtype in STORED.items()}  # bytes an element
LENGTH_BYTES = 8  # before a safetensors file's header, little-endian: the header's length
INDEX = "model.safetensors.index.json"


class Weights(Protocol):
    """Tensors by name: all that a network needs to be built."""

    def __getitem__(self, name: str, /) -> Tensor: ...


class LazyTensors(Mapping[str, Tensor]):
    """Tensors whose `shapes` are known before any of them is read."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = dict(shapes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def itemsize(self, name: str) -> int:
        """Return the bytes of an element of a tensor."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        sizes = ((name, torch.Size(shape).numel()) for name, shape in self.shapes.items())
        return sum(size * self.itemsize(name) for name, size in sizes)


class RandomTensors(LazyTensors):
    """Random weights, not kept. Equal names, shapes and seeds give equal tensors."""

    def __init__(self, shapes: Shapes, dtype: torch.dtype, seed: int = 0) -> None:
        super().__init__(shapes)
        self.dtype, self.seed = dtype, seed

    def __getitem__(self, name: str) -> Tensor:
        # Seed and name in one number: torch's CPU generator takes 32 bits of it.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        return draw(name, self.shapes[name], generator).to(self.dtype)

    def itemsize(self, name: str) -> int:
        return self.dtype.itemsize


def draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw a tensor. Matrices are scaled by their input size, so that activations keep unit size at
    any depth and the argmax wanders over the vocabulary instead of repeating one token."""
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 2:
        return noise.mul_(shape[1] ** -0.5)
    return noise.mul_(0.1).add_(1) if name.endswith("norm.weight") else noise.mul_(0.1)


class SafetensorWeights(LazyTensors):
    """A folder's tensors. Each access maps that tensor's part of a file for as long as it lives: a
    file may be larger than memory."""

    def __init__(self, folder: Path) -> None:
        """Read headers only. Raises ModelError when the folder holds no readable safetensors."""
        super().__init__({})
        self.dtypes: dict[str, str] = {}
        self._files: dict[str, Path] = {}
        self._starts: dict[str, int] = {}  # the first byte of a tensor in its file
        self._stamps: dict[Path, list[int]] = {}  # of the files when their headers were read
        for path in weight_files(folder):
            try:
                self._stamps[path] = stamp(path)
                self._read_header(path)
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path}: not a readable safetensors file ({error})") from error

    def _read_header(self, path: Path) -> None:
        # As numpy it maps the file read-only; as torch it would ask for memory for all of it.
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                view = file.get_slice(name)
                self.shapes[name] = tuple(view.get_shape())
                self.dtypes[name], self._files[name] = view.get_dtype(), path
        with open(path, "rb") as header:
            length = int.from_bytes(header.read(LENGTH_BYTES), "little")
            entries = json.loads(header.read(length))
        for name in entries.keys() - {"__metadata__"}:
            self._starts[name] = LENGTH_BYTES + length + entries[name]["data_offsets"][0]

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape = STORED[self.dtypes[name]], self.shapes[name]
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        start, size = self._starts[name], count * dtype.itemsize
        first = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with open(self._files[name], "rb") as file:
            mapped = mmap.mmap(
                file.fileno(), start - first + size, access=mmap.ACCESS_COPY, offset=first
            )
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=start - first).view(shape)

    def itemsize(self, name: str) -> int:
        return DTYPES[self.dtypes[name]]

    def identity(self) -> list[tuple[str, int, int]]:
        """Return name, size and time of each file, which tell these weights from others."""
        files = {(file.name, file.stat()) for file in self._files.values()}
        return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)

    def fingerprint(self) -> list[tuple[str, list[int]]]:
        """Return the name of each file and what changes with any write to it, unlike identity(), as
        it was when the headers were read."""
        return sorted((file.name, self._stamps[file]) for file in set(self._files.values()))

    def untouched(self) -> bool:
        """Return whether no file was written to, or replaced, since its header was read."""
        try:
            return all(stamp(file) == self._stamps[file] for file in set(self._files.values()))
        except OSError:
            return False

    def discard(self, name: str) -> None:
        """Forget a tensor that is not needed, where there is one."""
        for table in (self.shapes, self.dtypes, self._files):
            table.pop(name, None)

    def check_dtypes(self, where: str) -> None:
        """Raise ModelError naming a tensor that is stored in an unknown way."""
        for name, dtype in self.dtypes.items():
            if dtype not in DTYPES:
                raise ModelError(
                    f"{where}: tensor {name} is stored as {dtype}; supported: {', '.join(DTYPES)}"
                )


def stored_bytes(weights: Mapping[str, Tensor]) -> int:
    """Return the bytes of all tensors, known without reading files."""
    if isinstance(weights, LazyTensors):
        return weights.nbytes
    return sum(tensor.nbytes for tensor in weights.values())


class CountedWeights:
    """The same weights, reporting the bytes of each tensor handed out."""

    def __init__(self, weights: Weights, count: Callable[[int], None]) -> None:
        self._weights, self._count = weights, count

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._weights[name]
        self._count(tensor.nbytes)
        return tensor


def weight_files(folder: Path) -> list[Path]:
    """Return the model's safetensors files: those in the index, or model.safetensors."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index}: not a readable index ({error!r})") from error
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"{folder}: {INDEX} lists {missing[0]}, which is not there")
        return [folder / name for name in names]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if pickles:
        raise ModelError(
            f"{folder}: weights are only there as {pickles[0].name}, a pickle that could run code; "
            "expected safetensors. Convert once with transformers: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
        )
    raise ModelError(f"{folder}: no weights; expected model.safetensors or {INDEX}")


def check_weights(weights: SafetensorWeights, config: ModelConfig, where: str) -> None:
    """Raise ModelError naming a tensor that is missing, unexpected, misshaped or stored in an
    unknown way. Rotary frequencies, which old checkpoints store, are forgotten: we compute them."""
    for name in [n for n in weights if n.endswith(".rotary_emb.inv_freq")]:
        weights.discard(name)
    check_shapes(weights.shapes, config, where)
    weights.check_dtypes(where)


def check_shapes(shapes: Shapes, config: ModelConfig, where: str) -> None:
    """Raise ModelError unless `shapes` holds just the tensors that the config asks for; a tied head
    may be stored all the same."""
    expected = expected_tensors(config)
    if HEAD in shapes:
        expected[HEAD] = (config.vocab_size, config.hidden_size)
    use = f"a {config.family} network with these options has no use for it"
    check_expected(shapes, expected, where, use)


def check_expected(shapes: Shapes, expected: Shapes, where: str, use: str) -> None:
    """Raise ModelError naming the first tensor that is missing, unexpected (with the sentence
    `use`) or of another shape."""

    missing = [name for name in expected if name not in shapes]
    if missing:
        raise ModelError(f"{where}: tensor {missing[0]} is missing{_more(missing)}")
    extra = sorted(name for name in shapes if name not in expected)
    if extra:
        raise ModelError(f"{where}: unexpected tensor {extra[0]}{_more(extra)}; {use}")
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise ModelError(
                f"{where}: tensor {name} has shape {list(shape)}; "
                f"the config asks for {list(expected[name])}"
            )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


@contextmanager
def byte_progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds to the bytes done. Draws only where a terminal shows it."""
    console = Console(stderr=True)
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)

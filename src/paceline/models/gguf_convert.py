"""Convert a GGUF file to a Hugging Face folder: dequantised to bfloat16, with its tokenizer."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import pre_tokenizers
from torch import Tensor

from paceline.core import ModelError
from paceline.core.cache import cache_dir, cached_folder
from paceline.core.config_fields import ConfigFields
from paceline.models.families import GGUF_FAMILIES, config_from_hf
from paceline.models.gguf_config import ROPE_FACTORS, hf_config, hf_name
from paceline.models.tensor_files import save_tensors
from paceline.models.weights import INDEX, byte_progress, check_shapes

if TYPE_CHECKING:
    import gguf

CONVERSION = 1  # part of the cache key: raise it when the conversion gives another result
SHARD_BYTES = 2 << 30

# Splitting rules of byte-level vocabularies that transformers applies by itself…
LIBRARY_SPLITS = {
    "default", "gpt-2", "llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe", "tekken",
    "qwen2", "deepseek-r1-qwen",
}  # fmt: skip
# …and those that we add: SmolLM takes every digit as a word.
ADDED_SPLITS = {
    "smollm": (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
}


def convert_cached(path: Path) -> Path:
    """Return the converted folder of a GGUF file, made on first use. Raises ModelError for what
    cannot be served."""
    path = path.resolve()
    return cached_folder(converted_folder(path), lambda unfinished: convert(path, unfinished))


def converted_folder(path: Path) -> Path:
    """Return the folder where a GGUF file's conversion is kept. Its key is the file's path, size,
    modification time and first megabyte: a file of many gigabytes need not be hashed at every
    start."""
    path = path.resolve()
    stat = path.stat()
    with open(path, "rb") as file:
        head = file.read(1 << 20)
    key = hashlib.sha256(head)
    key.update(f"{CONVERSION}|{path}|{stat.st_size}|{stat.st_mtime_ns}".encode())
    return cache_dir() / "gguf" / f"{path.stem}-{key.hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """What a GGUF file holds. `tensors` are by their Hugging Face names, `config` is that of a
    config.json, and `metadata` is without the long lists that the tokenizer's own reader reads."""

    metadata: Mapping[str, object]
    config: dict[str, object]
    tensors: Mapping[str, gguf.ReaderTensor]

    @property
    def bits_per_weight(self) -> float:
        """Bits that the file stores for a weight, on average, the scales of blocks included."""
        stored = sum(int(tensor.n_bytes) for tensor in self.tensors.values())
        return 8 * stored / sum(int(tensor.n_elements) for tensor in self.tensors.values())


def read_gguf(path: Path) -> GGUFFile:
    """Read a GGUF file's metadata, without its weights. Raises ModelError, naming the file, for
    one that is damaged and for what cannot be served."""
    import gguf  # here, since most starts convert nothing

    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, OSError, KeyError, IndexError) as error:
        raise ModelError(f"{path}: not a readable GGUF file, or cut off ({error})") from error
    lists = gguf.GGUFValueType.ARRAY
    metadata = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not (name.startswith("tokenizer.") and field.types[:1] == [lists])
    }
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    shapes = {name: [int(n) for n in reversed(tensor.shape)] for name, tensor in tensors.items()}
    factors = tensors[ROPE_FACTORS].data if ROPE_FACTORS in tensors else None
    try:
        config = hf_config(metadata, shapes, factors)
        names = {name: target for name in tensors if (target := hf_name(name)) is not None}
        named_shapes = {target: tuple(shapes[name]) for name, target in names.items()}
        check_shapes(named_shapes, config_from_hf(config), "GGUF")
    except ModelError as error:
        raise ModelError(f"{path.name}: {error}") from error
    return GGUFFile(metadata, config, {target: tensors[name] for name, target in names.items()})


def convert(path: Path, folder: Path) -> None:
    """Write a GGUF file's Hugging Face folder. Raises ModelError for what cannot be served."""
    file = read_gguf(path)
    _write_json(folder / "config.json", file.config)
    _write_tokenizer(path, file.metadata, folder)  # first: it is quick to fail
    _write_weights(file, folder)


def _write_weights(file: GGUFFile, folder: Path) -> None:
    """Write the tensors into shards, so that memory holds one shard and not the model."""
    shards: list[list[str]] = []
    shard: dict[str, Tensor] = {}

    def flush() -> None:
        shards.append(list(shard))
        path = folder / f"model-{len(shards):05d}.safetensors"
        with _errors_of_the_system(path):
            save_tensors(shard, path)
        shard.clear()

    total = sum(int(tensor.n_bytes) for tensor in file.tensors.values())
    with byte_progress("converting GGUF", total) as advance:
        for target, tensor in file.tensors.items():
            shard[target] = _dequantise(tensor, _permuted_heads(target, file.config))
            if sum(t.nbytes for t in shard.values()) >= SHARD_BYTES:
                flush()
            advance(int(tensor.n_bytes))
        if shard:
            flush()
    if len(shards) == 1:
        (folder / "model-00001.safetensors").rename(folder / "model.safetensors")
        return
    files = ((f"model-{number:05d}.safetensors", shard) for number, shard in enumerate(shards, 1))
    weight_map = {name: file for file, names in files for name in names}
    _write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})


def _permuted_heads(target: str, config: dict[str, object]) -> int | None:
    """Return how many heads' rows llama.cpp has reordered in this tensor; None for none."""
    if not GGUF_FAMILIES[str(config["model_type"])].gguf_pairs:
        return None
    keys = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    key = keys.get(target.split(".")[-2])
    return ConfigFields(config).integer(key) if key else None


def _dequantise(tensor: gguf.ReaderTensor, heads: int | None) -> Tensor:
    import gguf  # here, since most starts convert nothing

    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise ModelError(
            f"GGUF: tensor {tensor.name} is stored as {kind}, not supported"
        ) from error
    values = values.reshape([int(n) for n in reversed(tensor.shape)])
    if heads is not None:
        values = unpermute(values, heads)
    return torch.from_numpy(np.array(values, dtype=np.float32)).to(torch.bfloat16)


def unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order of q and k, [heads * head_dim, …]: there the two members of a
    rotary pair lie side by side, here half a head apart."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _write_tokenizer(path: Path, metadata: Mapping[str, object], folder: Path) -> None:
    split = str(metadata.get("tokenizer.ggml.pre") or "default")
    byte_level = metadata.get("tokenizer.ggml.model") == "gpt2"
    if byte_level and split not in LIBRARY_SPLITS and split not in ADDED_SPLITS:
        supported = ", ".join(sorted(LIBRARY_SPLITS | set(ADDED_SPLITS)))
        raise ModelError(
            f"{path.name}: tokenizer.ggml.pre {split!r} is not supported; supported: {supported}"
        )
    # Imported here: it takes seconds, and only a conversion needs it.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except (ValueError, KeyError, OSError, ImportError) as error:
        raise ModelError(f"{path.name}: no usable tokenizer in the file: {error}") from error
    if byte_level and split in ADDED_SPLITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*ADDED_SPLITS[split]])
    with _errors_of_the_system(folder):
        tokenizer.save_pretrained(folder)
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    eos = sorted({end for end in ends if isinstance(end, int)})
    _write_json(folder / "generation_config.json", {"eos_token_id": eos})


@contextmanager
def _errors_of_the_system(path: Path) -> Iterator[None]:
    """Raise an OSError where writing `path` failed, as on a full disk: safetensors and tokenizers
    raise exceptions of their own, with the system's number in the text."""
    try:
        yield
    except Exception as error:
        number = re.search(r"(?:os error|code:) (\d+)", str(error))
        if number is None or isinstance(error, OSError):
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

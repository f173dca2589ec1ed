"""A network as the roofline sees it: groups of identical layers, each a list of components.

`read_architecture` reads one off a Hugging Face config; `families.py` says which families it knows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.core.errors import InvalidRequest, ModelError
from paceline.roofline.components import Component
from paceline.roofline.precision import FORMATS


@dataclass(frozen=True)
class Layers:
    """`count` layers of the same components."""

    count: int
    components: tuple[Component, ...]


@dataclass(frozen=True)
class Architecture:
    """`head` is what follows the layers: the projection to the vocabulary, and sampling.

    `draft_layer` is the model's own multi-token-prediction layer, where it has one: it takes part
    in drafting only. `max_context` is 0 where the config states none.
    """

    name: str
    family: str
    hidden: int
    vocabulary: int
    layers: tuple[Layers, ...]
    head: tuple[Component, ...]
    tied: bool = False
    embedding_format: str = "bf16"
    draft_layer: tuple[Component, ...] = ()
    max_context: int = 0

    @property
    def depth(self) -> int:
        return sum(group.count for group in self.layers)

    def components(self) -> list[tuple[int, Component]]:
        """(how often, component) of one forward, the head's included."""
        pairs = [(group.count, part) for group in self.layers for part in group.components]
        return pairs + [(1, part) for part in self.head]

    def has(self, kind: type[Component]) -> bool:
        """Whether a component of that kind takes part in a forward."""
        return any(isinstance(part, kind) for _, part in self.components())

    @property
    def _separate_embedding(self) -> int:
        return 0 if self.tied else self.vocabulary * self.hidden

    def parameters(self) -> int:
        """Weights of the text model, embeddings included, the draft layer not."""
        total = sum(count * part.parameters for count, part in self.components())
        return total + self._separate_embedding

    def active_parameters(self) -> int:
        """Weights that one token passes: its experts and the head, not the embedding table."""
        return sum(count * part.active_parameters for count, part in self.components())

    def weight_bytes(self) -> float:
        """Bytes of all weights in memory, embeddings included, the draft layer not."""
        total = sum(count * part.weight_bytes for count, part in self.components())
        return total + self._separate_embedding * FORMATS[self.embedding_format].bytes

    def cache_bytes(self, context: int) -> float:
        """Bytes that one request of `context` tokens keeps: KV entries and recurrent states."""
        return sum(count * part.cache_bytes(context) for count, part in self.components())

    def kv_bytes_per_token(self) -> float:
        """Bytes that one more token adds to a long request's cache (full attention: every layer;
        windows are full by then, states do not grow)."""
        far = 1 << 24
        return (self.cache_bytes(2 * far) - self.cache_bytes(far)) / far

    def state_bytes(self) -> float:
        """Bytes of one request's recurrent states."""
        return self.cache_bytes(0)


def grouped(layers: list[tuple[Component, ...]]) -> tuple[Layers, ...]:
    """Equal layers put together; the order of a forward does not matter to a sum."""
    return tuple(Layers(count, parts) for parts, count in Counter(layers).items())


def read_architecture(
    config: Mapping[str, Any] | str | Path,
    *,
    precision: str | Mapping[str, str] | None = None,
    name: str | None = None,
) -> Architecture:
    """The architecture of a Hugging Face config: its dict, its file, its folder, or a model's name
    from `model_names()`.

    `precision` overrides the config's number formats: one name for all matrices but the head, or
    names by part (`formats.PARTS`). Raises ModelError for a family that is not known (by name, with
    the list) and for a field that is missing or wrong; InvalidRequest for a bad `precision`.
    """
    from paceline.roofline.families import read_family

    if not isinstance(config, Mapping):
        name = name or str(config)
        config = load_config(config)
    return read_family(config, precision, name or str(config.get("_name_or_path") or "model"))


@cache
def model_names() -> tuple[str, ...]:
    """Models whose configs come with Paceline."""
    folder = resources.files("paceline.roofline").joinpath("models")
    files = [item.name for item in folder.iterdir() if item.name.endswith(".json")]
    return tuple(sorted(name.removesuffix(".json") for name in files))


def model_config(name: str) -> dict[str, Any]:
    """The config of a model of `model_names()`. Raises InvalidRequest that lists them."""
    for known in model_names():
        if known.lower() == name.lower():
            folder = resources.files("paceline.roofline").joinpath("models")
            config: dict[str, Any] = json.loads(folder.joinpath(f"{known}.json").read_text("utf-8"))
            return config
    expected = f"a config.json, a model's folder, or one of {', '.join(model_names())}"
    raise InvalidRequest("model", name, expected)


def load_config(source: str | Path) -> dict[str, Any]:
    """A config by file, by folder, or by a name of `model_names()`."""
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        return model_config(str(source))
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: expected one JSON object")
    return config

"""A network as the roofline sees it, groups of identical layers; the configs of listed models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from paceline.core.errors import InvalidRequest, ModelError
from paceline.roofline.architecture.components import Component
from paceline.roofline.device import FORMATS

_CONFIGS = resources.files("paceline.roofline.architecture").joinpath("models")


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
        """(count, component) pairs of one forward, the head's included."""
        pairs = [(group.count, part) for group in self.layers for part in group.components]
        return pairs + [(1, part) for part in self.head]

    def has(self, kind: type[Component]) -> bool:
        """Return whether a component of that kind takes part in a forward."""
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

    def embedding_bytes(self) -> float:
        """Bytes of an embedding table that is not the head's."""
        return self._separate_embedding * FORMATS[self.embedding_format].bytes

    def weight_bytes(self) -> float:
        """Bytes of all weights in memory, embeddings included, the draft layer not."""
        total = sum(count * part.weight_bytes for count, part in self.components())
        return total + self.embedding_bytes()

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


@cache
def model_names() -> tuple[str, ...]:
    """Names of the models whose configs come with Paceline."""
    files = [item.name for item in _CONFIGS.iterdir() if item.name.endswith(".json")]
    return tuple(sorted(name.removesuffix(".json") for name in files))


def model_config(name: str) -> dict[str, object]:
    """Return the config of a model of `model_names()`. Raises InvalidRequest that lists them."""
    for listed in model_names():
        if listed.lower() == name.lower():
            config: dict[str, object]
            config = json.loads(_CONFIGS.joinpath(f"{listed}.json").read_text("utf-8"))
            return config
    expected = f"a config.json, a model's folder, or one of {', '.join(model_names())}"
    raise InvalidRequest("model", name, expected)


def load_config(source: str | Path) -> dict[str, object]:
    """Read a config from a file, from a folder, or by a name of `model_names()`.

    Raises ModelError for a file that holds no config, InvalidRequest for an unknown name.
    """
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        return model_config(str(source))
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not a readable config.json ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: expected one JSON object")
    return config

"""A network as the roofline sees it, groups of identical layers; the configs of listed models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paceline.core.errors import ModelError
from paceline.core.names import listed_model, listed_models
from paceline.roofline.architecture.components import Component, State
from paceline.roofline.device import FORMATS


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

    @cached_property
    def state_layers(self) -> int:
        """Layers that keep a recurrent state."""
        return sum(count for count, part in self.components() if isinstance(part, State))

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


def model_names() -> tuple[str, ...]:
    """Names of the models whose configs come with Paceline."""
    return tuple(listed_models())


def model_config(name: str) -> dict[str, object]:
    """Return the config of a listed model, by its name, hub id or the start of one. Raises
    InvalidRequest with the candidates, or with what is spelt alike."""
    return listed_model(name).config


def load_config(source: str | Path) -> dict[str, object]:
    """Read a config from a file, from a folder, or by a name of `model_names()`.

    Raises ModelError for a file that holds no config, InvalidRequest for an unknown name.
    """
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    elif not path.is_file():
        return model_config(str(source))
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not a readable config.json ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: expected one JSON object")
    return config

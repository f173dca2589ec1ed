"""The memory that serving a model needs, known before a weight is read, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from paceline.core import InvalidRequest, ModelError, PacelineError
from paceline.drafters.spec import network_folders
from paceline.engine.config import EngineConfig
from paceline.engine.machine import free_memory, whole_memory
from paceline.models.batch import BLOCK_SIZE
from paceline.models.catalog import CATALOGUE
from paceline.models.config import ModelConfig
from paceline.models.loader import LoadedModel
from paceline.models.mocked import drafter_bytes, kv_bytes
from paceline.models.networks import DTYPES, network_bytes
from paceline.models.quantized import QUANTIZE
from paceline.models.tensors import expected_tensors
from paceline.models.weights import LazyTensors, RandomTensors

LEAST_CONTEXT = 512  # tokens that a server without --max-model-len must have room for
COPIES = 2  # of the largest tensor, while it is converted and packed
SIZES = ((2**30, "GiB"), (2**20, "MiB"))
MOST_REMEDIES = 2


@dataclass(frozen=True, slots=True)
class Needs:
    """The bytes of memory that serving takes. `drafters` are those of the start, and what is to be
    kept for later ones. `work` is for the rows of a step, and for the tensor
    that is being packed."""

    weights: int
    drafters: int
    kv: int
    work: int

    @property
    def total(self) -> int:
        return self.weights + self.drafters + self.kv + self.work

    def __str__(self) -> str:
        parts = [("weights", self.weights), ("drafters", self.drafters)]
        parts += [("KV cache", self.kv), ("work space", self.work)]
        return ", ".join(f"{label} {size_text(count)}" for label, count in parts if count)


def size_text(count: int) -> str:
    """Return bytes as people write them: 1.55 GiB or 144 MiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


@dataclass(frozen=True, slots=True)
class UnloadedModel:
    """A model by its name and shape alone, to be asked what it would need."""

    name: str
    config: ModelConfig

    @property
    def weights(self) -> LazyTensors:
        return RandomTensors(expected_tensors(self.config), DTYPES["bfloat16"])

    @property
    def max_context(self) -> int:
        return self.config.max_context


def needs_of(config: EngineConfig, loaded: LoadedModel | UnloadedModel) -> Needs:
    """Return what an engine of `config` needs, from the shapes in config.json alone. KV that is not
    asked for counts for one request of LEAST_CONTEXT tokens. Weights that are in memory already
    count for nothing."""
    shape = loaded.config
    lazy = isinstance(loaded.weights, LazyTensors)
    positions = min(loaded.max_context, config.max_model_len or loaded.max_context) + 1
    weights = network_bytes(
        shape,
        dtype=config.dtype,
        device=config.device,
        backend=config.backend,
        quantize=config.quantize,
        positions=positions,
    )
    drafters = config.spare_drafter_memory or 0
    for folder in network_folders(config.drafter_specs, loaded.name):
        with suppress(ModelError):  # what is wrong with a drafter is said when it is built
            drafters += drafter_bytes(folder / "config.json", config.dtype)
    tokens = config.max_model_len or min(loaded.max_context, LEAST_CONTEXT)
    kv = config.kv_memory or kv_bytes(shape, config.dtype, tokens)
    widest = max(shape.vocab_size, 2 * shape.intermediate_size)
    rows = config.token_budget * (shape.vocab_size + 8 * shape.hidden_size) * 4
    largest = widest * shape.hidden_size * DTYPES[config.dtype].itemsize
    return Needs(weights if lazy else 0, drafters, kv, rows + COPIES * largest)


def check_fits(config: EngineConfig, loaded: LoadedModel) -> None:
    """Raise InvalidRequest for a context that the model does not have, and where the engine would
    not fit the memory: what it needs, what there is, and what would fit. Raises PacelineError where
    it would fit once other programs have freed theirs, so that a later start may go well."""
    asked, most = config.max_model_len, loaded.max_context
    if asked is not None and asked > most:
        raise InvalidRequest("max_model_len", asked, f"at most the model's {most} tokens")
    needs, free = needs_of(config, loaded), free_memory(config.device)
    if needs.total <= free:
        return
    whole = whole_memory(config.device)
    fitting = list(_remedies(config, loaded, needs, free, whole))
    expected = "; ".join(fitting) or "a smaller model"
    too_much_kv = config.kv_memory is not None and needs.total - needs.kv <= free
    place = "GPU memory" if config.device == "cuda" else "memory"
    message = (
        f"{loaded.name} does not fit the {place}: it needs {size_text(needs.total)}, and "
        f"{size_text(free)} of {size_text(whole)} are free\n"
        f"  needs: {needs}\n"
        f"  would fit: {expected}"
    )
    if needs.total <= whole:
        raise PacelineError(message)
    field, value = ("kv_memory", config.kv_memory) if too_much_kv else ("model", config.model)
    spare = config.spare_drafter_memory
    if spare and needs.total - spare <= free:
        field, value = "spare_drafter_memory", spare
    raise InvalidRequest(field, value, expected, message)


def _remedies(
    config: EngineConfig, loaded: LoadedModel, needs: Needs, free: int, whole: int
) -> Iterator[str]:
    yield from islice(_options(config, loaded, free), MOST_REMEDIES)
    smaller = [name for name in CATALOGUE if name not in (config.model, loaded.name)]
    if needs.weights > free and smaller:
        yield f"a smaller model, such as {smaller[0]}"
    if needs.total <= whole:
        lacking = size_text(needs.total - free)
        yield f"the same once other programs have freed {lacking}"


def _options(config: EngineConfig, loaded: LoadedModel, free: int) -> Iterator[str]:
    """Yield options that make the engine fit, those that change least first."""
    changes: list[tuple[str, dict[str, object]]] = [("", {})]
    if config.spare_drafter_memory:
        changes.append(("--spare-drafter-memory 0", {"spare_drafter_memory": 0}))
    if config.dtype == "float32":
        changes.append(("--dtype bfloat16", {"dtype": "bfloat16"}))
    if config.quantize is None and config.dtype == "bfloat16":
        changes.append((f"--quantize {QUANTIZE[0]}", {"quantize": QUANTIZE[0]}))
    if config.drafter_specs:
        changes += [(f"{flag} --drafter none", {**c, "drafter": None}) for flag, c in changes]
    fitting: list[dict[str, object]] = []
    for flags, values in changes:
        if any(less.items() <= values.items() for less in fitting):
            continue  # a part of these changes is enough
        changed = replace(config, **values)  # type: ignore[arg-type]
        needs = needs_of(changed, loaded)
        if needs.total > free:
            shorter = _with_less_kv(changed, loaded, free - (needs.total - needs.kv))
            flags = f"{flags} {shorter}" if shorter else ""
        if flags:
            fitting.append(values)
            yield flags.strip()


def _with_less_kv(config: EngineConfig, loaded: LoadedModel, room: int) -> str:
    """Return the option for as much KV as `room` holds; nothing where that is too little."""
    block = kv_bytes(loaded.config, config.dtype, 1)
    least = min(config.max_model_len or LEAST_CONTEXT, LEAST_CONTEXT, loaded.max_context)
    if room < -(-least // BLOCK_SIZE) * block:
        return ""
    if config.kv_memory is None:
        return f"--max-model-len {room // block * BLOCK_SIZE}"
    unit, name = next(((u, n) for u, n in SIZES if room >= u), (1, ""))
    option = f"--kv-memory {room // unit}{name}"
    tokens = room // block * BLOCK_SIZE
    too_long = config.max_model_len is not None and config.max_model_len > tokens
    return f"{option} --max-model-len {tokens}" if too_long else option

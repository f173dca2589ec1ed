"""app.yaml: a description of an application, read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest, SamplingParams
from paceline.dataset.fields import Fields
from paceline.dataset.training_set import PARTS
from paceline.synth.bounds import GRAMMAR_FIELDS, Bounds, read_bounds
from paceline.synth.source_spec import SourceSpec, read_source
from paceline.synth.strict_yaml import parse_yaml

FIELDS = (
    "name", "model", "system", "template", *GRAMMAR_FIELDS, "sampling", "languages", "sources",
    "mix", "held_out", "size", "seed", "context", "shard", "same_answer",
)  # fmt: skip
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "max_tokens", "stop",
)  # fmt: skip
MIX = {"on_task": 0.75, "replay": 0.15, "neighbour": 0.1}


@dataclass(frozen=True, slots=True)
class Size:
    """When a set is large enough: `amount` rows, or answer tokens."""

    amount: int
    unit: str


@dataclass(frozen=True, slots=True)
class App:
    """An application as app.yaml describes it.

    temperatures   each prompt is answered at one of these, by its hash
    params         how answers are sampled, the temperature aside
    mix            share of the prompts by part; adds up to 1 over the parts that have sources
    languages      share of the prompts by language within each part; {} leaves it to the sources
    held_out       share of the on-task and replay prompts that are never trained on
    context        longest prompt and answer together, in tokens; None: the model's, up to 2048
    shard          prompts that are answered between two shards
    same_answer    how many rows may hold the very same answer
    given          the file's own content, which the manifest keeps
    """

    name: str
    model: str
    system: str | None
    template: str
    bounds: Bounds
    params: SamplingParams
    temperatures: tuple[float, ...]
    languages: Mapping[str, float]
    sources: tuple[SourceSpec, ...]
    mix: Mapping[str, float]
    held_out: float
    size: Size
    seed: int
    context: int | None
    shard: int
    same_answer: int
    given: Mapping[str, Any]

    def with_size(self, rows: int) -> App:
        return replace(self, size=Size(rows, "rows"))


def load_app(path: Path) -> App:
    """Reads app.yaml. Paths in it are taken from its folder.

    Raises InvalidRequest that names the field and what would be right.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest("app", str(path), f"a readable YAML file ({error})") from error
    return read_app(parse_yaml(text, str(path), "app"), path.parent)


def read_app(given: Any, folder: Path) -> App:
    """The same for what is parsed already."""
    fields = Fields(given, "", FIELDS)
    params, temperatures = _sampling(fields.any("sampling", {}))
    sources = _sources(fields, folder)
    return App(
        name=fields.text("name"),
        model=fields.text("model", "smollm2-135m"),
        system=fields.text("system", None),
        template=fields.template("template"),
        bounds=read_bounds(fields, folder),
        params=params,
        temperatures=temperatures,
        languages=_languages(fields, sources),
        sources=sources,
        mix=_mix(fields, sources),
        held_out=fields.number("held_out", 0.05, low=0, high=0.5),
        size=_size(fields),
        seed=fields.integer("seed", 0, low=0),
        context=fields.integer("context", None),
        shard=fields.integer("shard", 512),
        same_answer=fields.integer("same_answer", 1),
        given=_plain(given),
    )


def _plain(given: Any) -> dict[str, Any]:
    """What JSON can keep of a description; a date, which YAML also reads, it cannot."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(given, allow_nan=False))
        return plain
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            "app", given, f"texts, numbers, lists and mappings ({error})"
        ) from None


def _sampling(value: Any) -> tuple[SamplingParams, tuple[float, ...]]:
    fields = Fields(value, "sampling", SAMPLING)
    given = fields.any("temperature", 1.0)
    temperatures = given if isinstance(given, list) else [given]
    if not temperatures:
        raise fields.refuse("temperature", "a number, or a list of numbers")
    options = {name: fields.any(name) for name in SAMPLING[1:-2] if name in fields}
    options["max_tokens"] = fields.any("max_tokens", 512)
    options["stop"] = fields.texts("stop", ())
    try:
        params = [SamplingParams(temperature=each, **options) for each in temperatures]
    except InvalidRequest as error:
        raise InvalidRequest(f"sampling.{error.field}", error.value, error.expected) from None
    return params[0], tuple(float(each) for each in temperatures)


def _sources(fields: Fields, folder: Path) -> tuple[SourceSpec, ...]:
    given = fields.any("sources")
    if not isinstance(given, list) or not given:
        raise fields.refuse("sources", "a list of prompt sources")
    sources = tuple(
        read_source(value, f"sources[{index}]", folder) for index, value in enumerate(given)
    )
    names = [source.name for source in sources]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"sources[{index}].name", name, "a name of its own")
    if all(source.part == "neighbour" for source in sources):
        raise fields.refuse("sources", "a source that may be trained on: on_task or replay")
    return sources


def _mix(fields: Fields, sources: tuple[SourceSpec, ...]) -> dict[str, float]:
    """Shares over the parts that have sources. A share that nobody can fill is refused."""
    there = [part for part in PARTS if any(source.part == part for source in sources)]
    given = fields.any("mix", None)
    if given is None:
        shares = {part: MIX[part] for part in there}
    else:
        mix = Fields(given, "mix", PARTS)
        shares = {part: mix.number(part, 0.0, low=0, high=1) for part in PARTS}
        for part, share in shares.items():
            if bool(share) != (part in there):
                expected = f"a share above 0 where there are {part} sources, and 0 where not"
                raise InvalidRequest(mix.named(part), share, expected)
        if abs(sum(shares.values()) - 1) > 1e-6:
            raise fields.refuse("mix", "shares that add up to 1")
    total = sum(shares.values())
    return {part: shares[part] / total for part in there}


def _languages(fields: Fields, sources: tuple[SourceSpec, ...]) -> dict[str, float]:
    """Languages, with shares where they are given; a list only says which there are."""
    given = fields.any("languages", None)
    if given is None:
        return {}
    spoken = {source.language for source in sources}
    names = [str(name) for name in given] if isinstance(given, list | dict) else []
    if not names or set(names) != spoken:
        expected = f"a list or a mapping with the sources' languages: {', '.join(sorted(spoken))}"
        raise fields.refuse("languages", expected)
    if isinstance(given, list):
        return {}
    shares = Fields(given, "languages", names)
    return {name: shares.number(name, low=1e-6, high=1) for name in names}


def _size(fields: Fields) -> Size:
    """`size: {rows: N}` or `size: {answer_tokens: N}`."""
    size = Fields(fields.any("size", {"rows": 1000}), "size", ("rows", "answer_tokens"))
    given = [unit for unit in ("rows", "answer_tokens") if unit in size]
    if len(given) != 1:
        raise fields.refuse("size", "rows or answer_tokens, one of the two")
    return Size(size.integer(given[0]), given[0])

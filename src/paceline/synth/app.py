"""app.yaml: the description of an application."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, PrivateAttr, model_validator

from paceline.core import InvalidRequest, SamplingParams
from paceline.core.document_help import about
from paceline.core.field_types import Between, NonEmpty
from paceline.dataset.training_set import PARTS
from paceline.synth.bounds import AnswerBounds, AppTool, GrammarSpec, grammar_bounds, tool_bounds
from paceline.synth.source_spec import (
    AnySource,
    AtLeastOne,
    DerivedSource,
    Numbers,
    PackageSource,
    RecordSource,
    Template,
    Texts,
    WrittenSource,
    YamlDocument,
)
from paceline.synth.texts import parse_yaml

MIX = {"on_task": 0.75, "replay": 0.15, "neighbour": 0.1, "foreign": 0.05}
Share = Annotated[float, Between(0, 1)]
AboveZero = Annotated[float, Between(1e-6, 1)]


class AppSampling(YamlDocument):
    """The sampling of answers, as SamplingParams takes it."""

    temperature: Numbers = (1.0,)
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int = 512
    stop: Texts = ()

    @property
    def params(self) -> SamplingParams:
        """The parameters at the first temperature."""
        return self._at(self.temperature[0])

    def _at(self, temperature: float) -> SamplingParams:
        options = self.model_dump(exclude_none=True, exclude={"temperature"})
        return SamplingParams(temperature=temperature, **options)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for temperature in self.temperature:
            self._at(temperature)
        return self


class Mix(YamlDocument):
    """The share of each part among the prompts."""

    on_task: Share = 0.0
    replay: Share = 0.0
    neighbour: Share = 0.0
    foreign: Share = 0.0


class Size(YamlDocument):
    """The size at which a set is large enough: rows or answer tokens."""

    rows: AtLeastOne | None = None
    answer_tokens: AtLeastOne | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.rows is None) == (self.answer_tokens is None):
            given = self.model_dump(exclude_none=True)
            raise InvalidRequest("", given, "rows or answer_tokens, one of the two")
        return self

    @property
    def unit(self) -> str:
        return "answer_tokens" if self.rows is None else "rows"

    @property
    def amount(self) -> int:
        return self.rows or self.answer_tokens or 0


def _with_fewer_needed(schema: dict[str, Any]) -> None:
    """Tell in a JSON schema that a description with a base needs no other field."""
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["base"]}]


class App(YamlDocument):
    """An application. The descriptions of the fields are the table of docs/training-data.md."""

    model_config = ConfigDict(json_schema_extra=_with_fewer_needed)

    name: NonEmpty = about("what the application is called")
    # Only files have it: read_app() puts the fields of the base in its place.
    base: NonEmpty | None = about(
        "the name of another description in the same folder, without a base of its own, whose "
        "fields hold where this one leaves them out",
        None,
        "none",
    )
    model: NonEmpty = about(
        "the target: a name that `paceline list` shows, folder, GGUF file or hub id (`--model` "
        "overrides it)",
        "smollm2-135m",
    )
    system: NonEmpty | None = about(
        "the application's system prompt; a chat template that drops it is refused", None, "none"
    )
    template: Template = about("the user's message, with `{prompt}` in it once", "{prompt}")
    grammar: GrammarSpec | None = about(
        "what an answer is bound to: `kind` is json, regex, lark or choice, and "
        "`value` or `file` says what; see [Structured output and tools](structured-output.md)",
        None,
        "none",
    )
    tools: list[AppTool] | None = about(
        "tools as OpenAI writes them, instead of a grammar: answers are calls in the "
        "format that the model's template teaches",
        None,
        "none",
    )
    tool_choice: Literal["required", "auto"] | None = about(
        "`required`: every answer is calls; `auto`: calls or text", None, "`required`"
    )
    chat_template_kwargs: dict[str, object] = about(
        "variables of the model's chat template, as `{enable_thinking: false}`: the mode in which "
        "all prompts are answered. One that the template does not read is refused. Use what "
        "serving uses",
        {},
        "the template's defaults",
    )
    sampling: AppSampling = about(
        "`temperature` (a number, or a list over which the prompts are spread), "
        "`top_p`, `top_k`, `min_p`, the penalties, `max_tokens`, `stop`. Use what serving uses",
        AppSampling(),
        "1.0, 512 tokens",
    )
    sources: list[AnySource] = about("where prompts come from, below")
    mix: Mix | None = about(
        "shares of `on_task`, `replay`, `neighbour` and `foreign` among the prompts, adding up "
        "to 1",
        None,
        f"{', '.join(map(str, MIX.values()))} of those that have sources",
    )
    languages: list[str] | dict[str, AboveZero] | None = about(
        "a list that says which languages the sources have, or a mapping with their "
        "shares within each part",
        None,
        "as the sources' weights",
    )
    held_out: Annotated[float, Between(0, 0.5)] = about(
        "share of the on-task and replay prompts that nobody trains on; of prompts made from "
        "phrases or `starts`, whole phrases and starts",
        0.05,
    )
    size: Size = about(
        "`{rows: N}` or `{answer_tokens: N}` (`--rows` overrides it)", Size(rows=1000), "1000 rows"
    )
    seed: Annotated[int, Between(0)] = about(
        "another seed draws other prompts and other answers", 0
    )
    context: AtLeastOne | None = about(
        "longest prompt and answer together, in tokens; what does not fit is dropped and counted",
        None,
        "the model's, at most 2048",
    )
    shard: AtLeastOne = about("prompts between two shards: what a kill can cost", 512)
    same_answer: AtLeastOne = about(
        "how many rows may hold the very same answer. Raise it where few answers are possible", 1
    )
    _given: dict[str, object] = PrivateAttr()
    _bounds: AnswerBounds = PrivateAttr()

    @property
    def given(self) -> Mapping[str, object]:
        """The file's own content, which the manifest keeps."""
        return self._given

    @property
    def bounds(self) -> AnswerBounds:
        return self._bounds

    @property
    def shares(self) -> dict[str, float]:
        """Share of the prompts by part, over the parts that have sources; adds up to 1."""
        mix = MIX if self.mix is None else self.mix.model_dump()
        shares = {part: mix[part] for part in self._parts()}
        return {part: share / sum(shares.values()) for part, share in shares.items()}

    @property
    def language_shares(self) -> dict[str, float]:
        """Share of the prompts by language within each part; {} leaves it to the weights."""
        return self.languages if isinstance(self.languages, dict) else {}

    def with_size(self, rows: int) -> App:
        return self.model_copy(update={"size": Size(rows=rows)})

    def _parts(self) -> list[str]:
        return [part for part in PARTS if any(source.part == part for source in self.sources)]

    def read_bounds(self, folder: Path) -> AnswerBounds:
        """Return what answers are bound to. Raises InvalidRequest, naming the field."""
        if self.tools is None and self.tool_choice is not None:
            raise InvalidRequest("tool_choice", self.tool_choice, "tools beside it")
        if self.tools is not None and self.grammar is not None:
            expected = "nothing beside tools, whose calls have a grammar already"
            raise InvalidRequest("grammar", self.grammar.model_dump(exclude_unset=True), expected)
        if self.tools is not None:
            return tool_bounds(self.tools, self.tool_choice)
        if self.grammar is not None:
            return grammar_bounds(self.grammar, self.name, folder)
        return AnswerBounds()

    def check(self) -> None:
        """Raise InvalidRequest for fields that contradict each other."""
        if not self.sources:
            raise InvalidRequest("sources", self.sources, "a list of prompt sources")
        names = [source.name for source in self.sources]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidRequest(f"sources[{index}].name", name, "a name of its own")
        if set(self._parts()) == {"neighbour"}:
            expected = "a source to train on or to judge by: on_task, replay or foreign"
            raise InvalidRequest("sources", names, expected)
        self._check_mix()
        self._check_derived()
        for index, source in enumerate(self.sources):
            if not isinstance(source, RecordSource | PackageSource) or source.tools is None:
                continue
            if source.own_system and self.bounds:
                expected = "no tools of records where answers are bound, or system: none"
                raise InvalidRequest(f"sources[{index}].tools", source.tools, expected)
        spoken = {source.language for source in self.sources}
        if self.languages is not None and set(self.languages) != spoken:
            expected = (
                f"a list or a mapping with the sources' languages: {', '.join(sorted(spoken))}"
            )
            raise InvalidRequest("languages", self.languages, expected)

    def _check_derived(self) -> None:
        """Raise InvalidRequest for a source of prompts that are not there, or not to be learnt."""
        above: dict[str, AnySource] = {}
        for index, source in enumerate(self.sources):
            if isinstance(source, DerivedSource):
                base, field = above.get(source.of), f"sources[{index}].of"
                if base is None or isinstance(base, WrittenSource):
                    expected = "the name of a source above it with prompts of its own"
                    raise InvalidRequest(field, source.of, expected)
                if base.part in ("neighbour", "foreign") and source.part != base.part:
                    expected = f"a source that may be trained on, or part: {base.part} here too"
                    raise InvalidRequest(field, source.of, expected)
                if base.user_data and not source.user_data:
                    expected = "true: its prompts are made from users' own data"
                    raise InvalidRequest(f"sources[{index}].user_data", False, expected)
            above[source.name] = source

    def _check_mix(self) -> None:
        """Raise InvalidRequest for a share that no source can fill."""
        if self.mix is None:
            return
        shares = self.mix.model_dump()
        for part, share in shares.items():
            if bool(share) != (part in self._parts()):
                expected = f"a share above 0 where there are {part} sources, and 0 where not"
                raise InvalidRequest(f"mix.{part}", share, expected)
        if abs(sum(shares.values()) - 1) > 1e-6:
            raise InvalidRequest("mix", shares, "shares that add up to 1")


def load_app(path: Path) -> App:
    """Read app.yaml. Paths in it are taken from its folder.

    Raises InvalidRequest that names the field and what would be right.
    """
    return read_app(_read_yaml(path, "app"), path.parent)


def _read_yaml(path: Path, field: str) -> object:
    """Read a YAML file. Raises InvalidRequest (`field`)."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(field, str(path), f"a readable YAML file ({error})") from error
    return parse_yaml(text, str(path), field)


def read_app(value: object, folder: Path) -> App:
    """Read the description of an application from plain values; paths are taken from `folder`."""
    if not isinstance(value, dict):
        raise InvalidRequest("app", value, f"a mapping with {', '.join(App.model_fields)}")
    value = _with_base(value, folder)
    app = App.read(value, context=folder)
    try:
        app._given = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:  # YAML also reads dates, which JSON cannot keep
        expected = f"texts, numbers, lists and mappings ({error})"
        raise InvalidRequest("app", value, expected) from None
    app._bounds = app.read_bounds(folder)
    app.check()
    return app


def _with_base(value: dict[str, object], folder: Path) -> dict[str, object]:
    """Return a description with those fields of its `base` that it leaves out.

    `base` names another description in `folder`, which has no base itself. Raises InvalidRequest.
    """
    name = value.get("base")
    if name is None:
        return value
    expected = "the name of another description in the same folder, without a base of its own"
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise InvalidRequest("base", name, expected)
    base = _read_yaml(folder / name, "base")
    if not isinstance(base, dict) or base.get("base") is not None:
        raise InvalidRequest("base", name, expected)
    own = {field: item for field, item in value.items() if item is not None and field != "base"}
    return {**base, **own}

"""The prompt sources of app.yaml: a document for each kind."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import Document
from paceline.core.field_types import Between, Expected, NonEmpty
from paceline.dataset.training_set import Part

COUNT_OF_PHRASES = 1000  # prompts where a source of phrases does not say how many


class YamlDocument(Document):
    """A part of app.yaml. A field without a value counts as left out."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: item for name, item in value.items() if item is not None}


def listed(value: object) -> tuple[Any, ...]:
    """Turn a list into a tuple, and a single value into a tuple of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _one_or_more(kind: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind}, {"type": "array", "items": {"type": kind}}]})


def _absolute(paths: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """Take paths from the folder of app.yaml."""
    folder = info.context if isinstance(info.context, Path) else Path()
    return tuple(str(folder / Path(PLACE.sub(_place, path)).expanduser()) for path in paths)


def _place(name: re.Match[str]) -> str:
    """Return the folder of Python's own library, or of a package that can be imported. Nothing is
    imported. Raises InvalidRequest."""
    if name[1] == "stdlib":
        return sysconfig.get_path("stdlib")
    found = importlib.util.find_spec(name[1])
    folders = None if found is None else found.submodule_search_locations
    if not folders:
        raise InvalidRequest("", name[0], "{stdlib}, or a package that Python can import")
    return next(iter(folders))


PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")
SHARES = "at least one, each with its share"
Noise = Literal["typos", "fillers", "repeats", "bare"]
AtLeastOne = Annotated[int, Between(1)]
AboveZero = Annotated[float, Between(1e-6, 1e9)]
Texts = Annotated[
    tuple[NonEmpty, ...],
    Expected("a text or a list of texts, none empty", bool),
    BeforeValidator(listed),
    _one_or_more("string"),
]
Numbers = Annotated[
    tuple[float, ...],
    Expected("a number, or a list of numbers", bool),
    BeforeValidator(listed),
    _one_or_more("number"),
]
Template = Annotated[
    str,
    Expected(
        "a text with {prompt} in it once, where the prompt is put",
        lambda text: bool(text.count("{prompt}") == 1),
    ),
]
Templates = Annotated[
    tuple[Template, ...],
    Expected("a text with {prompt} in it once, or a list of such texts", bool),
    BeforeValidator(listed),
    _one_or_more("string"),
]
Paths = Annotated[Texts, AfterValidator(_absolute)]
Length = Annotated[
    tuple[int, int],
    Expected(
        "shortest and longest, in characters, as [20, 2000]: at least 1, the shortest first",
        lambda length: bool(1 <= length[0] <= length[1]),
    ),
    BeforeValidator(listed),
]
Way = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda text: tuple(text.split(".")) if isinstance(text, str) else text),
    Expected("the way to the prompts, as turns.*.text"),
    WithJsonSchema({"type": "string"}),
]


# Of records: what a request with tools has beside its messages.
TOOLS = about(
    "the way to the record's tools, a list of functions, as `functions`: the prompt is sent with "
    "them, and the answer is free to call them",
    None,
    "none",
)


class SourceSpec(YamlDocument):
    """The fields that sources of every kind have."""

    name: Annotated[
        NonEmpty,
        Expected(
            "a name, text without # (which stands before a prompt's number)",
            lambda name: bool(name.strip()) and "#" not in name,
        ),
    ] = about("stands in each row before the number of its prompt, as `phrases#17`")
    part: Part = about("what the prompts are for, above", "on_task")
    weight: Annotated[float, Between(1e-6, 1e9)] = about(
        "share among the sources of the same part", 1.0
    )
    count: AtLeastOne | None = about(
        "most prompts that are taken", None, "all; of `self` as many as are needed"
    )
    samples: AtLeastOne = about("answers to each prompt, each with another seed", 1)
    language: NonEmpty = about("recorded with the rows and in the manifest", "en")
    licence: NonEmpty | None = about(
        "recorded as well", None, "a package's own metadata, else `not stated`"
    )
    system: Literal["own", "none"] | None = about(
        "`own`: as the application sends it, with its system prompt, template and "
        "grammar; `none`: plain chat",
        None,
        "`own` on task and foreign, else `none`",
    )
    template: Templates = about(
        'put around each prompt, inside the application\'s, as `"Explain:\\n{prompt}"`; of a list, '
        "each prompt and sample draws one",
        ("{prompt}",),
        "`{prompt}`",
    )
    length: Length = about(
        "shortest and longest prompt, in characters",
        (1, 8000),
        "`[1, 8000]`, of texts `[200, 1200]`",
    )
    user_data: bool = about(
        "marks users' own data, which is refused unless the command says `--user-data`", False
    )

    @property
    def own_system(self) -> bool:
        """True when prompts are sent with the application's system prompt and grammar."""
        own = "own" if self.part in ("on_task", "foreign") else "none"
        return (self.system or own) == "own"


class RecordSource(SourceSpec):
    """One record a line."""

    kind: Literal["jsonl"]
    path: Paths = about("file, glob or folder")
    field: Way = about(
        "the way to the prompt in a record, as `prompt` or `turns.*.text` with places "
        "and `*` for each; a list of messages is a conversation, which is cut behind the user's "
        "last turn",
        ("prompt",),
        "`prompt`",
    )
    tools: Way | None = TOOLS
    format: ClassVar[str] = "jsonl"


class TextSource(SourceSpec):
    """Paragraphs of text files; functions and documentation of Python files."""

    kind: Literal["text"]
    path: Paths = about(
        "file, glob or folder; `{stdlib}` in it is Python's own library, and `{NAME}` the folder "
        "of an installed package"
    )
    unit: Literal["paragraph", "function", "signature", "docstring"] = about(
        "what a text is cut into: `paragraph`; `function`, whole; `signature`, a module's function "
        "up to the end of its docstring; or `docstring`, of anything",
        "paragraph",
    )
    length: Length = (200, 1200)


class PackageSource(SourceSpec):
    """A data file in an installed Python package."""

    kind: Literal["package"]
    package: NonEmpty = about("name of the package, as pip knows it")
    files: Texts = about("glob within the package")
    format: Literal["json", "jsonl", "yaml", "csv"] = about("json, jsonl, yaml or csv")
    field: Way = about("the way to the prompt, as for `jsonl`", (), "the record itself")
    tools: Way | None = TOOLS


class PhraseSource(SourceSpec):
    """Phrases with `{slots}` from a YAML file, as above; `#` is any digit. A phrase that is a list
    is a conversation: the turns of user and assistant, the user's last."""

    kind: Literal["phrases"]
    path: Paths = about(f"the YAML file; `count` is how many are written ({COUNT_OF_PHRASES})")


class TurnSource(SourceSpec):
    """The target writes the user's turn itself, as in
    [Magpie](https://arxiv.org/abs/2406.08464), from its empty user template."""

    kind: Literal["self"]
    starts: Texts = about(
        "beginnings of the user's turn, which the target goes on from", ("",), "none"
    )
    temperature: Annotated[float, Between(0.01, 100)] = about(
        "temperature of the user's turns", 1.0
    )
    max_tokens: AtLeastOne = about("longest turn of a user, in tokens", 128)

    @model_validator(mode="after")
    def _check_samples(self) -> TurnSource:
        if self.samples > 1:
            expected = "1: the target writes as many prompts as are needed"
            raise InvalidRequest("samples", self.samples, expected)
        return self


class LogSource(SourceSpec):
    """Chat requests as they were sent to an OpenAI-compatible API, one a line (`{"messages": …}`,
    or a line of a batch file). The file's first line states that their users agreed:
    `{"consent": {"by": "who", "to": "what", "date": "when"}}`."""

    kind: Literal["log"]
    path: Paths = about("file, glob or folder")
    user_data: bool = about("true: what users wrote always needs `--user-data`", True)

    @model_validator(mode="after")
    def _check_user_data(self) -> LogSource:
        if not self.user_data:
            raise InvalidRequest("user_data", False, "true: a log is users' own data")
        return self


class DerivedSource(SourceSpec):
    """The fields of sources that are made from the prompts of another."""

    of: NonEmpty = about("name of the source whose prompts are taken; it stands above this one")


class NoisySource(DerivedSource):
    """Prompts of another source with the noise of typing and speech; nothing else changes."""

    kind: Literal["noisy"]
    noise: Annotated[dict[Noise, AboveZero], Expected(SHARES, bool)] = about(
        "kinds with their shares: `typos`, `fillers` (um, you know), `repeats` (my my order), "
        "`bare` (no capitals, no punctuation). A prompt gets one of them",
        lambda: dict.fromkeys(get_args(Noise), 1.0),
        "all, with equal shares",
    )


class Rewording(YamlDocument):
    """A way to say a prompt anew: what the target is asked, and its share of the source."""

    ask: Template
    share: AboveZero = 1.0


class RewriteSource(DerivedSource):
    """Prompts of another source, which the target says anew."""

    kind: Literal["rewrite"]
    ways: dict[NonEmpty, Rewording] = about(
        "a mapping from a name, as `angry` or `short`, to `ask`, what the target is asked with "
        "`{prompt}` in it once, and `share` (1.0). A prompt is said anew in one of them"
    )
    temperature: Annotated[float, Between(0, 100)] = about("temperature of the rewriting", 0.7)
    max_tokens: AtLeastOne = about("longest prompt that the target writes, in tokens", 128)

    @model_validator(mode="after")
    def _check_ways(self) -> RewriteSource:
        if not self.ways:
            raise InvalidRequest("ways", self.ways, SHARES)
        return self


KINDS = (
    RecordSource, TextSource, PackageSource, PhraseSource, TurnSource, LogSource, NoisySource,
    RewriteSource,
)  # fmt: skip
FileSource = RecordSource | TextSource | PhraseSource | LogSource
# Sources whose prompts the target writes, while the set is made.
WrittenSource = TurnSource | RewriteSource
AnySource = Annotated[
    RecordSource
    | TextSource
    | PackageSource
    | PhraseSource
    | TurnSource
    | LogSource
    | NoisySource
    | RewriteSource,
    Field(discriminator="kind"),
]

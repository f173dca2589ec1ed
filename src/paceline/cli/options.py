"""Commands out of dataclasses: every field is an option, with its type, default and help.

A field that is itself a dataclass is a group of options. It also takes the values of the command's
own fields of the same name: `model` of a command is the model of its engine.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeVar

from pydantic import Strict

from paceline.cli.help import Formatter, Parser, epilog
from paceline.cli.option import Argument, Only, Option, options_of
from paceline.core import InvalidRequest, PacelineError
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between, Expected, Several, annotation_of, fields_of
from paceline.core.params import DraftLength
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.cli.remote import RemoteModel

DEFAULTS = EngineConfig()
SERVER_HELP = (
    "a running server that answers, as http://127.0.0.1:8000, or as unix:/run/paceline.sock"
)
CONFIG_HELP = (
    "file with options, as paceline.toml: a table for each command (TOML or YAML). Each option is "
    "also a variable, as PACELINE_MAX_MODEL_LEN"
)
M = TypeVar("M")


class Command(Protocol):
    """One command with its options. The docstring is its help text; the list of commands shows the
    first sentence."""

    def run(self) -> int:
        """Run the command. Return the exit code."""


# -- fields that several commands have -------------------------------------------------------------

POSITIONAL = Argument(positional=True)
MODEL_HELP = fields_of(EngineConfig)["model"].description or ""
PROMPTS_HELP = (
    "a shipped set, or a file of prompts: JSON, JSONL, ShareGPT's form, or a text's lines"
)
ASKED_MODEL = "model to load; with --url, the server's name of a model, by default its first"
Positional = Annotated[str, POSITIONAL]
ModelOption = Annotated[str, Argument(flags=("-m", "--model"))]
DEVICE_OPTIONS = ("dtype", "device", "backend", "threads")
Device = Annotated[EngineConfig, Only(DEVICE_OPTIONS)]
Network = Annotated[EngineConfig, Only((*DEVICE_OPTIONS, "quantize"))]
Count = Annotated[int, Between(1)]
Counts = tuple[int, ...]
Numbers = tuple[float, ...]
Strings = Annotated[tuple[str, ...], Several]
FILE = Argument(metavar="FILE")
File = Annotated[Path, Strict(False), FILE]


def _is_writable(path: Path) -> bool:
    return not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)


OutputFile = Annotated[
    File, Expected("a file in a folder that exists and is writable", _is_writable)
]


@checked
class Speculation:
    """The longest draft of a round, or decoding without drafts."""

    max_draft_len: DraftLength | None = about("longest draft of a round", None, "the drafter's own")
    off: bool = about("decode without speculation (AR)", False)

    def __post_init__(self) -> None:
        if self.off and self.max_draft_len is not None:
            raise InvalidRequest("max_draft_len", self.max_draft_len, "no value beside --off")

    @property
    def lengths(self) -> dict[str, float]:
        """The options as the object `speculative` of a request; empty where nothing is set."""
        return {} if self.max_draft_len is None else {"max_draft_len": self.max_draft_len}

    @property
    def stated(self) -> Literal["off"] | dict[str, float] | None:
        """The value of `speculative` as the API takes it."""
        return "off" if self.off else self.lengths or None


@checked
class EngineCommand:
    """A command that answers with an engine of its own."""

    model: Positional = about(MODEL_HELP, DEFAULTS.model)
    speculation: Speculation = Speculation()
    engine: EngineConfig = DEFAULTS


@checked
class AskCommand:
    """A command that answers with an engine of its own, or has a running server answer."""

    speculation: Speculation = Speculation()
    engine: EngineConfig = DEFAULTS
    url: str | None = about(SERVER_HELP, None)
    api_key: str | None = about("with --url: its API key", None)
    model: Positional | None = about(ASKED_MODEL, None, DEFAULTS.model)

    def __post_init__(self) -> None:
        if self.url is not None:
            refuse_engine_options(self.engine, DEFAULTS)
        elif self.api_key is not None:
            raise InvalidRequest("api_key", "<hidden>", "--url beside it")

    def server(self) -> RemoteModel | None:
        """Return the server's model to ask, after saying so on stderr; None without --url."""
        from paceline.cli.remote import RemoteModel

        if self.url is None:
            return None
        model = RemoteModel(self.url, self.api_key, self.model)
        print(f"asking {model.name} at {model.url}", file=sys.stderr)
        return model


# -- commands --------------------------------------------------------------------------------------


def add_command(
    commands: argparse._SubParsersAction[Parser], name: str, kind: type[Command], place: str = ""
) -> None:
    """Add a command with its options; `place` names the command that it is a job of. Parsed
    arguments hold its `kind`."""
    whole = f"{place} {name}".strip()
    parser = commands.add_parser(
        name,
        help=summary(kind),
        description=_help_text(kind),
        epilog=epilog(whole),
        formatter_class=Formatter,
    )
    add_options(parser, kind)
    parser.add_argument("--config", metavar="FILE", default=None, help=CONFIG_HELP)
    parser.set_usage()
    for action in parser._actions:  # the environment or the file may state what is required, and
        action.required = False  # whatever is missing then is named at once
    parser.set_defaults(kind=kind, command=whole, refuse=parser.error)


def summary(kind: type[Command]) -> str:
    """Return a command's line in a list of commands."""
    first = _help_text(kind).partition(". ")[0].removesuffix(".")
    return first[0].lower() + first[1:]


def _help_text(kind: type[Command]) -> str:
    return " ".join((inspect.getdoc(kind) or "").split()).replace("`", "").replace("%", "%%")


def run_command(program: str, parse: Callable[[], Command]) -> int:
    """Run what `parse` returns. 0 is success, 1 a failed run, 2 an input that was refused, 130
    Ctrl-C."""
    try:
        return parse().run()
    except PacelineError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader left (`| head`); nothing more to say to it
        return 0


def run_alone(module: str, kind: type[Command], argv: Sequence[str] | None = None) -> int:
    """Run a command that is a module of its own, `python -m MODULE`."""
    parser = Parser(prog=f"python -m {module}", description=_help_text(kind))
    add_options(parser, kind)
    parser.set_usage()
    return run_command(module, lambda: read_options(parser.parse_args(argv), kind))


def _groups(model: type) -> dict[str, type]:
    """Return the fields that are groups of options, and their models."""
    kinds = {name: field.annotation for name, field in fields_of(model).items()}
    return {name: kind for name, kind in kinds.items() if kind is not None and is_dataclass(kind)}


def add_options(parser: argparse.ArgumentParser, model: type) -> None:
    """Add the options of the fields of `model` and of its groups."""
    titled: dict[str, argparse._ActionsContainer] = {"": parser}
    for title, option in offered_options(model):
        if title not in titled:
            titled[title] = parser.add_argument_group(title.replace("_", " "))
        option.add_to(titled[title])


def offered_options(model: type) -> Iterator[tuple[str, Option]]:
    """Yield the options that a command has, each with its group: "" for the command's own."""
    groups, options = _groups(model), options_of(model)
    for name, option in sorted(options.items(), key=lambda item: item[0] in groups):
        if name not in groups:
            yield "", option
            continue
        only = annotation_of(fields_of(model)[name], Only)
        for inner, inner_option in options_of(groups[name], option.default).items():
            offered = inner in only.names if only else bool(inner_option.text)
            if offered and inner not in options:
                yield name, inner_option


def absent_inputs(args: argparse.Namespace, kind: type) -> list[PacelineError]:
    """Return a refusal for each input that parsed arguments name and that is not there."""
    return [error for _, option in offered_options(kind) for error in option.absent(args)]


def read_options(
    args: argparse.Namespace,
    model: type[M],
    default: M | None = None,
    names: Collection[str] | None = None,
) -> M:
    """Make a `model` of the options that a command has; with `names`, of these fields alone.

    Raises InvalidRequest, naming the field.
    """
    groups, values = _groups(model), dict[str, object]()
    options = options_of(model, default)
    for name, option in options.items():
        if names is not None and name not in names:
            continue
        if name in groups:
            only = annotation_of(fields_of(model)[name], Only)
            # of an option like that of another field of the command, the value is not the group's
            inner = None if only is None else (*only.names, *options)
            values[name] = read_options(args, groups[name], option.default, inner)
        elif (value := getattr(args, option.dest, None)) is not None:
            values[name] = value
    try:
        return model(**values) if default is None else replace(default, **values)  # type: ignore[type-var]
    except InvalidRequest as error:
        raise _of_option(error, model) from None


def _of_option(error: InvalidRequest, model: type) -> InvalidRequest:
    """Return a refusal of a field under the name that its option has."""
    option = options_of(model).get(error.field)
    if option is None or option.dest == error.field:
        return error
    message = option.dest + str(error).removeprefix(error.field)
    return InvalidRequest(option.dest, error.value, error.expected, message)


def refuse_engine_options(engine: EngineConfig, default: EngineConfig) -> None:
    """Raise InvalidRequest for an option of the engine beside --url, where a server has them."""
    stated, plain = asdict(engine), asdict(default)
    for field, value in stated.items():
        if field != "model" and value != plain[field]:
            raise InvalidRequest(field, value, "no such option with --url: the server has its own")

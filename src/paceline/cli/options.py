"""Options that several commands share, made from the fields of the models that they fill."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from pydantic.fields import FieldInfo

from paceline.core import InvalidRequest, SamplingParams, SpeculativeParams
from paceline.core.field_types import Flag, OneOf, annotation_of, fields_of
from paceline.engine.config import EngineConfig

SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
DEFAULTS = EngineConfig()
M = TypeVar("M")


def parse_bytes(text: str) -> int:
    """Read 1500000000, 1.5G (10^9) or 2GiB (2^30)."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it like 512MiB or 2GiB")
    return int(float(match[1]) * SIZES[match[2] or ""])


def parse_rates(text: str) -> tuple[float, ...]:
    """Read acceptance rates per draft position: 0.9,0.8,0.7."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        message = f"{text!r} is no list of rates; write it like 0.9,0.8,0.7"
        raise argparse.ArgumentTypeError(message) from None


# -- options from fields --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """An option that sets a field of a model: a switch, or a value that is read by `parse`."""

    field: str
    flag: str
    default: Any
    text: str
    parse: Callable[[str], Any]
    choices: tuple[str, ...] | None
    metavar: str | None
    is_switch: bool
    is_repeated: bool

    @classmethod
    def of(cls, name: str, field: FieldInfo) -> Option:
        """Return the option that sets the field called `name`."""
        flag, one_of = annotation_of(field, Flag) or Flag(), annotation_of(field, OneOf)
        types = set(_plain_types(field.annotation))
        return cls(
            field=name,
            flag="--" + (flag.name or name.replace("_", "-")),
            default=field.get_default(call_default_factory=True),
            text=" ".join((field.description or "").split()),
            parse=_parser(types, flag),
            choices=one_of.values if one_of else None,
            metavar=flag.metavar or ("N" if int in types else None),
            is_switch=bool in types,
            is_repeated=tuple in types and float not in types,
        )

    @property
    def dest(self) -> str:
        """The attribute of parsed arguments that holds the value."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def help(self) -> str:
        """The text for `--help` and the docs: what the option means, and its default."""
        default = self.default
        if default in (None, (), "") or self.is_switch or "(default" in self.text:
            return self.text
        shown = f"{default:g}" if isinstance(default, float) else default
        if self.parse is parse_bytes:
            shown = f"{default // 2**20}MiB"
        return f"{self.text} (default: {shown})"

    @property
    def row(self) -> str:
        """The row of a Markdown table: the option, its choices and what it means."""
        choices = ", ".join(f"`{choice}`" for choice in self.choices or ())
        return f"| `{self.flag}` | {choices + ': ' if choices else ''}{self.help} |"

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a command."""
        text = self.help.replace("%", "%%").replace("`", "")
        if self.is_switch:
            parser.add_argument(self.flag, action="store_true", help=text)
        elif self.is_repeated:
            parser.add_argument(self.flag, action="append", metavar=self.metavar, help=text)
        else:
            parser.add_argument(
                self.flag,
                type=self.parse,
                choices=self.choices,
                default=self.default,
                metavar=self.metavar,
                help=text,
            )

    def value(self, args: argparse.Namespace) -> Any:
        """Return the value for the field."""
        value = getattr(args, self.dest)
        if self.is_switch:
            return value != self.default
        if self.is_repeated:
            return self.default if value is None else tuple(value)
        return value


def _plain_types(annotation: Any) -> list[type]:
    """Return the types in an annotation, such as tuple and str for tuple[str, ...] | None."""
    parts = get_args(annotation)
    here = [annotation] if isinstance(annotation, type) else []
    if parts and str(annotation).startswith("tuple["):
        here = [tuple]
    return here + [plain for part in parts for plain in _plain_types(part)]


def _parser(types: Collection[type], flag: Flag) -> Callable[[str], Any]:
    if flag.size:
        return parse_bytes
    if tuple in types and float in types:
        return parse_rates
    return next((kind for kind in (int, float) if kind in types), str)


def options_of(model: type[Any]) -> dict[str, Option]:
    """Return the options that set the fields of `model`, a checked() dataclass, by field."""
    return {name: Option.of(name, field) for name, field in fields_of(model).items()}


def add_options(
    parser: argparse._ActionsContainer, model: type[Any], *names: str, **defaults: Any
) -> None:
    """Add the options of the fields `names`; `defaults` replace those of the fields."""
    options = options_of(model)
    for name in names:
        option = options[name]
        if name in defaults:
            option = replace(option, default=defaults[name])
        option.add_to(parser)


def read_options(args: argparse.Namespace, kind: type[M], **values: Any) -> M:
    """Make a `kind` of the options that a command has, and of `values`.

    Raises InvalidRequest, naming the field.
    """
    stated = {
        name: option.value(args)
        for name, option in options_of(kind).items()
        if name not in values and hasattr(args, option.dest)
    }
    return kind(**stated, **values)


# -- the engine -----------------------------------------------------------------------------------


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    text = options_of(EngineConfig)["model"].help
    parser.add_argument("model", nargs="?", default=DEFAULTS.model, help=text)


def add_model_option(parser: argparse.ArgumentParser) -> None:
    text = options_of(EngineConfig)["model"].help
    parser.add_argument("-m", "--model", default=DEFAULTS.model, help=text)


def add_draft_window_option(parser: argparse._ActionsContainer) -> None:
    add_options(parser, EngineConfig, "draft_window")


def add_network_options(
    parser: argparse._ActionsContainer, quantize: str | None = DEFAULTS.quantize
) -> None:
    add_device_options(parser)
    add_options(parser, EngineConfig, "quantize", quantize=quantize)


def add_device_options(parser: argparse._ActionsContainer) -> None:
    add_options(parser, EngineConfig, "dtype", "device", "backend", "threads")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    add_options(
        group, EngineConfig, *(name for name in options_of(EngineConfig) if name != "model")
    )


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """Return the engine's options. Raises InvalidRequest, naming the option, before torch loads."""
    model, drafter = args.model or DEFAULTS.model, drafter_specs(args.drafter)
    return read_options(args, EngineConfig, model=model, drafter=drafter)


def drafter_specs(values: list[str] | None) -> str | tuple[str, ...] | None:
    if values is None:
        return DEFAULTS.drafter
    if "none" in values:
        if len(values) > 1:
            raise InvalidRequest("drafter", values, "`none` alone, or drafters without it")
        return None
    return tuple(values)


# -- requests -------------------------------------------------------------------------------------

SAMPLING = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed",
)  # fmt: skip


def add_sampling_options(
    parser: argparse.ArgumentParser, *, max_tokens: int, temperature: float, seed: int | None = None
) -> None:
    group = parser.add_argument_group("sampling")
    defaults = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    add_options(group, SamplingParams, *SAMPLING, **defaults)


def sampling_params(args: argparse.Namespace, **more: Any) -> SamplingParams:
    """Return how to sample. Raises InvalidRequest, naming the field."""
    values = {name: getattr(args, name) for name in SAMPLING}
    return SamplingParams(**values, **more)


def add_draft_length_option(parser: argparse.ArgumentParser) -> None:
    add_options(parser, SpeculativeParams, "max_draft_len")


def add_speculation_options(parser: argparse.ArgumentParser) -> None:
    add_draft_length_option(parser)
    parser.add_argument("--off", action="store_true", help="decode without speculation (AR)")


def speculative(args: argparse.Namespace) -> Any:
    """Return the value of `speculative` as the API takes it: None, "off" or an object.

    Raises InvalidRequest, naming the field.
    """
    if args.off:
        if args.max_draft_len is not None:
            raise InvalidRequest("max_draft_len", args.max_draft_len, "no value beside --off")
        return "off"
    stated = None if args.max_draft_len is None else {"max_draft_len": args.max_draft_len}
    SpeculativeParams.parse(stated)
    return stated

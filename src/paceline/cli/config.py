"""Options out of the environment and a configuration file.

The command line comes before the environment, the environment before the file, and the file before
the defaults. An option has one name in all of them: `--max-model-len`, PACELINE_MAX_MODEL_LEN, and
`max-model-len` (or `max_model_len`) in the command's table of the file.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from paceline.cli.option import Option
from paceline.cli.options import Command, absent_inputs, offered_options
from paceline.core import InvalidRequest

PREFIX = "PACELINE_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
# read by modules of several commands, and no options
NO_OPTIONS = {CONFIG_VARIABLE, f"{PREFIX}CACHE", f"{PREFIX}KERNELS"}
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
# options of commands that may ask a server
SERVERS, KEY, MODEL = ("url", "engine"), "api-key", "model"
ENGINE = "engine"  # the group of options of an engine
SECRET = ("api_keys", "admin_key")  # fields whose values no error shows
LINK = "tcp://"  # Kubernetes sets PACELINE_PORT so, in pods beside a Service named paceline
YAML_VALUES = (
    ("bool", "(true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("null", "(null|Null|NULL|~|)$", [*"nN~", ""]),
    ("merge", "<<$", ["<"]),
)
Table = Mapping[str, object]


def add_configured(
    args: argparse.Namespace,
    kind: type[Command],
    every: Callable[[], Collection[str]],
    commands: Collection[str],
) -> None:
    """Add to parsed arguments what the environment and the configuration state beside them.

    `every` returns the names of the options of all commands, slowly; `commands` are the names of
    the commands. Raises InvalidRequest, which names the variable, or the file and its key.
    """
    offered = list(offered_options(kind))
    options = {name_of(option): option for _, option in offered}
    of_engine = {name_of(option) for group, option in offered if group == ENGINE}
    _check_variables(every, options)
    path = args.config or os.environ.get(CONFIG_VARIABLE)
    table = read_table(path, args.command, commands) if path else {}
    stated = {str(key).replace("_", "-"): (str(key), value) for key, value in table.items()}
    for key in stated.keys() - options.keys():
        place = f"{path}: {args.command}.{stated[key][0]}"
        message = f"{place}: no such option of `paceline {args.command}`{_hint(key, options)}"
        raise InvalidRequest(place, stated[key][1], "an option of the command", message)
    always = any(options[server].default for server in SERVERS if server in options)
    for name, option in sorted(options.items(), key=lambda item: item[0] not in SERVERS):
        asks = always or any(hasattr(args, server) for server in SERVERS)
        if hasattr(args, option.dest) or (asks and name in of_engine):
            continue  # beside --url, the model and how it runs are the server's business
        variable = variable_of(name)
        text = os.environ.get(variable) if _applies(name, options, asks) else None
        if text:
            text = _first_key(text) if name == KEY and asks else text
            setattr(args, option.dest, _from_text(option, text, variable))
        elif name in stated:
            key, value = stated[name]
            value = _from_value(option, value, f"{path}: {args.command}.{key}")
            setattr(args, option.dest, value)
    missing = [name for option in options.values() if (name := option.missing(args))]
    if missing:
        required = f"the following arguments are required: {', '.join(missing)}"
        args.refuse("\n".join([*map(str, absent_inputs(args, kind)), required]))


def _applies(name: str, options: Collection[str], asks: bool) -> bool:
    """Return whether a command takes an option from the environment: a key where it asks a server,
    and a model where it does not. Variables of both are often set for `serve`."""
    if not set(SERVERS) & set(options) or name not in (KEY, MODEL):
        return True
    return asks == (name == KEY)


def _first_key(text: str) -> str:
    """Return the first of the keys that PACELINE_API_KEY has for a server."""
    from paceline.bench.load.address import first_key  # here, since most starts ask no server

    return first_key(text)


def name_of(option: Option) -> str:
    return option.dest.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of the option `--name`."""
    return PREFIX + name.replace("-", "_").upper()


def read_table(path: str, command: str, commands: Collection[str]) -> Table:
    """Return what a configuration file states for a command: `drafter.convert` is a job's table.

    Raises InvalidRequest naming the file.
    """
    document = _read(path)
    firsts = {command.partition(" ")[0] for command in commands}
    _check_tables(path, "", document, firsts, "a command, as [serve]")
    for first in document.keys() - set(commands):  # what has jobs has no options
        jobs = {job for name, _, job in (each.partition(" ") for each in commands) if name == first}
        expected = f"a job, as [{first}.{min(jobs)}]"
        _check_tables(path, f"{first}.", document[first], jobs, expected)
    table: Table = document
    for step in command.split():
        table = cast(Table, table.get(step, {}))
    return table


def _check_tables(
    path: str, place: str, tables: Table, names: Collection[str], expected: str
) -> None:
    """Raise InvalidRequest for what is not a table with one of `names`."""
    for key, table in tables.items():
        name = str(key)
        if name not in names or not isinstance(table, dict):
            message = f"{path}: {place}{name}: no such table; expected one for {expected}"
            raise InvalidRequest(place + name, table, expected, message + _hint(name, names))


def _read(path: str) -> dict[str, Any]:
    """Read a file. Numbers may come as they are written, so that the name 1.10 is not 1.1."""
    try:
        text = Path(path).read_text("utf-8")
        is_yaml = path.endswith((".yaml", ".yml"))
        document = _yaml(text) if is_yaml else tomllib.loads(text, parse_float=str)
    except OSError as error:
        expected = f"a TOML or YAML file that can be read ({error.strerror})"
        raise InvalidRequest("config", path, expected) from None
    except ValueError as error:
        kind = "YAML" if path.endswith((".yaml", ".yml")) else "TOML"
        raise InvalidRequest("config", path, f"a readable {kind} file ({error})") from None
    if not isinstance(document, dict):
        raise InvalidRequest("config", path, "a file with a table for each command")
    return document


def _yaml(text: str) -> object:
    import yaml  # here, since most starts read none

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Takes true, false, null and << as such, as YAML 1.2, and all else as it is written."""

        yaml_implicit_resolvers: ClassVar[dict[str, object]] = {}

    for tag, pattern, starts in YAML_VALUES:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), starts)
    try:
        document: object = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return document or {}


def _check_variables(every: Callable[[], Collection[str]], offered: Collection[str]) -> None:
    """Refuse a variable whose name comes close to that of an option; of several, the guess is one
    with the same letters, or one that the command has. Other variables are ignored: Kubernetes and
    people set some with this prefix."""
    of_command = {variable_of(name) for name in offered}
    stated = {name: text for name, text in os.environ.items() if name.startswith(PREFIX) and text}
    if stated.keys() <= of_command | NO_OPTIONS:
        return  # most starts: without the names of all options, which import every command
    names = {variable_of(name) for name in every()} | {CONFIG_VARIABLE}
    for variable, text in stated.items():
        if variable not in names | NO_OPTIONS:
            close = difflib.get_close_matches(variable, names, n=3, cutoff=0.9)
            close.sort(key=lambda name: (sorted(name) != sorted(variable), name not in of_command))
            if close:
                message = f"{variable}: no command has this option; did you mean {close[0]}?"
                raise InvalidRequest(variable, text, close[0], message)


def _from_text(option: Option, text: str, where: str) -> object:
    """Read a variable: options that may be repeated have a value on each line."""
    if option.is_switch:
        return _switch(option, text.lower(), where)
    if text.startswith(LINK):
        expected = (
            "a value of the option; Kubernetes sets this variable for a Service of the name "
            "`paceline`: set enableServiceLinks: false in the pod"
        )
        raise InvalidRequest(where, text, expected)
    if option.is_several:
        lines = [line.strip() for line in text.splitlines()]
        return [_value(option, line, where) for line in lines if line]
    return _value(option, text.strip(), where)


def _from_value(option: Option, value: object, where: str) -> object:
    """Read a value of a file: lists for options that may be repeated, and for lists of numbers."""
    if option.is_switch:
        if not isinstance(value, bool):
            raise InvalidRequest(where, value, "true or false")
        return _switch(option, str(value).lower(), where)
    if isinstance(value, dict) and option.is_several:
        value = [f"{key}={item}" for key, item in value.items()]
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | int | float) and type(item) is not bool for item in items):
        shown = "<hidden>" if option.field in SECRET else value
        raise InvalidRequest(where, shown, "text or a number, or a list of them")
    if option.is_several:
        return [_value(option, str(item), where) for item in items]
    return _value(option, ",".join(map(str, items)), where)


def _switch(option: Option, word: str, where: str) -> object:
    """Return the value that a switch gives its field where `word` says that it is set."""
    if word not in (*TRUE, *FALSE):
        raise InvalidRequest(where, word, "true or false")
    if option.argument.action is not None:  # has a form for both
        return word in TRUE
    return option.default if word in FALSE else not option.default


def _value(option: Option, text: str, where: str) -> object:
    try:
        return option.read(text)
    except ValueError as error:
        raise InvalidRequest(where, text, str(error), f"{where}: {error}") from None


def _hint(name: str, names: Collection[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""

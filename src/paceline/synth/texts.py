"""Texts that become prompts: YAML, phrases with slots, paragraphs, functions of Python files."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.field_types import Expected, NonEmpty
from paceline.dataset.training_set import train_package
from paceline.synth.prompts import Message, keyed
from paceline.synth.source_spec import listed

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # lists of statements in a statement
DIGIT = re.compile("#")
SLOT = re.compile(r"\{(\w+)\}")
SLOT_VALUES = "texts for each {slot} that a phrase has, and for no other"
SlotValues = Annotated[list[str], Expected(SLOT_VALUES, bool)]


def parse_yaml(text: str, name: str, field: str) -> object:
    """Read plain data from one YAML document in which no key stands twice.

    Raises InvalidRequest (`field`) that names the file and the place.
    """
    yaml = train_package("yaml", "pyyaml")
    try:
        content: object = yaml.load(text, _loader())
        return content
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        expected = "valid YAML: " + " ".join(str(error).split())
        raise InvalidRequest(field, name, expected) from error


@cache
def _loader() -> Any:
    yaml = train_package("yaml", "pyyaml")

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """A loader that refuses equal keys: PyYAML takes the last one without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for index, key in enumerate(keys):
                if key in keys[:index]:
                    raise yaml.YAMLError(f"{key!r} stands twice, {node.start_mark}")
            return super().construct_mapping(node, deep)

    return Loader


def _ends_with_user(phrase: str | list[str]) -> bool:
    return isinstance(phrase, str) or len(phrase) % 2 == 1


class Phrases(Document):
    """A file of phrases or conversations, and the values that each {slot} in them may have; `#` in
    a value is any digit."""

    phrases: Annotated[
        list[NonEmpty | list[NonEmpty]],
        Expected(
            "phrases, or conversations: lists of the turns of user and assistant, the user's last",
            lambda phrases: bool(phrases) and all(map(_ends_with_user, phrases)),
        ),
        BeforeValidator(lambda value: list(listed(value))),
    ]
    slots: dict[str, SlotValues] = Field(default_factory=dict)


def filled_phrases(
    content: object, source: str, count: int
) -> Iterator[tuple[str | list[Message], str]]:
    """Yield `count` texts or conversations, each with its phrase or the user's first one: phrase
    after phrase, and always the same for a source of this name. A slot has one value in all turns.

    Raises InvalidRequest for a file of another form, and for a slot without values.
    """
    file = Phrases.read(content, "path")
    slots = {
        name for phrase in file.phrases for turn in listed(phrase) for name in SLOT.findall(turn)
    }
    for name in sorted(slots ^ file.slots.keys()):
        raise InvalidRequest(f"path.slots.{name}", file.slots.get(name), SLOT_VALUES)
    for number in range(count):
        phrase = file.phrases[number % len(file.phrases)]
        if isinstance(phrase, str):
            yield _filled(phrase, file.slots, source, number), phrase
            continue
        turns = [_filled(turn, file.slots, source, number) for turn in phrase]
        roles = cycle(("user", "assistant"))
        yield (
            [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)],
            phrase[0],
        )


def _filled(phrase: str, slots: Mapping[str, Sequence[str]], source: str, number: int) -> str:
    def value(slot: re.Match[str]) -> str:
        values = slots[slot[1]]
        draw = keyed("slot", source, number, slot[1])
        text = values[draw % len(values)]
        return DIGIT.sub(lambda mark: str(keyed(draw, mark.start()) % 10), text)

    return SLOT.sub(value, phrase)


def paragraphs(text: str, shortest: int, longest: int) -> Iterator[str]:
    """Yield paragraphs: joined until they have `shortest` characters, and cut between words where
    they have more than `longest`."""
    waiting = ""
    for paragraph in re.split(r"\n\s*\n", text):
        waiting = f"{waiting}\n\n{paragraph.strip()}" if waiting else paragraph.strip()
        while len(waiting) > longest:
            cut = waiting.rfind(" ", 1, longest + 1)
            cut = cut if cut > 0 else longest
            yield waiting[:cut].rstrip()
            waiting = waiting[cut:].lstrip()
        if len(waiting) >= shortest:
            yield waiting
            waiting = ""
    if waiting:
        yield waiting


def functions(text: str) -> Iterator[str]:
    """Yield every function and method of a Python file, with its decorators, flush left.

    Raises SyntaxError or ValueError for what is no Python file.
    """
    tree, lines = _parsed(text)
    for node in _definitions(tree.body):
        if isinstance(node, FUNCTION):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))


def signatures(text: str) -> Iterator[str]:
    """Yield the functions of a module that have a docstring, up to its end: a body that is to be
    written. Raises as functions() does."""
    tree, lines = _parsed(text)
    for node in tree.body:
        if isinstance(node, FUNCTION) and ast.get_docstring(node, clean=False) is not None:
            yield "\n".join(lines[node.lineno - 1 : node.body[0].end_lineno])


def docstrings(text: str) -> Iterator[str]:
    """Yield the docstrings of a Python file, flush left. Raises as functions() does."""
    tree, _ = _parsed(text)
    for node in (tree, *_definitions(tree.body)):
        yield ast.get_docstring(node) or ""


def _definitions(body: Sequence[ast.AST]) -> Iterator[Definition]:
    """Yield functions and classes at any depth. Only statements are looked at: no expression holds
    one, and most of a tree is expressions."""
    for node in body:
        if isinstance(node, (*FUNCTION, ast.ClassDef)):
            yield node
        for name in BLOCKS:
            yield from _definitions(getattr(node, name, ()))


def _parsed(text: str) -> tuple[ast.Module, list[str]]:
    """Return the tree of a Python file, and its lines."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # about the file's own escapes
        return ast.parse(text), text.splitlines()

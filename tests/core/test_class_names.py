"""A public class name stands for one thing in the whole package."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import paceline

PACKAGE = Path(paceline.__file__).parent


def class_names(source: str) -> list[str]:
    """Return the public classes of one module, those inside other classes left out."""
    return [
        node.name
        for node in ast.walk(_without_nested(ast.parse(source)))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def _without_nested(module: ast.Module) -> ast.Module:
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
    return module


def names_for_two_things(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return class names that several of the (path, source) define, with those paths."""
    places: dict[str, list[str]] = {}
    for path, source in modules:
        for name in class_names(source):
            places.setdefault(name, []).append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def package_modules() -> list[tuple[str, str]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(str(path.relative_to(PACKAGE)), path.read_text("utf-8")) for path in paths]


def test_a_class_name_stands_for_one_thing() -> None:
    assert names_for_two_things(package_modules()) == {}, "rename one of each"


def test_a_name_that_two_modules_define_is_noticed() -> None:
    one = "class Plan: ...\nif True:\n    class Row: ...\nclass _Own: ..."
    two = "class Plan: ...\nclass _Own: ...\nclass Table:\n    class Row: ..."
    double = names_for_two_things([("one.py", one), ("two.py", two)])
    assert double == {"Plan": ["one.py", "two.py"]}

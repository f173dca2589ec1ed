"""No module of the package reaches itself by imports, not even by one inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import paceline

ROOT = Path(paceline.__file__).parent
FILES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules of the package that the code under `node` imports at any depth, but for
    type checkers alone."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in FILES)
    elif isinstance(node, ast.ImportFrom) and node.module in FILES:
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (module if module in FILES else node.module for module in inner)
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


def circles(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules that reach themselves."""
    return sorted(name for name in graph if name in reached(graph, name))


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        new = graph.get(left.pop(), set()) - seen
        seen |= new
        left += new
    return seen


def test_no_module_reaches_itself() -> None:
    graph = {
        name: set(imported(ast.parse(path.read_text("utf-8")))) - {name}
        for name, path in FILES.items()
    }
    assert sum(map(len, graph.values())) > 500
    assert circles(graph) == []


def test_a_circle_through_a_function_is_seen() -> None:
    code = "def late():\n    from paceline.engine.engine import Engine"
    assert set(imported(ast.parse(code))) == {"paceline.engine.engine"}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]

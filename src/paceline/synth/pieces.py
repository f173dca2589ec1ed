"""Cuts texts into pieces: paragraphs, and the functions of Python files."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator


def paragraphs(text: str, shortest: int, longest: int) -> Iterator[str]:
    """Paragraphs, joined until they have `shortest` characters, and cut between words where they
    have more than `longest`."""
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
    """Every function and method of a Python file, with its decorators, flush left.

    Raises SyntaxError or ValueError for what is no Python file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # about the file's own escapes
        tree = ast.parse(text)
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))

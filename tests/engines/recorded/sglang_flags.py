"""Lists the options of `sglang.launch_server`, read from SGLang's wheel without installing it.

    pip download --no-deps --dest FOLDER sglang==0.5.23
    python tests/engines/recorded/sglang_flags.py FOLDER/sglang-*.whl > .../sglang_flags.json

The options are the annotated fields of the classes in srt/arg_groups/fields, and the calls of
`add_argument` in srt/server_args.py. They are found in the syntax tree: nothing is imported.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Iterator

FIELDS = "sglang/srt/arg_groups/fields/"
ARGUMENTS = "sglang/srt/server_args.py"


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if name.startswith(FIELDS) or name == ARGUMENTS]
        trees = {name: ast.parse(files.read(name)) for name in names if name.endswith(".py")}
    flags = {
        flag
        for name, tree in trees.items()
        for flag in (added_flags(tree) if name == ARGUMENTS else field_flags(tree))
    }
    print(json.dumps({"version": wheel.rpartition("/")[2].split("-")[1], "flags": sorted(flags)},
                     indent=0))  # fmt: skip


def field_flags(tree: ast.Module) -> Iterator[str]:
    """Yield the flags of fields annotated with A[type, text or Arg(...)]."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        annotation = node.annotation
        is_field = isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "")
        if is_field != "A" or not isinstance(annotation.slice, ast.Tuple):
            continue
        described = annotation.slice.elts[1]
        options = {}
        if isinstance(described, ast.Call) and getattr(described.func, "id", "") == "Arg":
            options = {word.arg: word.value for word in described.keywords}
        if _constant(options.get("no_cli")) is True:
            continue
        own = "--" + node.target.id.replace("_", "-")
        yield str(_constant(options.get("cli_name")) or own)
        aliases = options.get("aliases")
        if isinstance(aliases, ast.List):
            yield from (str(_constant(each)) for each in aliases.elts)


def added_flags(tree: ast.Module) -> Iterator[str]:
    """Yield the flags of calls of add_argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            words = (_constant(each) for each in node.args)
            yield from (word for word in words if isinstance(word, str))


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


if __name__ == "__main__":
    main(sys.argv[1])

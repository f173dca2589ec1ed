"""Real schemas and prompts: BFCL's functions, and the schemas that check-jsonschema ships.

Both come as packages from PyPI, which are fetched and unpacked, not installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("bfcl-eval==2026.3.23", "check-jsonschema==0.39.0")
BFCL = ("simple_python", "multiple", "parallel", "live_simple")
# BFCL's types, after Python's and Java's, as JSON Schema has them.
TYPES = {
    **dict.fromkeys(("dict", "hashmap"), "object"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("tuple", "list", "arraylist"), "array"),
    "long": "integer",
    "char": "string",
}


@dataclass(frozen=True)
class Case:
    """One request: what is asked, and the schema its answer must validate against."""

    source: str
    name: str
    prompt: str
    schema: dict[str, Any]


def fetch(folder: Path) -> Path:
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*pip, *PACKAGES], check=True)
        for wheel in folder.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(folder)
    return folder


def cases(folder: Path, bfcl: int, vendored: int) -> list[Case]:
    """Up to so many of each, every schema once."""
    chosen: list[Case] = []
    for found, most in ((_bfcl(folder), bfcl), (_vendored(folder), vendored)):
        seen: set[str] = set()
        for case in found:
            key = json.dumps(case.schema, sort_keys=True)
            if key not in seen and len(seen) < most:
                seen.add(key)
                chosen.append(case)
    return chosen


def _bfcl(folder: Path) -> Iterator[Case]:
    for part in BFCL:
        path = folder / "bfcl_eval" / "data" / f"BFCL_v4_{part}.json"
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            question = entry["question"][0][-1]["content"]
            for function in entry["function"]:
                prompt = (
                    f"{question}\n\nAnswer with the arguments of the function {function['name']} "
                    f"({function['description']}) as JSON."
                )
                yield Case("BFCL", function["name"], prompt, _standard(function["parameters"]))


def _standard(schema: Any) -> Any:
    """BFCL's notation as JSON Schema; `any` is no type, and a default of the wrong type no rule."""
    if isinstance(schema, list):
        return [_standard(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            if value.lower() != "any":
                made[key] = TYPES.get(value.lower(), value.lower())
        elif key not in ("default", "format", "optional"):
            made[key] = _standard(value)
    return made


def _vendored(folder: Path) -> Iterator[Case]:
    """Each schema, then each of its definitions."""
    schemas = sorted((folder / "check_jsonschema" / "builtin_schemas").rglob("*.json"))
    for path in schemas:
        schema = json.loads(path.read_text(encoding="utf-8"))
        title = str(schema.get("title") or path.stem)
        yield Case("vendored", path.stem, f"Write an example of {title} as JSON.", schema)
    for path in schemas:
        schema = json.loads(path.read_text(encoding="utf-8"))
        for group in ("definitions", "$defs"):
            for name in schema.get(group, {}):
                part = {group: schema[group], "$ref": f"#/{group}/{name}"}
                prompt = f"Write an example of {name} of {path.stem} as JSON."
                yield Case("definitions", f"{path.stem}/{name}", prompt, part)

"""The types of the page's JavaScript follow the server's models, and its lines fit the screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NotRequired

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from tools import page_types

WEB = Path(page_types.__file__).parent.parent / "src/paceline/web"
SOURCES = [
    path
    for path in sorted([*WEB.rglob("*.js"), *WEB.rglob("*.d.ts")])
    if "vendor" not in path.parts and path != page_types.FILE
]


class Inner(TypedDict):
    numbers: list[int | None]
    pair: NotRequired[tuple[int, str]]


class Outer(BaseModel):
    """One sentence."""

    kind: Literal["one", "two"]
    inner: dict[str, Inner] = Field({}, description="By name.")


def test_the_written_types_are_those_of_the_models() -> None:
    assert page_types.main(["--check"]) == 0


def test_a_file_that_is_out_of_date_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page_types, "FILE", tmp_path / "types" / "api.d.ts")
    assert page_types.main(["--check"]) == 1
    assert page_types.COMMAND in capsys.readouterr().err
    assert page_types.main([]) == 0 and page_types.main(["--check"]) == 0


def test_models_become_interfaces() -> None:
    text = page_types.declarations([(Outer, "validation")])
    assert text.removeprefix(page_types.HEAD) == (
        "\n"
        "export interface Inner {\n"
        "  numbers: (number | null)[];\n"
        "  pair?: [number, string];\n"
        "}\n"
        "\n"
        "/** One sentence. */\n"
        "export interface Outer {\n"
        '  kind: "one" | "two";\n'
        "  /** By name. */\n"
        "  inner?: { [key: string]: Inner };\n"
        "}\n"
    )


def test_a_schema_without_a_type_in_typescript_is_refused() -> None:
    with pytest.raises(ValueError, match="no TypeScript type"):
        page_types.type_of({"type": "matrix"})


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(WEB).as_posix())
def test_sources_have_short_lines_and_switch_no_check_off(path: Path) -> None:
    text = path.read_text("utf-8")
    assert max(map(len, text.splitlines())) <= 100
    assert not re.search(r"@ts-(ignore|nocheck|expect-error)|[{<|(] ?any\b", text)

"""`paceline serve --autospec`: what is wrong shows at once; a store that fails stops nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.autospec.store.database import FILE
from paceline.cli import main
from paceline.cli.serve import store_line
from tests.autospec.store.stores import store_with


@pytest.mark.parametrize("name", ["a-file", "with,comma"])
def test_what_cannot_be_a_store_is_refused_before_anything_is_loaded(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text("")
    assert main(["serve", "--autospec", str(path)]) == 2
    assert name in capsys.readouterr().err


def test_a_line_says_what_the_store_has_or_how_to_make_one(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    assert f"`paceline drafters add NAME SPEC --store {folder}`" in store_line(folder)
    store_with(folder, base="live", next="trained").close()
    assert "2 versions, 1 of them live" in store_line(folder)
    (folder / FILE).write_bytes(b"no database, and long enough to be told from one" * 20)
    assert str(folder) in store_line(folder)

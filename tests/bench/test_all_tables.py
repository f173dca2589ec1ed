"""`make bench` goes on where it stopped, and a table that fails does not hold up the others."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.drafters.shipped import shipped_folder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def all_tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("all_tables")


def counting(all_tables: Any, folder: Path, name: str) -> Any:
    """A table that prints its name, notes each run and fails while a file `broken` is there."""
    script = folder / f"{name}.py"
    script.write_text(
        f"import pathlib, sys\n"
        f"with open({str(folder / 'runs')!r}, 'a') as runs: runs.write('{name}\\n')\n"
        f"print('| {name} |', *sys.argv[1:])\n"
        f"sys.exit({name!r} == 'b' and pathlib.Path({str(folder / 'broken')!r}).exists())\n"
    )
    return all_tables.Table(name, (str(script), "smollm2-135m"))


def test_kept_tables_are_not_run_again(all_tables: Any, tmp_path: Path) -> None:
    tables = [counting(all_tables, tmp_path, name) for name in "abc"]
    kept, runs, broken = tmp_path / "kept", tmp_path / "runs", tmp_path / "broken"
    broken.touch()
    assert all_tables.run(tables, kept) == ["b"]
    assert sorted(path.name for path in kept.iterdir()) == ["a.txt", "b.failed", "c.txt"]
    assert "| b |" in (kept / "b.failed").read_text()
    broken.unlink()
    assert all_tables.run(tables, kept) == []
    assert sorted(path.name for path in kept.iterdir()) == ["a.txt", "b.txt", "c.txt"]
    assert runs.read_text().split() == ["a", "b", "c", "b"]
    command, machine, *printed = (kept / "c.txt").read_text().splitlines()
    assert command == "c.py smollm2-135m"
    assert "cores" in machine
    assert printed == ["| c | smollm2-135m"]
    assert all_tables.run(tables, kept, again=True) == []
    assert runs.read_text().split()[4:] == ["a", "b", "c"]


def test_a_page_has_what_is_kept(all_tables: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    names = ["a", "b", "c"]
    (tmp_path / "broken").touch()
    all_tables.run([counting(all_tables, tmp_path, name) for name in names], kept)
    page = all_tables.as_page(kept, names)
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Tables of one commit", "## a", "## c",
    ]  # fmt: skip
    where = (kept / "a.txt").read_text().splitlines()[1]
    assert f"`benchmarks/a.py smollm2-135m` ({where})" in page


def test_tables_of_peers_are_there_if_peers_are(all_tables: Any) -> None:
    def names(**peers: str | None) -> set[str]:
        given = {"vllm": None, "openvino": None, "llama": None, "small": None, **peers}
        found = [t.name for t in all_tables.tables("m", "/m", Path("build"), **given)]
        assert len(set(found)) == len(found), "a name is a file"
        return set(found)

    alone = names()
    assert {"kernels", "serving-http", "never_slower-run", "block_drafts-context"} <= alone
    assert {"peers-alone", "peers-at-once", "peers-end-to-end"} <= alone
    assert names(vllm="python") - alone == {"block_drafts_peers"}
    assert names(openvino="python") - alone == {"int8_peers"}
    assert names(small="s") - alone == {"speculation-draft-model", "int8-acceptance"}


def test_the_drafter_that_is_shipped_is_measured(all_tables: Any) -> None:
    def shipped(model: str) -> dict[str, tuple[str, ...]]:
        peers = dict.fromkeys(("vllm", "openvino", "llama", "small"))
        found = all_tables.tables(model, "/folder", Path("build"), **peers)
        return {t.name: t.command[1:] for t in found if t.name.startswith("draft_")}

    both = ("smollm2-135m", "smollm2-135m")  # the target, and its drafter
    assert shipped_folder("smollm2-135m") is not None
    assert shipped("smollm2-135m") == {
        "draft_trees": both,
        "draft_trees-policy": (*both, "--policy", "throughput"),
        "draft_windows": both,
    }
    assert shipped("qwen2.5-coder-0.5b") == {} and shipped("/a/folder") == {}


# Runs scripts up to where they have taken their arguments; in a process of its own, since a script
# may have the name of a package of tests.
READ_ARGUMENTS = """
import argparse, json, runpy, sys

class ArgumentsRead(Exception):
    pass

def read_and_stop(parser):
    read(parser)
    raise ArgumentsRead

read, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, read_and_stop
sys.path[0] = sys.argv[1]
for command in json.load(sys.stdin):
    sys.argv = command
    try:
        runpy.run_path(command[0], run_name="__main__")
    except ArgumentsRead:
        print(*command)
"""


def test_every_script_takes_the_arguments_that_it_is_given(all_tables: Any) -> None:
    peers = {"vllm": "python", "openvino": "python", "llama": "folder", "small": "s"}
    found = all_tables.tables("smollm2-135m", "/m", Path("build"), **peers)
    commands = [table.command for table in found]
    done = subprocess.run(
        [sys.executable, "-c", READ_ARGUMENTS, str(BENCHMARKS)],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [" ".join(command) for command in commands]
    assert len(commands) > 30


def test_engines_that_know_no_names_of_ours_are_given_the_folder(all_tables: Any) -> None:
    given = {"vllm": "/p", "openvino": "/p", "llama": "/p", "small": None}
    found = all_tables.tables("name", "/folder", Path("build"), **given)
    peers = [table.command for table in found if "/p" in table.command]
    assert len(peers) >= 5
    assert all("/folder" in command and "name" not in command for command in peers)

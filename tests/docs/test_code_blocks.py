"""Every code block that a reader can copy works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.bench.load.server_process import ServerProcess
from paceline.cli import build_parser, with_job
from paceline.models.catalog import is_name
from tests.docs.blocks import ROOT, SERVER, Block, all_blocks, blocks, commands, pages

README = "README.md"  # test_readme.py runs it, with fewer packages
PYTHON_PAGES = [
    page
    for page in pages()
    if page.name != README and any(b.runs and b.language == "python" for b in blocks(page))
]
LONGEST = 800  # seconds: training takes minutes where the CPU has no bfloat16 instructions
SHELL_BLOCKS = [
    block
    for block in all_blocks()
    if block.runs and block.language == "bash" and block.page != README
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = ServerProcess(["smollm2-135m"], tmp_path_factory.mktemp("server") / "log")
    try:
        process.wait_until_healthy(240)
        yield f"127.0.0.1:{process.port}"
    finally:
        assert process.stop(), process.output()


def run(command: list[str], script: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n--- failed with ---\n{done.stdout}{done.stderr}"


@pytest.mark.docs
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, server: str, tmp_path: Path) -> None:
    parts = [block.text for block in blocks(page) if block.runs and block.language == "python"]
    script = "\n".join(parts).replace(SERVER, server)
    run([sys.executable, "-c"], script, tmp_path)


@pytest.mark.docs
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=lambda block: block.page)
def test_marked_shell_blocks_run(block: Block, server: str, tmp_path: Path) -> None:
    run(["bash", "-euo", "pipefail", "-c"], block.text.replace(SERVER, server), tmp_path)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_block_states_its_language(page: Path) -> None:
    fences = re.findall(r"^```.*$", page.read_text("utf-8"), re.M)
    assert len(fences) == 2 * len(blocks(page)), fences


def test_every_shell_block_is_bash_and_names_files_that_exist() -> None:
    script = "\n".join(block.text for block in all_blocks() if block.language == "bash")
    done = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    named = set(re.findall(r"(?<![\w/.])(?:apps|deploy|examples)/[\w./-]+", script))
    made = set(re.findall(r"> (\S+)", script))
    assert len(named) > 5
    assert [name for name in sorted(named - made) if not (ROOT / name).exists()] == []


def test_every_paceline_command_in_the_pages_would_be_accepted() -> None:
    lines = [line for block in all_blocks() for line in commands(block, "paceline")]
    assert len(lines) >= 5
    for line in lines:
        words = shlex.split(re.split(r"\s[|>&]", line)[0], comments=True)[1:]
        if words not in (["--help"], ["--version"]):
            build_parser().parse_args(with_job(words))


def test_every_training_command_in_the_pages_names_sets_and_an_end() -> None:
    """A model among the sets, or no end, is refused when the command is run."""
    lines = [line for block in all_blocks() for line in commands(block, "paceline train")]
    lines += [line for block in all_blocks() for line in commands(block, "torchrun")]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line, comments=True)
        asked = build_parser().parse_args(words[words.index("train") :])
        assert {"steps", "epochs", "hours"} & vars(asked).keys(), line
        assert not [word for word in asked.sets if is_name(word)], line


def test_every_make_target_in_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    lines = [line for block in all_blocks() for line in commands(block, "make")]
    assert lines
    for line in lines:
        asked = [word for word in shlex.split(line, comments=True)[1:] if "=" not in word]
        assert set(asked) <= targets, line


def test_images_and_files_that_the_readme_links_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", (ROOT / "README.md").read_text("utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []

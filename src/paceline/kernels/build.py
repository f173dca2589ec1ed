"""Compiles the native kernels with the user's C++ compiler at first use, and loads them. The
library is an entry of the cache, keyed by sources, compiler and the instruction sets of this
machine. `$PACELINE_KERNELS` forces a path."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline.core import CacheError
from paceline.core.cache import cache_dir, cached_folder, tell_unkept
from paceline.kernels.openmp import openmp_runtime

log = logging.getLogger(__name__)

LIBRARY = "kernels.so"  # in its entry of the cache
NATIVE = Path(__file__).parent / "native"
SOURCES = {  # source -> flags of its own; the noise must never be contracted to fused multiply-adds
    "context_trie.cpp": (),
    "draft_tree.cpp": (),
    "forward.cpp": (),
    "probe.cpp": (),
    "sampling.cpp": ("-ffp-contract=off",),
}
PATHS = {  # path -> (macro that the machine must define, flags)
    "amx": ("__AMX_BF16__", ()),
    "avx512bf16": ("__AVX512BF16__", ("-DPACELINE_NO_AMX",)),
    "portable": (None, ("-DPACELINE_PORTABLE",)),
}
# The AMX code with tile instructions acted out in plain C++: slow, for tests on other machines.
EMULATED = {"amx-emulated": ("__AVX512BF16__", ("-DPACELINE_AMX_EMULATED",))}
NATIVE_FLAG = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
COMMON_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-Wno-psabi")


class BuildError(Exception):
    """The native kernels cannot be built or loaded here; the message says why."""


class MissingHardware(BuildError):
    """The machine cannot run the path that was asked for."""


@dataclass(frozen=True, slots=True)
class Native:
    """The loaded library and the path it was compiled for."""

    library: ctypes.CDLL
    path: str


@cache
def load(path: str | None = None) -> Native:
    """Build (or find in the cache) and load the kernels for `path`, or the best path there is; AMX
    needs the kernel's permission as well. Raises BuildError."""
    forced = path or os.environ.get("PACELINE_KERNELS")
    paths = {**PATHS, **EMULATED}
    if forced and forced not in paths:
        raise BuildError(f"PACELINE_KERNELS is {forced!r}; expected one of {', '.join(PATHS)}")
    compiler = find_compiler()
    # All that the compiler defines for this machine: instruction sets, its own version.
    command = [compiler, NATIVE_FLAG, "-dM", "-E", "-x", "c++", os.devnull]
    macros = "\n".join(sorted(_run(command).splitlines()))
    for name in [forced] if forced else PATHS:
        needs, flags = paths[name]
        why = f" needs {needs}, which this machine lacks"
        if not needs or needs in macros:
            library = _library(compiler, macros, name, flags)
            if library.pl_usable() == 0:
                return Native(library, name)
            why = ": the system does not permit AMX tiles"
        if forced:
            raise MissingHardware(f"kernel path {name!r}{why}")
    raise BuildError("no kernel path fits this machine")


@cache
def held() -> ctypes.PyDLL:
    """Return the kernels, called without giving the interpreter's lock away: for short calls, since
    another thread may keep the lock for milliseconds. Raises BuildError."""
    native = load().library
    return ctypes.PyDLL(native._name, handle=native._handle)


@cache
def source_digest() -> str:
    """Return what the kernels' sources hash to."""
    sources = [source.name.encode() + source.read_bytes() for source in sorted(NATIVE.iterdir())]
    return hashlib.sha256(b"".join(sources)).hexdigest()


def available() -> tuple[bool, str]:
    """Return whether the native kernels run here, and their path or the reason."""
    try:
        return True, load().path
    except BuildError as error:
        return False, str(error)


@cache
def runs_here() -> bool:
    """Return whether the native kernels run here, by the first look: another would compile again
    what failed."""
    return available()[0]


def find_compiler() -> str:
    """Return the path of a C++ compiler. Raises BuildError where there is none."""
    if sys.platform != "linux":
        raise BuildError(f"native kernels run on Linux only, this is {sys.platform}")
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    raise BuildError("no C++ compiler found (looked for $CXX, g++, clang++, c++): install one")


def _library(compiler: str, macros: str, path: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Load the library from the cache, where it is built first if it is missing or damaged; for
    this process alone where the cache cannot be written."""
    openmp = openmp_runtime()
    if openmp is None:
        raise BuildError("torch was built without OpenMP")
    key = (compiler, macros, path, openmp, SOURCES, COMMON_FLAGS, flags, source_digest())
    digest = hashlib.sha256(repr(key).encode())

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".objects.", dir=folder) as objects:
            _compile_and_link(compiler, flags, openmp, Path(objects), folder / LIBRARY)

    try:
        entry = cache_dir() / "kernels" / f"kernels-{path}-{digest.hexdigest()[:16]}"
        return _opened(cached_folder(entry, fill))
    except CacheError as error:
        tell_unkept("the kernels are compiled anew for this process", error)
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-kernels-") as folder:
            fill(Path(folder))
            return _opened(Path(folder))
    except OSError as error:
        raise BuildError(f"no folder to compile the kernels in: {error}") from error


def _opened(folder: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(folder / LIBRARY))
    except OSError as error:  # a missing runtime, or a file system that forbids programs
        raise BuildError(f"the kernels cannot be loaded: {error}") from error


def _compile_and_link(
    compiler: str, flags: tuple[str, ...], openmp: str, folder: Path, target: Path
) -> None:
    """Write the library `target`, with its objects in `folder`. Raises OSError for a full disk."""
    common = [compiler, *COMMON_FLAGS, NATIVE_FLAG, *flags]
    objects = {str(folder / f"{source}.o"): source for source in SOURCES}
    commands = [
        [*common, *SOURCES[source], "-c", str(NATIVE / source), "-o", file]
        for file, source in objects.items()
    ]
    with ThreadPoolExecutor(len(commands)) as threads:
        list(threads.map(_run, commands))
    # -fopenmp is absent on purpose: it would name the system's runtime beside torch's.
    _run([compiler, "-shared", *objects, openmp, "-o", str(target)])


def _run(command: list[str]) -> str:
    """Return what a compiler prints. Raises OSError for a full disk, else BuildError."""
    english = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=english)
    if not done.returncode:
        return done.stdout
    if "No space left on device" in done.stderr:
        raise OSError(errno.ENOSPC, "No space left on device")
    lines = done.stderr.splitlines()
    lines = [line for line in lines if "error" in line.lower()] or lines
    raise BuildError(f"{command[0]} failed: {lines[0] if lines else 'no message'}")

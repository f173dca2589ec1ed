"""The target's features on disk: read in place of the target by every later run over these texts.

features.json           what the features are of: a FeatureSource
texts.jsonl             the texts that the last run asks others for: their files and token ids
passing                 where runs remove what they have read: whether one asks for texts now
ab/abcdef….safetensors  one text: its token ids, what the target showed of it, and a checksum

A file gets its name when it is whole, so a writer that is killed loses only the text at hand.
Several runs and processes may use one folder at the same time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal
from uuid import uuid4

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file

from paceline.core import InvalidRequest
from paceline.core.cache import UNFINISHED
from paceline.core.documents import Document
from paceline.models.tensor_files import save_tensors
from paceline.training.config import TargetEngine
from paceline.training.packs import Text
from paceline.training.seen import Seen
from paceline.training.waiting import FIELD, Waiting, stamp_of

log = logging.getLogger(__name__)
FORMAT: Literal["paceline-features/1"] = "paceline-features/1"
SOURCE, ASKED, PASSING = "features.json", "texts.jsonl", "passing"
SHA256 = "sha256"
SOFT = ("likely", "probabilities")
FILES = "*/*.safetensors"
HEADER_BYTES = 1024  # more than safetensors writes before so few tensors
ID_BYTES, SOFT_BYTES = 4, 4 + 2  # of a token, and of each of its likely ones


class FeatureSource(Document):
    """The origin of features: the target, by the digest of its weights, as `engine` computed it in
    such numbers and with such options of its own; the layers, which number from 0; and how many
    likely tokens stand beside them."""

    format: Literal["paceline-features/1"] = FORMAT
    weights_sha256: str
    engine: TargetEngine
    options: dict[str, str] = Field(default_factory=dict)  # folders of before have none
    numbers: Literal["bfloat16", "float32"]
    quantize: Literal["int8"] | None
    layers: list[int]
    soft_tokens: int


class FeatureFolder:
    """A folder of features. The files that it has when it is opened and those that these
    `processes` write take `most` bytes at most; what other runs write later is not counted. `found`
    is how many texts it had at the start; `full` says that one found no room since. With `pinned`
    features are read into memory that a GPU copies from by itself. With `waiting` another process
    writes, and `read` waits for a missing text. `width` is the length of a row of features. With
    `passing` the run that reads decides what is there, and nothing else bounds it.

    The constructor makes the folder where there is none. It raises InvalidRequest for one that
    holds something else, or features of another kind, which it names, and for one to be passed
    through that has features to keep.
    """

    def __init__(
        self,
        path: Path,
        source: FeatureSource,
        most: int,
        processes: int = 1,
        pinned: bool = False,
        waiting: Waiting | None = None,
        width: int | None = None,
        passing: bool = False,
    ) -> None:
        self.path, self._pinned, self._waiting = path, pinned, waiting
        self._width, self._numbers, self._soft_tokens = width, source.numbers, source.soft_tokens
        _check_source(path, source)
        self._soft, self._passing = source.soft_tokens > 0, passing
        sizes = [size for file in path.glob(FILES) if (size := _size(file)) is not None]
        self.found, self.full = len(sizes), False
        _check_passing(path, passing, self.found)
        self._left = math.inf if passing else max(0, most - sum(sizes)) // processes
        self._asked: list[str] | None = None
        self._asked_stamp: tuple[int, ...] | None = None
        self._reader = ThreadPoolExecutor(1)
        self._coming: dict[str, Future[Seen | None]] = {}

    def ask_for(self, texts: Sequence[Text]) -> None:
        """Write down which texts this run waits for, so that any program may write them."""
        lines = [
            {"file": self._path(self.name(text)).relative_to(self.path).as_posix(),
             "ids": text.ids.tolist()}
            for text in texts
        ]  # fmt: skip
        asked = "".join(json.dumps(line) + "\n" for line in lines)
        _write_whole(self.path / ASKED, lambda hidden: hidden.write_text(asked, "utf-8"))

    def asked(self) -> list[str] | None:
        """Return the names of the texts that a run asks for, in its order; None where no run asked
        yet. Raises InvalidRequest for a file that no run wrote."""
        path = self.path / ASKED
        try:
            stamp = stamp_of(path)
            if stamp != self._asked_stamp:
                lines = map(json.loads, path.read_text("utf-8").splitlines())
                self._asked = [Path(line["file"]).stem for line in lines]
                self._asked_stamp = stamp
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            expected = f"a folder whose {ASKED} a run wrote ({error})"
            raise InvalidRequest(FIELD, str(self.path), expected) from error
        return self._asked

    def say_asking(self, asking: bool) -> None:
        """Say that a run asks for texts now, or that it is over."""
        _write_whole(self.path / PASSING, lambda hidden: hidden.write_text(f"{int(asking)}\n"))

    def show_life(self) -> None:
        """Show that the run is there which asks for texts."""
        os.utime(self.path / PASSING)

    def is_asking(self) -> bool:
        """Return whether a run asks for texts, which may have been killed."""
        return (self.path / PASSING).read_text().strip() == "1"

    def life(self) -> object:
        """Return what changes while a run is there which asks for texts."""
        return stamp_of(self.path / PASSING)

    def drop(self, names: Collection[str]) -> None:
        """Remove the files of texts that nobody asks for any more."""
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """Return whether the file of a text is there, damaged or not."""
        return self._path(name).exists()

    def keep_only(self, texts: Sequence[Text]) -> None:
        """Remove all files but those of `texts`, from a folder that features are passed through."""
        assert self._passing, "other folders keep what they have"
        kept = {self._path(self.name(text)) for text in texts}
        for path in set(self.path.glob(FILES)) - kept:
            path.unlink(missing_ok=True)

    def bytes_of(self, text: Text) -> int:
        """Return about how many bytes the file of a text takes, a little too many."""
        assert self._width is not None, "runs know it"
        number = 2 if self._numbers == "bfloat16" else 4
        per_token = ID_BYTES + number * self._width + SOFT_BYTES * self._soft_tokens
        return len(text) * per_token + HEADER_BYTES

    def expect(self, texts: Sequence[Text]) -> None:
        """Begin to read texts that are asked for soon; those that nobody asked for are dropped."""
        names = {self.name(text): text for text in texts}
        coming = {name: self._coming[name] for name in names.keys() & self._coming.keys()}
        for name in names.keys() - coming.keys():
            coming[name] = self._reader.submit(self._load, name, names[name])
        self._coming = coming

    def read(self, text: Text) -> Seen | None:
        """Return what the target showed of a text; None where that is not here, or damaged, and
        nobody waits for it."""
        name = self.name(text)
        coming = self._coming.pop(name, None)
        seen = self._load(name, text) if coming is None else coming.result()
        if seen is not None or self._waiting is None:
            return seen
        return self._waiting.until(self._path(name), len(text), lambda: self._load(name, text))

    def write(self, text: Text, seen: Seen) -> None:
        """Keep what the target showed of a text, where there is room. When it returns, the file is
        there whole. A disk that is full ends the keeping, not the run."""
        path = self._path(self.name(text))
        tensors = {"ids": text.ids.int(), "features": seen.features.cpu().contiguous()}
        if seen.likely is not None and seen.probabilities is not None:
            tensors |= {"likely": seen.likely, "probabilities": seen.probabilities}
        tensors[SHA256] = _digest(tensors)
        if sum(tensor.nbytes for tensor in tensors.values()) + HEADER_BYTES > self._left:
            self.full = True
            return
        try:
            path.parent.mkdir(exist_ok=True)
            self._left -= _write_whole(path, lambda hidden: save_tensors(tensors, hidden))
        except (OSError, SafetensorError) as error:
            log.warning("%s keeps no more features: %s", self.path, error)
            self._left, self.full = 0, True

    def _load(self, name: str, text: Text) -> Seen | None:
        path = self._path(name)
        if not path.exists():
            return None
        try:
            tensors = load_file(path)
            stated = tensors.pop(SHA256)
            if not torch.equal(stated, _digest(tensors)):
                raise ValueError("its checksum is another one")
            if not torch.equal(tensors["ids"].long(), text.ids):
                raise ValueError("it is of another text")
            likely, probabilities = (tensors[key] if self._soft else None for key in SOFT)
            features = tensors["features"]
            numbers = str(features.dtype).removeprefix("torch.")
            width = self._width or features.shape[-1]
            if (*features.shape, numbers) != (len(text), width, self._numbers):
                there, wanted = f"{list(features.shape)}, {numbers}", f"{[len(text), width]}"
                raise ValueError(f"features are {there}; expected {wanted}, {self._numbers}")
            return Seen(features.pin_memory() if self._pinned else features, likely, probabilities)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            log.warning("%s cannot be used (%s): the target must read it again", path, error)
            if self._passing and not isinstance(error, OSError):
                # Whoever writes what is asked for looks no further than its name.
                path.unlink(missing_ok=True)
            return None

    def name(self, text: Text) -> str:
        """Return a digest of what a file depends on."""
        digest = hashlib.blake2b(text.ids.numpy().tobytes(), digest_size=16)
        if self._soft:  # where the target's distribution is kept
            digest.update(text.said.numpy().tobytes())
        return digest.hexdigest()

    def _path(self, name: str) -> Path:
        return self.path / name[:2] / f"{name}.safetensors"


def _check_source(path: Path, source: FeatureSource) -> None:
    """Write what the folder is for, or compare it with what is written there."""
    described = path / SOURCE
    if not described.exists():
        holds = path.exists() and (not path.is_dir() or any(map(_is_whole, path.iterdir())))
        if holds and not described.exists():  # another process may have written it meanwhile
            raise InvalidRequest(FIELD, str(path), f"a new folder, or one with {SOURCE}")
        path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(source.model_dump(), indent=1) + "\n"
        _write_whole(described, lambda hidden: hidden.write_text(text, "utf-8"))
    there = FeatureSource.from_file(described, FIELD).model_dump()
    wanted = source.model_dump()
    for name, value in wanted.items():
        if there[name] != value:
            expected = f"a folder of features with {name} {value!r}; this one has {there[name]!r}"
            raise InvalidRequest(FIELD, str(path), expected)


def _check_passing(path: Path, passing: bool, found: int) -> None:
    """Mark a folder as one that features are passed through. Raises InvalidRequest for a folder
    where `found` texts are to be kept, and for one that keeps none, where the run does not pass
    features."""
    mark = path / PASSING
    if passing and found and not mark.exists():
        expected = "a new folder, or one that features were passed through before: "
        expected += f"features_passing removes what was read, and {found} texts are there"
        raise InvalidRequest(FIELD, str(path), expected)
    if passing:
        mark.touch()
    elif mark.exists():
        expected = "a folder that keeps features, or features_passing beside it: runs remove what "
        expected += "they have read from this one"
        raise InvalidRequest(FIELD, str(path), expected)


def _size(path: Path) -> int | None:
    """Return the bytes of a file; None where another process has removed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _is_whole(path: Path) -> bool:
    """Return False for a file that another process is writing at this moment."""
    return not path.name.endswith(UNFINISHED)


def _write_whole(path: Path, write: Callable[[Path], object]) -> int:
    """Have `write` write a file beside `path`, and give it that name; return its size."""
    hidden = path.with_name(f".{path.name}.{uuid4().hex}{UNFINISHED}")
    try:
        write(hidden)
        size = hidden.stat().st_size  # before anybody may remove it
        hidden.replace(path)
        return size
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def _digest(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the SHA-256 of tensors, uint8 [32]."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)

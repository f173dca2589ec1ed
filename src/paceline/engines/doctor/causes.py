"""Causes that lie around the drafter: the format, the prompt, sampling by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline.core import InvalidRequest
from paceline.core.rounds import SpeculationStats
from paceline.engines.answers import Message
from paceline.engines.client import EngineClient
from paceline.engines.doctor.answers import Asked
from paceline.engines.doctor.report import DoctorFinding
from paceline.engines.kind import LaunchPlan, Program
from paceline.evaluate.paired import CLEAR, difference
from paceline.models.json_files import read_optional_json
from paceline.models.tokenizer import Tokenizer

AROUND = 6  # tokens that are shown from the first difference on
# Options of generation_config.json that a server may fill in, and the value that changes nothing.
DEFAULTS: Mapping[str, float] = {
    "repetition_penalty": 1, "temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0,
    "presence_penalty": 0, "frequency_penalty": 0,
}  # fmt: skip


def format_finding(client: EngineClient, target: str, drafter: Path) -> DoctorFinding:
    """Ask the engine's adapter whether this release of it serves this checkpoint at all."""
    name, kind, version = "checkpoint format", client.kind, client.description.version
    plan = LaunchPlan(target, drafter, program=Program((kind.name,), version))
    engine = kind.name if version is None else f"{kind.name} {version}"
    try:
        notes = kind.launch(plan).notes
    except InvalidRequest as error:
        remedy = "write the checkpoint anew with `paceline drafter convert`, or serve another"
        return DoctorFinding(name, False, f"{engine} does not serve it: {error}", remedy)
    if notes:
        return DoctorFinding(name, None, f"{engine} reads it; known of it: {' '.join(notes)}")
    return DoctorFinding(name, True, f"{engine} reads checkpoints of this format and generation")


# -- the prompt ------------------------------------------------------------------------------------


def prompt_difference(
    tokenizer: Tokenizer, messages: Sequence[Message], ours: Sequence[int], theirs: Sequence[int]
) -> str | None:
    """Say where the engine's prompt first differs from ours; None where both are the same."""
    if list(ours) == list(theirs):
        return None
    for thinking in (False, True):
        if _rendered(tokenizer, messages, thinking) == list(theirs):
            switched = "on" if thinking else "off"
            return (
                f"thinking mode: the engine renders the template with enable_thinking {switched}, "
                "which the template here does not by itself"
            )
    place = next(
        (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
        min(len(ours), len(theirs)),
    )
    texts = [repr(tokenizer.decode(list(ids[place : place + AROUND]))) for ids in (theirs, ours)]
    sizes = f"{len(theirs)} tokens, {len(ours)} here"
    return (
        f"the chat template is another: at token {place} the engine's prompt ({sizes}) goes on "
        f"with {texts[0]}, ours with {texts[1]}"
    )


def _rendered(
    tokenizer: Tokenizer, messages: Sequence[Message], thinking: bool
) -> list[int] | None:
    try:
        text = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, enable_thinking=thinking
        )
    except Exception:  # a template may raise whatever Jinja does
        return None
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def prompt_finding(
    told: str | None, served: Sequence[Asked], ours: Sequence[Asked], stated: bool
) -> DoctorFinding:
    """Judge a difference of the prompts by what it costs. `served` were asked as conversations,
    `ours` in the token ids of the template here, which the drafter is `stated` to be trained on."""
    name = "prompt"
    if told is None:
        return DoctorFinding(
            name, True, "the engine reads the same token ids as the template here gives"
        )
    now, then = al_of(served), al_of(ours)
    clear = then - now > CLEAR * float(np.hypot(al_error(served), al_error(ours)))
    evidence = (
        f"{told}; acceptance length {now:.2f} incl. bonus as the engine renders prompts, "
        f"{then:.2f} with the template here"
    )
    if not (clear or stated):
        return DoctorFinding(name, None, evidence)
    remedy = "serve with the chat template and its variables that the drafter was trained on"
    return DoctorFinding(name, False, evidence, remedy)


def al_of(asked: Sequence[Asked]) -> float:
    """Return AL of the rounds of several answers, incl. bonus."""
    stats = SpeculationStats.of(round for each in asked for round in each.rounds)
    return stats.tokens_per_round or 1.0


def al_error(asked: Sequence[Asked]) -> float:
    """Return the standard error of `al_of`."""
    counts = [np.array([round.accepted for round in each.rounds], float) for each in asked]
    return difference(counts).error


# -- sampling --------------------------------------------------------------------------------------


def penalty_finding(folder: Path, asked: Sequence[Asked], plain: Sequence[Asked]) -> DoctorFinding:
    """Compare answers at T = 0 with those where every other option is switched off by name."""
    name = "defaults at T = 0"
    other = [a.name for a, b in zip(asked, plain, strict=True) if a.token_ids != b.token_ids]
    if not other:
        return DoctorFinding(name, True, "a request that states T = 0 alone gets the plain argmax")
    stated = _stated(folder)
    known = f" (generation_config.json of the target states {stated})" if stated else ""
    evidence = (
        f"{len(other)} of {len(plain)} answers at T = 0 change when penalties are switched off by "
        f"name: the server applies some by default{known}; acceptance length {al_of(plain):.2f} "
        f"incl. bonus with them, {al_of(asked):.2f} without"
    )
    remedy = 'state "repetition_penalty": 1 in requests, or serve with --generation-config vllm'
    return DoctorFinding(name, False, evidence, remedy)


def sampling_finding(
    folder: Path, asked: Sequence[Asked], unstated: Sequence[Asked]
) -> DoctorFinding:
    """Say how requests are sampled that state nothing, and what that costs in acceptance."""
    name = "sampling by default"
    if all(a.token_ids == b.token_ids for a, b in zip(asked, unstated, strict=True)):
        return DoctorFinding(name, True, "requests that state no sampling are answered as at T = 0")
    greedy, sampled = al_of(asked), al_of(unstated)
    error = float(np.hypot(al_error(asked), al_error(unstated)))
    stated = _stated(folder)
    evidence = (
        f"requests that state no temperature are sampled: acceptance length {sampled:.2f} incl. "
        f"bonus there, {greedy:.2f} at T = 0"
    )
    if not stated:
        return DoctorFinding(name, None, evidence)
    evidence += f"; generation_config.json of the target states {stated}"
    if greedy - sampled <= CLEAR * error:
        return DoctorFinding(name, None, evidence)
    remedy = "state the temperature in requests, or serve with --generation-config vllm"
    return DoctorFinding(name, False, evidence, remedy)


def _stated(folder: Path) -> str:
    """Return the sampling that a target's generation_config.json states, in words."""
    stated = read_optional_json(folder / "generation_config.json")
    return ", ".join(
        f"{name} {stated[name]}"
        for name, nothing in DEFAULTS.items()
        if stated.get(name) not in (None, nothing)
    )

"""A distillation from its settings: the student learns, is compared with what it was, and is kept
where it is better."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from paceline.dataset.distilled import ORIGIN, USER_DATA, user_sets
from paceline.dataset.folder_lock import locked
from paceline.dataset.training_set import write_whole
from paceline.distil.config import DistilConfig
from paceline.distil.course import CANDIDATE, Course
from paceline.distil.drafter import answering, check_spare_token, make_drafter
from paceline.distil.inputs import Inputs, read_inputs
from paceline.distil.scores import Agreement, Scores, agreement, right_answers, verdict
from paceline.distil.student import peft_module
from paceline.llm import LLM
from paceline.models.loader import identity
from paceline.models.networks import check_device
from paceline.training.run import TrainingResult
from paceline.training.state import replace_folder, restore_folder
from paceline.version import __version__

STUDENT, SCORES = "student", "scores.json"
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Distilled:
    """The end of a run. `student` is the folder of a student that passed, else None, and `reasons`
    say why; `finished` is False where somebody ended the run before its last step. `drafter` is how
    the training of its drafter ended, where there was one."""

    student: Path | None
    reasons: tuple[str, ...] = ()
    finished: bool = True
    drafter: TrainingResult | None = None


def distil(config: DistilConfig, show: Show) -> Distilled:
    """Train a student to the end and compare it; `show` gets a line now and then. A run that was
    interrupted goes on when it is called again with the same settings.

    Raises InvalidRequest or ModelError before anything is computed. Two things are refused when
    the drafter's training begins: answers that hold every spare token, and a disk that is too full.
    """
    check_device(config.device)
    if config.rank:
        peft_module()
    inputs = read_inputs(config)
    if config.drafter is not None:
        # A distilled student has the same tokenizer and template, so what fails then fails now.
        answering(config, config.student)
        check_spare_token(inputs.student)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with locked(config.folder):
        for name in (STUDENT, CANDIDATE):
            restore_folder(config.folder / name)
        if not Course(config, inputs, show).run():
            reason = "the run was ended early; the same command goes on"
            return Distilled(None, (reason,), finished=False)
        distilled = compare(config, inputs, show)
        if config.drafter is None or distilled.student is None:
            return distilled
        return replace(distilled, drafter=make_drafter(config, distilled.student, show))


def compare(config: DistilConfig, inputs: Inputs, show: Show) -> Distilled:
    """Compare CANDIDATE with the model that it was, and keep it as STUDENT where it passes."""
    candidate, student = config.folder / CANDIDATE, config.folder / STUDENT
    before = _scores(config, inputs, config.student, show)
    after = _scores(config, inputs, str(candidate), show)
    reasons = verdict(before, after, config.fall)
    report = {
        "teachers": inputs.teachers,
        "student": inputs.student.name,
        "before": asdict(before),
        "after": asdict(after),
        "reasons": reasons,
    }
    _write(config.folder / SCORES, report)
    if reasons:
        shutil.rmtree(student, ignore_errors=True)  # of a run that was judged by other tasks
        return Distilled(None, tuple(reasons))
    _write(candidate / ORIGIN, origin(config, inputs))
    replace_folder(student, partial(os.replace, candidate))
    return Distilled(student)


def origin(config: DistilConfig, inputs: Inputs) -> dict[str, object]:
    """Return what a student was made from: the model that it was, who answered, in which sets, and
    which of these, and of those that the models themselves were distilled from, are of users."""
    before = identity(inputs.student)
    private = {name for name, manifest in inputs.manifests.items() if manifest.user_data}
    for model in filter(None, (inputs.student, inputs.teacher)):
        private.update(user_sets(model.path))
    return {
        "student": {name: before[name] for name in ("name", "weights_sha256")},
        "teachers": inputs.teachers,
        "sets": {name: manifest.digest for name, manifest in inputs.manifests.items()},
        USER_DATA: sorted(private),
        "objective": config.objective,
        "steps": config.total_steps(len(inputs.train)),
        "seed": config.seed,
        "paceline": __version__,
    }


def _write(path: Path, record: Mapping[str, object]) -> None:
    write_whole(path, json.dumps(record, indent=1).encode() + b"\n")


def _scores(config: DistilConfig, inputs: Inputs, model: str, show: Show) -> Scores:
    gc.collect()  # what trained, or answered before, gives its memory back
    if config.device == "cuda":
        torch.cuda.empty_cache()
    llm = LLM(model, None, device=config.device, threads=config.threads)
    name = llm.engine.model_name
    agreements: dict[str, Agreement] = {}
    for split, questions in inputs.questions.items():
        agreements[split] = agreement(llm, questions)
        show(f"{name}: {split}: {_told(agreements[split])}")
    shares: dict[str, float] = {}
    for called, tasks in inputs.tasks.items():
        right = right_answers(llm, tasks)
        shares[called] = right / len(tasks)
        show(f"{name}: {called}: {right} of {len(tasks)} tasks right")
    return Scores(agreements, shares)


def _told(scores: Agreement) -> str:
    fits = "" if scores.fits is None else f", {scores.fits} fit the grammar by themselves"
    return (
        f"{scores.same} of {scores.prompts} answers as the larger model's, "
        f"{scores.fields:.3f} of the fields{fits}"
    )

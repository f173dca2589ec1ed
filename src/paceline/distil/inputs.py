"""Read and check everything that a distillation needs, before time is spent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.core import Grammar, InvalidRequest
from paceline.dataset.training_set import MANIFEST, Manifest, read_binding, read_manifest
from paceline.distil.config import DistilConfig
from paceline.distil.questions import (
    SPLITS,
    Question,
    Task,
    check_prompts,
    read_questions,
    read_tasks,
)
from paceline.distil.student import check_attention
from paceline.evaluate.sets import evenly
from paceline.models.any_target import AnyTarget, read_target
from paceline.models.loader import identity, tokenizer_digest
from paceline.training.data import read_texts
from paceline.training.packs import Text

EVAL_TEXTS = 32  # held-out texts whose loss is shown


@dataclass(slots=True)
class Inputs:
    """Models, texts and questions of a run.

    `manifests` are the sets by name, `train` the texts that are learnt, `grammars` what bound their
    answers, by their numbers, and `held_out` texts whose loss is shown. Student and teacher are
    compared on `questions`, by set and split; `tasks` are by the names that the run gives them.
    """

    student: AnyTarget
    teacher: AnyTarget | None
    manifests: dict[str, Manifest]
    train: list[Text]
    grammars: dict[int, Grammar]
    held_out: list[Text]
    questions: dict[str, list[Question]]
    tasks: dict[str, list[Task]]

    @property
    def teachers(self) -> list[str]:
        """Return the names of the models that answered."""
        return sorted({manifest.target.get("name", "") for manifest in self.manifests.values()})


def read_inputs(config: DistilConfig) -> Inputs:
    """Raises InvalidRequest or ModelError for what does not fit together."""
    student = read_target(config.student)
    check_attention(student, "student")
    folders = {folder.resolve().name: folder for folder in map(Path, config.sets)}
    if len(folders) < len(config.sets):
        raise InvalidRequest("sets", list(config.sets), "a name of its own for every set")
    manifests = {name: read_manifest(folder) for name, folder in folders.items()}
    for name, folder in folders.items():
        _check_tokens(folder, manifests[name], student)
    teacher = None if not config.soft else _teacher(config, manifests)
    most = min(config.max_tokens, *(model.max_context for model in (student, teacher) if model))
    train: list[Text] = []
    grammars: dict[int, Grammar] = {}
    for name, folder in folders.items():
        texts = read_texts([folder], "train", most, len(train))
        train += texts
        binding = read_binding(manifests[name].app, f"{folder / MANIFEST}: app")
        if binding is not None:
            bound = {text.number: binding.of(text.source) for text in texts}
            grammars |= {number: each for number, each in bound.items() if each is not None}
    held = read_texts(list(folders.values()), "held_out", most, len(train), ("on_task",))
    questions = {
        f"{name}, {called}": read_questions(folder, manifests[name], split, student, config.prompts)
        for name, folder in folders.items()
        for split, called in SPLITS.items()
        if manifests[name].of(split)
    }
    return Inputs(
        student,
        teacher,
        manifests,
        train,
        grammars,
        evenly(held, EVAL_TEXTS),
        {name: asked for name, asked in questions.items() if asked},
        {name: read_tasks(name, path, student) for name, path in config.tasks.items()},
    )


def _check_tokens(folder: Path, manifest: Manifest, student: AnyTarget) -> None:
    tokenizer = manifest.target.get("tokenizer_sha256")
    own = tokenizer_digest(student.path)
    if tokenizer not in (None, own):
        expected = (
            f"a set made with the student's tokenizer ({own[:12]}); this one was made with "
            f"{manifest.target.get('name')}'s ({tokenizer[:12]})"
        )
        raise InvalidRequest("sets", str(folder), expected)
    check_prompts(folder, manifest, student)


def _teacher(config: DistilConfig, manifests: dict[str, Manifest]) -> AnyTarget:
    """Return the model that answered, of which `config.teacher` may be another name."""
    name = config.teacher or next(iter(manifests.values())).target.get("name", "")
    teacher = read_target(name)
    check_attention(teacher, "teacher")
    weights = identity(teacher)["weights_sha256"]
    for called, manifest in manifests.items():
        of_set = manifest.target.get("weights_sha256")
        if of_set not in (None, weights):
            expected = f"the model that answered in {called}, {manifest.target.get('name')}"
            raise InvalidRequest("teacher", name, f"{expected} ({of_set[:12]}, not {weights[:12]})")
    return teacher

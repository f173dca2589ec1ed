"""The last turn: the student that is kept answers an application's prompts, and a drafter learns
from that, as by `paceline synth` and `paceline train`."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

from paceline.distil.config import DRAFTER_EPOCHS, DistilConfig
from paceline.models.any_target import AnyTarget
from paceline.models.tensors import EMBEDDING
from paceline.synth.app import load_app
from paceline.synth.job import Run, ShowRun, SynthJob, prepare, read
from paceline.training.config import TrainConfig
from paceline.training.run import TrainingResult, train
from paceline.training.shape import mask_token

ANSWERS, TRAINING = "answers", "training"  # folders of the student's set, and of the drafter's run
TELL_SECONDS = 30.0
Show = Callable[[str], None]


def answering(config: DistilConfig, student: str) -> SynthJob:
    """Return the job in which a model answers the application of `config.drafter`. Raises
    InvalidRequest or ModelError for an application that it cannot answer."""
    assert config.drafter is not None, "somebody asked for a drafter"
    app = load_app(Path(config.drafter)).model_copy(update={"model": student})
    if config.drafter_rows is not None:
        app = app.with_size(config.drafter_rows)
    return prepare(app, read(app))


def check_spare_token(student: AnyTarget) -> None:
    """Raise InvalidRequest (field `mask_token`) for a model that has no token for the mask slots of
    a drafter."""
    assert student.loaded is not None, "checked before"
    mask_token(student.tokenizer, student.loaded.weights[EMBEDDING], student.eos_ids, ())


def make_drafter(config: DistilConfig, student: Path, show: Show) -> TrainingResult:
    """Make the set of what the student says, and train its drafter. What was made by an earlier
    start stays."""
    gc.collect()  # what compared the students gives its memory back
    job, answers = answering(config, str(student)), config.folder / ANSWERS
    answerer = job.own(device=config.device, threads=config.threads)
    counts = job.make(answers, answerer, progress=_progress(show)).manifest.counts
    show(f"{answers} has {counts.get('rows', 0)} texts that the student says")
    gc.collect()
    run = TrainConfig(
        model=str(student),
        sets=(str(answers),),
        out=str(config.folder / TRAINING),
        epochs=config.drafter_epochs or DRAFTER_EPOCHS,
        device=config.device,
        threads=config.threads,
        seed=config.seed,
    )
    return train(run, show)


def _progress(show: Show) -> ShowRun:
    """Return a function that shows the size of the set every TELL_SECONDS."""
    told = time.monotonic()

    def tell(run: Run) -> None:
        nonlocal told
        if time.monotonic() - told > TELL_SECONDS:
            told, size = time.monotonic(), run.collector.app.size
            unit = size.unit.replace("_", " ")
            show(f"the student says: {run.collector.amount} of {size.amount} {unit}")

    return tell

"""A real training run as a job: killed on the way, resumed, and its drafter put into the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.autospec.jobs import JobRunner, JobState, JobTemplate
from paceline.autospec.store import Author, DrafterStore, VersionState
from paceline.models.dflash.checkpoint import load_checkpoint
from paceline.models.loader import identity, load_model
from tests.autospec.jobs.running import end_all, kill_supervisor, until, until_over
from tests.engine.tiny import save_tiny
from tests.training.conftest import PROMPTS, write_set
from tests.training.runs import arguments

ME = Author("autospec", "acceptance fell")


@pytest.mark.slow
def test_a_training_run_is_killed_resumed_and_becomes_a_version(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    target = save_tiny(tmp_path / "tiny", blur=0.0, num_layers=5)
    data = write_set(tmp_path / "set", target, PROMPTS)
    template = JobTemplate.load("subprocess")
    options = (*arguments("save_every"), "--save-every", "1")
    template = template.model_copy(update={"command": (*template.command, *options)})
    values = {"model": str(target), "data": str(data), "steps": "24"}
    folder = tmp_path / "store"
    try:
        with DrafterStore(folder, create=True) as store:
            runner = JobRunner(store)
            store.register("app-1", ME)
            number = runner.start(template, "train app-1", values).id
            saved = folder / "jobs" / str(number) / "out" / "state.pt"
            until(lambda: (runner.poll(number), saved.exists())[1], bool)
            kill_supervisor(runner, number)
            job = until_over(runner, number)
            log = runner.log_file(job).read_text()
            assert (job.state, job.attempt) == (JobState.FINISHED, 2), log
            assert job.checkpoint is not None
            version = store.complete("app-1", job.checkpoint, ME)
            assert version.state is VersionState.TRAINED
            known = identity(load_model(str(target)))
            assert version.target.tokenizer == known["tokenizer_sha256"]
            store.promote("app-1", ME, VersionState.LIVE)
            assert load_checkpoint(str(store.folders(version)["network"])).config.block_size == 6
    finally:
        end_all(folder)

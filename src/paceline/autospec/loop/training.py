"""Weights for a change: the answers that they learn from, the job that trains, and its spec.

The set holds what users were told, so it lies in the store only while its job runs.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.autospec.answer_set import SetLimits, write_answer_set
from paceline.autospec.jobs import JobRecord, JobRunner, JobTemplate
from paceline.autospec.loop.corpora import expiry
from paceline.autospec.policy import TrainingPolicy
from paceline.autospec.store import ALL, DrafterStore, DrafterVersion, TargetIdentity
from paceline.autospec.store.records import CORPUS, NETWORK
from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort
from paceline.core.names import local_path
from paceline.core.spec_line import SpecLine
from paceline.dataset.training_set import read_manifest, read_rows
from paceline.drafters.corpus_folder import CorpusAnswer

SETS = "training"  # folder of the store in which sets lie while their jobs run
PURPOSE = "weights of "  # how the purposes of these jobs begin; the version's name follows
EVERY_APP = "*"  # the key of a synthetic set for apps that have none of their own
NETWORKS = ("dflash", "hybrid")  # kinds whose network a training goes on from
LOOKING_UP = ("suffix", "auto")  # kinds that become a hybrid with a trained network


@dataclass(frozen=True, slots=True)
class TrainingOrder:
    """What a training is for: a version's name, the answers that it learns from, the oldest first,
    and the drafter that it goes on from. With `synthetic`, the folder of a set, it learns from that
    and from no answers."""

    version: str
    cohort: str
    answers: Sequence[CorpusAnswer]
    target: TargetIdentity
    init: Path
    synthetic: str | None = None


class WeightsTrainer:
    """Trains versions by jobs of a store, one job for each version. `model` is the target as
    `paceline train` takes it; None: nobody has said it."""

    def __init__(self, store: DrafterStore, policy: TrainingPolicy, model: str | None) -> None:
        self.policy, self.model = policy, model
        self._jobs, self._sets = JobRunner(store), store.folder / SETS

    def job(self, version: str) -> JobRecord | None:
        """Look after the job of a version, and return it; None: it has none yet."""
        numbers = [job.id for job in self._jobs.all() if job.purpose == PURPOSE + version]
        return self._jobs.poll(numbers[-1]) if numbers else None

    def start(self, order: TrainingOrder, now: float) -> JobRecord:
        """Write the set of a training and start its job.

        Raises InvalidRequest where there are too few answers, and for a template that cannot be
        used.
        """
        policy = self.policy
        folder = Path(order.synthetic) if order.synthetic else self._sets / order.version
        template = JobTemplate.load(policy.template or "")
        values = {
            "model": self.model,
            "data": str(folder),
            "init": str(order.init),
            "epochs": f"{policy.epochs:g}",
            "gpus": None if policy.gpus is None else str(policy.gpus),
        }
        plan = template.plan(values)
        if order.synthetic is None and not folder.exists():
            self._sets.mkdir(exist_ok=True, mode=0o700)
            until = now + plan.seconds + plan.queue_seconds
            limits = SetLimits(policy.held_out, policy.least_answers, policy.most_tokens, until)
            name = order.cohort or "all requests"
            write_answer_set(folder, order.answers, order.target, name, limits)
        return self._jobs.start(template, PURPOSE + order.version, values)

    def tidy(self, training: Collection[str]) -> None:
        """Stop the jobs of versions that nobody trains any more, and remove the sets, and what was
        made of them, of jobs that are over. `training` are the versions under way."""
        needed = {*training}
        for job in self._jobs.all():
            version = job.purpose.removeprefix(PURPOSE)
            if version == job.purpose or version in training:
                continue
            if not job.state.is_over:
                job = self._jobs.stop(job.id, "its change is over")
            if job.state.is_over:
                shutil.rmtree(self._jobs.out(job), ignore_errors=True)
            else:
                needed.add(version)
        if self._sets.is_dir():
            for folder in self._sets.iterdir():  # those that a kill left unfinished among them
                if folder.name not in needed:
                    shutil.rmtree(folder, ignore_errors=True)


def synthetic_set(policy: TrainingPolicy, cohort: str) -> str | None:
    """Return the folder of the set that a cohort's weights learn from where too few answers are
    consented; None: the policy names none. Raises InvalidRequest for a folder without a set."""
    app = "" if cohort == ALL else Cohort.parse(cohort).app
    named = policy.synthetic.get(app, policy.synthetic.get(EVERY_APP))
    if named is None:
        return None
    path = local_path(named, "training.synthetic")
    try:
        is_empty = not read_manifest(path).of("train")
    except InvalidRequest as error:
        raise InvalidRequest("training.synthetic", named, error.expected) from None
    if is_empty:
        raise InvalidRequest("training.synthetic", named, "a set with rows to train on")
    return str(path.absolute())


def synthetic_answers(folder: str, cohort: str, most: int = 200) -> list[CorpusAnswer]:
    """Return answers of a set that nobody trains on, to score versions on."""
    rows = (row for row in read_rows(Path(folder), "held_out") if row.part == "on_task")
    answers = []
    for row in itertools.islice(rows, most):
        start, end = row.spans[-1]
        answers.append(CorpusAnswer(0.0, cohort, "", row.ids[:start], row.ids[start:end]))
    return answers


def network_of(version: DrafterVersion, folders: Mapping[str, Path], init: str | None) -> Path:
    """Return the drafter that a training goes on from: the version's own, or the one that the
    policy names. Raises InvalidRequest where there is none, or the version's kind has no place for
    one."""
    if version.kind in NETWORKS and NETWORK in folders:
        return folders[NETWORK]
    if version.kind not in (*NETWORKS, *LOOKING_UP):
        kinds = ", ".join((*NETWORKS, *LOOKING_UP))
        raise InvalidRequest("spec", version.spec, f"a live version of a kind among {kinds}")
    if init is None:
        expected = (
            f"a live version with a network to go on from, or training.init in the policy: a "
            f"drafter's folder. {version.name} has none; `paceline train` makes one, and "
            "`paceline drafters add` adds it"
        )
        raise InvalidRequest("spec", version.spec, expected)
    path = local_path(init, "training.init")
    if not path.is_dir():
        raise InvalidRequest("training.init", init, "a drafter's folder")
    return path


def spec_trained(
    version: DrafterVersion, folders: Mapping[str, Path], network: Path,
    corpus: Path | None, now: float,
) -> str:  # fmt: skip
    """Return the spec of a version with another network in place of its own, and with `corpus` in
    place of its own. With None it keeps its corpus, unless that has expired."""
    line = SpecLine.parse((version.spec or "").format_map(folders))
    options = {key: ",".join(values) for key, values in line.options.items()}
    times = expiry(folders)
    if corpus is not None:
        options[CORPUS] = str(corpus)
    elif times is not None and times[1] <= now:
        options.pop(CORPUS, None)
    kind = "dflash" if version.kind == "dflash" else "hybrid"
    return f"{kind}:{network}" + "".join(f",{key}={value}" for key, value in options.items())

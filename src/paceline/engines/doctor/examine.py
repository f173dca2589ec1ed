"""Examine a served pair: ask the engine, compute the same rounds here, and name the causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core import ModelError
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.reference import Trained
from paceline.engine.build import load_parts
from paceline.engine.config import EngineConfig
from paceline.engines.answers import Message
from paceline.engines.client import EngineClient
from paceline.engines.doctor import acceptance, causes
from paceline.engines.doctor.answers import Asked, Questions
from paceline.engines.doctor.report import DoctorFinding, ServedReport
from paceline.engines.doctor.target import sampled_finding, target_finding, text_finding
from paceline.evaluate.doctor import encoded, provenance_checks, reading_check
from paceline.models.batch import Network
from paceline.models.loader import LoadedModel, load_model, template_digest

FEWEST_ROUNDS = 20  # that say something
AGAIN = 8  # prompts that are asked again, sampled and for the server's defaults
OF_SERVING_HERE = ("dtype", "window", "context")  # checks that say nothing of the engine
Progress = Callable[[str], None]
Conversation = Sequence[Message]


def examine_served(
    client: EngineClient,
    model: str,
    drafter: str,
    conversations: Sequence[Conversation],
    max_tokens: int = 96,
    *,
    progress: Progress = lambda what: None,
    **options: Any,
) -> ServedReport:
    """Ask an engine for answers, load its target and drafter here, and report.

    `options` are EngineConfig's. Raises ModelError where the target cannot be loaded here, and
    EngineError where the engine fails or tells nothing of its drafts. A drafter that is refused is
    a finding.
    """
    told = client.description
    report = ServedReport(told.kind, told.version, told.model)
    target = load_model(model)  # what is wrong with the target is no finding
    progress("loading the target and the drafter")
    try:
        patient = _Patient.load(client, target, model, drafter, options)
    except ModelError as error:
        report.findings.append(DoctorFinding("checkpoint", False, str(error).removesuffix(".")))
        return report
    report.findings.append(DoctorFinding("checkpoint", True, "complete, and made for this target"))
    questions = Questions(client, max_tokens)
    served = _Served(patient, questions, conversations, progress)
    asked = served.ask()
    _compare(report, client, patient, asked, progress)
    report.findings += served.findings(asked)
    return report


@dataclass(slots=True)
class _Patient:
    """The target and the drafter, loaded here, and the window that the engine serves it with."""

    target: LoadedModel
    network: Network
    drafter: DFlashDrafter
    dtype: str
    window: int | None

    @classmethod
    def load(
        cls, client: EngineClient, target: LoadedModel, model: str, drafter: str, options: Any
    ) -> _Patient:
        reads_training = client.kind.traits.reads_training
        if not reads_training and "head=" not in drafter:
            drafter += ",head=full"
        config = EngineConfig(model=model, drafter=drafter, **options)
        parts = load_parts(config, target)
        loaded = next(iter(parts.drafters.values()))
        if not isinstance(loaded, DFlashDrafter):
            expected = "expected a folder or hub id of one"
            raise ModelError(f"drafter {drafter!r} is no DFlash drafter; {expected}")
        window = loaded.window if reads_training else None
        return cls(target, parts.network, loaded, config.dtype, window)

    def trained(self, asked: Sequence[Asked]) -> Trained:
        """Return the drafter over the texts of some answers, with the window that it is served
        with."""
        texts = {each.name: each.text for each in asked}
        return Trained(self.network, self.drafter, texts, self.window)

    @property
    def knows_template(self) -> bool:
        """Whether the drafter's folder says that it was trained on the template here."""
        template = getattr(self.target.tokenizer, "chat_template", None) or ""
        return self.drafter.checkpoint.provenance.template == template_digest(template)


@dataclass(slots=True)
class _Served:
    """The prompts as the engine gets them: as conversations, as users send them, where the target
    has a chat template; else in token ids."""

    patient: _Patient
    questions: Questions
    conversations: Sequence[Conversation]
    progress: Progress

    def ask(self) -> list[Asked]:
        """Ask every prompt at T = 0."""
        return [
            self._told(index, self.questions.greedy(str(index), self._prompt(index)))
            for index in range(len(self.conversations))
        ]

    def findings(self, asked: Sequence[Asked]) -> list[DoctorFinding]:
        """Return what the prompt and the server's defaults say."""
        folder, few = self.patient.target.path, asked[:AGAIN]
        return [
            self._prompt_finding(asked),
            target_finding(self.patient.network, asked),
            *self._sampled_findings(),
            causes.penalty_finding(folder, few, self._again(self.questions.plain)),
            causes.sampling_finding(folder, few, self._again(self.questions.unstated)),
        ]

    def _sampled_findings(self) -> list[DoctorFinding]:
        """Ask at T = 1 where the engine drafts, and judge what it accepts there."""
        sampled = self._again(self.questions.sampled)
        drafted = max((round.drafted for each in sampled for round in each.rounds), default=0)
        if not drafted:
            return []
        network = self.patient.network
        trained = self.patient.trained(sampled)
        return [
            sampled_finding(network, trained, sampled, drafted),
            text_finding(network, sampled),
        ]

    def _prompt(self, index: int) -> Conversation | list[int]:
        tokenizer = self.patient.target.tokenizer
        conversation = self.conversations[index]
        if getattr(tokenizer, "chat_template", None):
            return conversation
        return encoded(tokenizer, conversation)

    def _again(self, ask: Callable[[str, Conversation | list[int]], Asked]) -> list[Asked]:
        count = min(AGAIN, len(self.conversations))
        return [self._told(i, ask(str(i), self._prompt(i))) for i in range(count)]

    def _prompt_finding(self, asked: Sequence[Asked]) -> DoctorFinding:
        tokenizer, ours = self.patient.target.tokenizer, []
        told = None
        for conversation, each in zip(self.conversations, asked, strict=True):
            ids = encoded(tokenizer, conversation)
            ours.append(ids)
            told = told or causes.prompt_difference(tokenizer, conversation, ids, each.prompt_ids)
        again = []
        if told is not None:
            again = [
                self._told(index, self.questions.greedy(str(index), ids))
                for index, ids in enumerate(ours)
            ]
        return causes.prompt_finding(told, asked, again, self.patient.knows_template)

    def _told(self, index: int, asked: Asked) -> Asked:
        self.progress(f"prompt {index + 1} of {len(self.conversations)}")
        return asked


def _compare(
    report: ServedReport,
    client: EngineClient,
    patient: _Patient,
    asked: Sequence[Asked],
    progress: Progress,
) -> None:
    """Fill in what the engine achieves and what it should, with the findings on the drafter."""
    drafted = max((round.drafted for each in asked for round in each.rounds), default=0)
    checkpoint = patient.drafter.checkpoint
    report.draft_len = drafted
    report.findings.append(causes.format_finding(client, str(patient.target.path), checkpoint.path))
    longest = max(len(each.text) for each in asked)
    for check in provenance_checks(patient.target, patient.dtype, patient.drafter, longest):
        if check.ok is False and check.name not in OF_SERVING_HERE:
            report.findings.append(DoctorFinding(check.name, check.ok, check.detail))
    rounds = [judged for each in asked if len((judged := each.judged(drafted)).anchors)]
    report.rounds = sum(len(each.anchors) for each in rounds)
    if not drafted or report.rounds < FEWEST_ROUNDS:
        evidence = f"{report.rounds} rounds with a whole draft are too few to judge"
        remedy = "" if drafted else "the engine drafts nothing: start it with the drafter"
        report.findings.append(
            DoctorFinding("acceptance", None if drafted else False, evidence, remedy)
        )
        return
    progress("drafting the same rounds here")
    trained = patient.trained(asked)
    compared = acceptance.Comparison.of(trained, rounds, drafted)
    report.achieved, report.expected = compared.achieved_al, compared.expected_al
    report.short, report.positions = compared.short(), compared.positions()
    theta = patient.target.config.rope.theta
    starts = {each.name: len(each.prompt_ids) for each in asked}
    weights = reading_check(trained, starts, theta)
    report.findings += [
        acceptance.acceptance_finding(compared),
        acceptance.reading_finding(compared, theta),
        DoctorFinding(weights.name, weights.ok, weights.detail),
        acceptance.length_finding(compared),
        acceptance.context_finding(compared),
    ]

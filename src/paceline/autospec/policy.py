"""The policy file: every number by which autospec decides, in one document.

    drift:
      drop: 0.05
    canary:
      steps: [1, 5, 25, 50, 100]

Every field has a default, so a file states only what differs.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import model_validator

from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import Document
from paceline.core.field_types import Between, Expected, NonEmpty, Several
from paceline.synth.texts import parse_yaml

DAY = 86400.0
Share = Annotated[float, Between(0, 1)]
Small = Annotated[float, Between(0, 1, open=True)]
Days = Annotated[int, Between(1, 365)]
Hours = Annotated[float, Between(0, 24 * 365)]
Count = Annotated[int, Between(1)]
Amount = Annotated[float, Between(0)]


def _are_steps(steps: tuple[float, ...]) -> bool:
    rising = all(a < b for a, b in pairwise(steps))
    return bool(steps) and rising and 0 < steps[0] < 100 and steps[-1] == 100


Percentages = Annotated[
    tuple[float, ...],
    Expected(
        "rising percentages that end with 100, the first below 100, as [1, 5, 25, 50, 100]",
        _are_steps,
    ),
    Several,
]


class DriftPolicy(Document):
    """What counts as a change, and what as season or noise."""

    day_seconds: Annotated[float, Between(24, DAY)] = about(
        "seconds of a day as drift, cool-downs and weekly budgets count it; a shorter one "
        "compresses time, as a demonstration does",
        DAY,
    )
    reference_days: Days = about(
        "first days of a drafter in a cohort that its acceptance is compared with", 28
    )
    least_reference_days: Days = about("days before anything is judged", 3)
    week_days: Days = about(
        "reference days from which weekends are known; before that, a fall must last a whole week",
        14,
    )
    drop: Small = about("fall of a cohort's AL that counts, as a share", 0.05)
    clears: Small = about("fall below which an open finding is closed (hysteresis)", 0.025)
    sigmas: Annotated[float, Between(1, 10)] = about(
        "standard errors that the fall must exceed as well", 5.0
    )
    days: Annotated[int, Between(1, 7)] = about("days in a row that must show the fall", 3)
    covered: Share = about("share of the cohort's usual hours that those days must cover", 0.8)
    least_requests: Count = about(
        "requests of the cohort in those days; fewer do not say either what a corpus won back", 60
    )
    false_alarm_days: Annotated[float, Between(1)] = about(
        "mean days between false alarms of a cohort's CUSUM", 3650.0
    )
    adwin_delta: Small = about("ADWIN's δ: chance that a cut of steady traffic is false", 0.002)
    usual_day_deviation: Small = about(
        "standard deviation of a day's AL around its season, as a share: what is assumed before a "
        "cohort's own days tell",
        0.01,
    )
    mix: Small = about(
        "change of the total AL by the shares of cohorts alone that is reported", 0.05
    )
    recent_hours: Annotated[int, Between(1, 24)] = about(
        "last hours whose AL is explained as season, mix or change", 6
    )
    step_hours: Annotated[int, Between(1, 48)] = about(
        "hours within which a deployment changes all cohorts", 12
    )
    looping: Small = about(
        "more rounds than usual, as a share, of requests whose every draft is accepted: a "
        "repetition loop",
        0.1,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.clears >= self.drop:
            raise InvalidRequest("clears", self.clears, f"less than drop ({self.drop:g})")
        return self


class RetrainPolicy(Document):
    """When training a drafter anew is worth it, and how often it may happen."""

    gpu_hours_per_day: Amount = about("accelerator hours that serving takes in a day", 24.0)
    price: Amount = about("price of an accelerator hour, in any currency", 2.0)
    training_hours: Amount = about("accelerator hours of a training", 2.0)
    canary_hours: Amount = about("accelerator hours that trying the new drafter costs", 0.5)
    horizon_days: Amount = about("days for which a gain is counted", 30.0)
    persistence: Share = about("chance that the change lasts that long", 0.7)
    recovery: Share = about("share of the lost AL that training is expected to win back", 0.8)
    round_cost: Annotated[float, Between(1)] = about(
        "seconds of a drafted round over those of a round without a draft; speedup is AL divided "
        "by this, and at least 1",
        1.3,
    )
    cool_down_days: Amount = about("days in which a cohort's drafter is not trained again", 7.0)
    per_week: Annotated[int, Between(0)] = about("trainings in any seven days, of all cohorts", 2)


class RegionalPolicy(Document):
    """When a drafter of its own is built for some cohorts."""

    gain: Share = about("gain of AL by a drafter of its own that counts", 0.08)
    share: Share = about("share of all rounds that must have that gain", 0.2)
    joint: Share = about(
        "share of the gain from which one joint drafter is preferred to several", 0.7
    )


class CanaryPolicy(Document):
    """How a new drafter is tried on a share of the traffic."""

    steps: Percentages = about(
        "percentages of the requests that get the new drafter", (1.0, 5.0, 25.0, 50.0, 100.0)
    )
    alpha: Small = about("chance that a drafter as good as the live one is ever failed", 0.05)
    guard: Share = about("loss of tokens per round that passes", 0.02)
    tpot: Share = about("longer time per output token that passes", 0.05)
    tuned_requests: Count = about("canary requests at which the test is sharpest", 150)
    least_requests: Count = about("canary requests before any verdict, and in each step", 50)
    least_hours: Hours = about("hours of each step", 1.0)
    cycle_hours: Hours = about("hours of all steps before the last one", 24.0)
    longest_days: Amount = about("days after which the canary is given up as inconclusive", 7.0)
    errors: Share = about(
        "more failed requests than live, as a share of all, that are allowed", 0.01
    )
    ttft: Share = about("longer time to first token that is allowed, as a share", 0.1)
    invalid: Share = about("fewer answers valid under their schema, as a share of them", 0.01)


class CorpusPolicy(Document):
    """How a drafter gets its cohort's answers as a corpus, without any training."""

    days: Annotated[float, Between(0, open=True)] = about("days whose answers it takes", 7.0)
    least_answers: Count = about("answers without which none is built", 50)
    held_out: Small = about("share of the answers, the latest, that it is scored on", 0.2)
    most_tokens: Count = about("most tokens of a corpus", 2_000_000)
    lifetime_days: Annotated[float, Between(0, open=True)] = about(
        "days until it expires, or fewer where its answers have to be forgotten before", 7.0
    )
    renew: Small = about("share of its lifetime after which a live one is built anew", 0.5)
    gain: Share = about("gain of AL on the answers held out without which it is not tried", 0.02)
    straight: bool = about(
        "make one live without a canary whose gain on the answers held out is sure", False
    )
    retry_hours: Hours = about("hours until the next one after one was given up", 24.0)


class TrainingPolicy(Document):
    """How a drafter's weights are trained on its cohort's answers, once a corpus is not enough."""

    template: Annotated[str, NonEmpty] | None = about(
        "the job: a template that is shipped (subprocess, torchrun, slurm, skypilot), or a file; "
        "null trains nothing",
        "subprocess",
    )
    init: str | None = about(
        "folder of a drafter to go on from, where the live one has no network", None
    )
    days: Annotated[float, Between(0, open=True)] = about("days whose answers it learns from", 14.0)
    least_answers: Count = about("answers without which nothing is trained", 200)
    synthetic: dict[str, str] = about(
        "by app, the folder of a set that `paceline synth` made with the app's system prompt and "
        "grammar: it learns from that where too few answers are consented; `*` is for all others",
        dict,
    )
    held_out: Small = about(
        "share of the answers, the latest, that it is judged and scored on", 0.1
    )
    most_tokens: Count = about("most tokens that it learns from, the newest", 4_000_000)
    epochs: Annotated[float, Between(0, open=True)] = about("passes over the answers", 4.0)
    gpus: Count | None = about("{gpus} of the template", None)
    gain: Share = about("gain of AL on the answers held out without which it is not tried", 0.02)
    aim: Annotated[float, Between(1)] = about(
        "AL that new weights are expected to reach, over that before a fall", 1.0
    )


class RoutingPolicy(Document):
    """How each cohort's requests are shared out among the live drafters (Hedge)."""

    enabled: bool = about(
        "share them out: a cohort may then get the drafters of others, which costs a step in which "
        "several drafters draft one after the other",
        False,
    )
    days: Days = about("days whose scores and requests are evidence", 7)
    batch_rounds: Count = about("rounds that count as one batch of evidence", 100)
    most_cohorts: Count = about("most cohorts that get a route of their own by evidence", 16)
    rate: Small = about("learning rate of Hedge on rewards between 0 and 1", 1.0)
    memory: Annotated[float, Between(1)] = about("batches of evidence that are remembered", 50.0)
    least_share: Share = about("smallest share that a drafter gets; below it, none", 0.05)


class AutospecPolicy(Document):
    """The policy file."""

    drift: DriftPolicy = about("what counts as a change", DriftPolicy)
    retrain: RetrainPolicy = about("when training is worth it", RetrainPolicy)
    regional: RegionalPolicy = about("when several drafters are worth it", RegionalPolicy)
    corpus: CorpusPolicy = about("how answers become a corpus", CorpusPolicy)
    training: TrainingPolicy = about("how weights are trained", TrainingPolicy)
    canary: CanaryPolicy = about("how a new drafter is tried", CanaryPolicy)
    routing: RoutingPolicy = about("how requests are shared among drafters", RoutingPolicy)

    @classmethod
    def from_yaml(cls, path: str | Path, field: str = "policy") -> Self:
        """Read a policy file. Raises InvalidRequest, which names the field with its place."""
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(field, str(path), f"a readable YAML file ({error})") from None
        return cls.read(parse_yaml(text, str(path), field) or {}, str(path))

"""The served target beside the target here: which tokens it says, and how it samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from paceline.bench.report.words import percent
from paceline.drafters.reference import Trained
from paceline.engines.doctor.answers import Asked
from paceline.engines.doctor.readings import DrafterReading, JudgedRounds, draft_tokens
from paceline.engines.doctor.report import DoctorFinding
from paceline.evaluate.paired import Numbers, difference
from paceline.models.batch import Network
from paceline.models.networks import sequence_outputs

FLIPS = 0.03  # of all tokens: rounding alone flips fewer argmaxes
GAP = 0.7  # nats: rounding alone flips no argmax that is so far ahead
FAR = 0.002  # of all tokens may be further behind than GAP
OFF = 0.02  # of all rounds: less is no finding, however clear
UNLIKE = 0.1  # nats of a token: less is no finding, however clear


def target_finding(network: Network, asked: Sequence[Asked]) -> DoctorFinding:
    """Compare the engine's tokens at T = 0 with the argmax of the target here, on the engine's own
    text."""
    name = "served target"
    gaps = np.concatenate([token_gaps(network, each) for each in asked])
    behind = gaps[gaps > 0]
    flips, far = len(behind) / len(gaps), float((gaps > GAP).mean())
    evidence = (
        f"{percent(flips)} of {len(gaps)} tokens at T = 0 are not the argmax of the target here, "
        f"by {behind.mean() if len(behind) else 0:.2f} nats on average, and {percent(far)} by more "
        f"than {GAP}"
    )
    if _least(flips, len(gaps)) <= FLIPS and _least(far, len(gaps)) <= FAR:
        return DoctorFinding(name, True, evidence)
    remedy = (
        "the engine serves quantised weights, or another revision: train the drafter on the target "
        "that is served, or serve the one that it was trained on"
    )
    return DoctorFinding(name, False, f"{evidence}; rounding flips fewer", remedy)


def token_gaps(network: Network, asked: Asked) -> Numbers:
    """Return how far, in nats, each token of an answer lies behind the target's likeliest; 0 for
    the likeliest itself."""
    gaps: list[Numbers] = []
    for kept, logits in _answer_logits(network, asked):
        chosen = torch.tensor([asked.text[place + 1] for place in kept], device=logits.device)
        gap = logits.max(-1).values - logits.gather(1, chosen[:, None])[:, 0]
        gaps.append(gap.cpu().numpy().astype(float))
    return np.concatenate(gaps) if gaps else np.zeros(0)


def sampled_finding(
    network: Network, trained: Trained, asked: Sequence[Asked], drafted: int
) -> DoctorFinding:
    """Say whether the engine accepts the first draft token, at T = 1, as often as the target has
    it: a lossless engine accepts a draft that is no sample with the target's own probability."""
    name, own = "acceptance at T = 1", DrafterReading("", trained.config)
    pairs: list[tuple[Numbers, Numbers]] = []
    for each in asked:
        rounds = each.judged(drafted)
        if len(rounds.anchors):
            drafts = draft_tokens(trained, own, rounds, drafted)[:, 0].tolist()
            likely = _probabilities(network, each.text, rounds, drafts)
            pairs.append((likely, (rounds.accepted > 0).astype(float)))
    if not pairs:
        return DoctorFinding(name, None, "no round with a whole draft")
    short = difference([likely - accepted for likely, accepted in pairs])
    expected, achieved = (float(np.concatenate(side).mean()) for side in zip(*pairs, strict=True))
    count = sum(len(likely) for likely, _ in pairs)
    evidence = (
        f"{percent(achieved)} of {count} rounds accept the first draft token at the engine, and "
        f"the target here gives it {percent(expected)} ({short.z:+.1f} standard errors short)"
    )
    if not short.is_clear or abs(short.mean) <= OFF:
        return DoctorFinding(name, True, evidence)
    remedy = (
        "the engine's rejection sampling does not accept drafts as often as the target's "
        "distribution says: look at its draft_sample_method and rejection_sample_method, and check "
        "that its text is right"
    )
    return DoctorFinding(name, False, evidence, remedy)


def text_finding(network: Network, asked: Sequence[Asked]) -> DoctorFinding:
    """Say whether text at T = 1 is as likely as the target's own samples are: a token's surprise is
    its entropy on average, whatever came before it."""
    name = "text at T = 1"
    surprises = [np.concatenate([*_surprises(network, each)]) for each in asked]
    tokens = np.concatenate(surprises)
    over = difference([tokens])  # token by token: what came before decides the mean of none
    evidence = (
        f"{len(tokens)} sampled tokens are {over.mean:+.2f} nats more surprising than samples of "
        f"the target here ({over.z:+.1f} standard errors)"
    )
    if not over.is_clear or abs(over.mean) <= UNLIKE:
        return DoctorFinding(name, True, evidence)
    remedy = (
        "the engine does not sample the target's distribution, and the drafter meets text that it "
        "was not trained on: find the cause with `paceline audit`"
    )
    return DoctorFinding(name, False, evidence, remedy)


def _surprises(network: Network, asked: Asked) -> Iterator[Numbers]:
    """Yield, for the tokens of an answer, how much more surprising each is than its entropy."""
    for kept, logits in _answer_logits(network, asked):
        logprobs = torch.log_softmax(logits, -1)
        chosen = torch.tensor([asked.text[place + 1] for place in kept], device=logits.device)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        surprise = -logprobs.gather(1, chosen[:, None])[:, 0]
        yield (surprise - entropy).cpu().numpy().astype(float)


def _answer_logits(network: Network, asked: Asked) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Yield the places before each token of an answer, in pieces with their logits."""
    rows = range(len(asked.prompt_ids) - 1, len(asked.text) - 1)
    for places, logits in _logits(network, asked.text):
        kept = [place for place in rows if place in places]
        if kept:
            yield kept, logits[[place - places.start for place in kept]]


def _probabilities(
    network: Network, text: Sequence[int], rounds: JudgedRounds, drafts: Sequence[int]
) -> Numbers:
    """Return the target's probability of each round's first draft token, at T = 1."""
    found: dict[int, float] = {}
    wanted = dict(zip(rounds.anchors.tolist(), drafts, strict=True))
    for places, logits in _logits(network, text):
        for anchor in wanted.keys() & set(places):
            row = logits[anchor - places.start]
            found[anchor] = float(torch.softmax(row, -1)[wanted[anchor]])
    return np.array([found[anchor] for anchor in rounds.anchors.tolist()])


@torch.inference_mode()
def _logits(network: Network, text: Sequence[int]) -> Iterator[tuple[range, torch.Tensor]]:
    """Yield the target's logits behind each token, in pieces with their places."""
    for first, output in sequence_outputs(network, text, (0,), logits=True):
        assert output.logits is not None
        yield range(first, first + len(output.logits)), output.logits.float()


def _least(share: float, count: int) -> float:
    """Return what a share surely is, given that `count` tokens were seen."""
    return share - 2 * float(np.sqrt(max(share * (1 - share), 1 / count) / count))

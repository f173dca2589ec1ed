"""T = 1: do sampled tokens follow the law of the model?"""

from __future__ import annotations

from paceline.engines.answers import EngineAsk
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.checks import draws
from paceline.engines.audit.checks.draws import Draw
from paceline.engines.audit.findings import AuditFinding, Evidence, Severity
from paceline.engines.audit.session import PLAIN, Session
from paceline.engines.audit.statistics import POWER, ChiSquare

PROBES = 3
ANSWERS = 48  # at scale 1
TOKENS = 64
FIRST_SEED = 10_000  # law seeds do not meet those of other checks: the draws must be independent


class LawCheck:
    """Samples answers with seeds of their own, and tests the tokens against the reference's
    log-probabilities at their places."""

    name = "law"
    asks = "T = 1: do tokens follow the model's law, all along their answers?"
    tests = 4

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        return Cost(1, session.longest_probe + TOKENS + 1) * (2 * ANSWERS * scale)

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        sampled = sample(session, ANSWERS * scale)
        everywhere = draws.ranks(sampled, 1, draws.everywhere)
        tests = {
            "first token": draws.first_tokens(sampled),
            "rank of tokens 2 and on": everywhere.test(),
            "rank, by the token before": draws.ranks(sampled, 2, draws.by_token_before).test(),
            "rank, by place in the round": draws.ranks(sampled, 2, draws.by_place_in_round).test(),
        }
        found = [law_finding(session, name, test) for name, test in tests.items() if test.df]
        wrong = [finding for finding in found if finding.severity is Severity.FAILURE]
        if wrong:
            shifts = everywhere.shifts
            wrong[0].evidence["worst at"] = draws.worst_window(sampled)
            wrong[0].evidence["share of the likeliest, beside its law"] = f"{shifts[0]:+.2%}"
        return found


def sample(session: Session, answers: int) -> list[Draw]:
    """Sample answers at T = 1 and have the reference score them."""
    probes = session.probes[:PROBES]

    def draw(number: int) -> Draw:
        probe = number % len(probes)
        ids = probes[probe].ids
        seed = session.seed + FIRST_SEED + number
        # an answer that could end would not show the token that ends it
        ask = EngineAsk(ids, TOKENS, 1.0, seed=seed, ignore_eos=True, fields=PLAIN)
        answer = session.ask(ask, fresh=True)
        return Draw(probe, session.reference.score(ids, answer.token_ids), answer.rounds)

    return session.each(range(answers), draw)


def law_finding(session: Session, name: str, test: ChiSquare) -> AuditFinding:
    """Say what a test of sampled tokens found, and which bias it would have found."""
    bias = test.bias_found(session.alpha)
    evidence: Evidence = {
        "tokens": test.samples,
        "statistic": test.statistic,
        "degrees": test.df,
        "p": test.p,
        "alpha": session.alpha,
        f"bias found with {POWER:.0%}": bias,
    }
    if test.p >= session.alpha:
        words = "no bias" if bias is None else f"a bias of {bias:.1%} would have been found"
        return AuditFinding(severity=Severity.OK, title=f"{name}: the model's law ({words})",
                       evidence=evidence)  # fmt: skip
    cause, remedy = cause_of(session, Sign.LAW)
    return AuditFinding(
        severity=Severity.FAILURE,
        title=f"{name}: not the model's law",
        evidence=evidence,
        cause=cause,
        remedy=remedy
        or "audit again with speculation off: if this is gone, the verification is "
        "not lossless; else compare temperature, sampling defaults and quantization",
    )

"""T = 0: is the text the one that the model writes without speculation?"""

from __future__ import annotations

from paceline.engines.answers import EngineAnswer
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.checks.texts import JudgedText, first_difference, judge
from paceline.engines.audit.findings import AuditFinding, Evidence, Severity
from paceline.engines.audit.reference import ScoredToken
from paceline.engines.audit.session import GREEDY_TOKENS, MOST_TIE, Probe, Session, greedy


class GreedyCheck:
    """Compares texts at T = 0 with the reference's, and judges every token by its logprobs."""

    name = "greedy"
    asks = "T = 0: is each token the one that the model without speculation finds likeliest?"
    tests = 0

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        times = 3 if session.reference.asks else 2
        each = Cost(1, session.longest_probe + GREEDY_TOKENS + 1)
        return each * (times * len(session.probes))

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        judged, differing = JudgedText(), JudgedText()

        def look(probe: Probe) -> tuple[list[ScoredToken], EngineAnswer, EngineAnswer | None]:
            answer = session.ask(greedy(probe))
            plain = session.reference.ask(greedy(probe)) if session.reference.asks else None
            return session.reference.score(probe.ids, answer.token_ids), answer, plain

        for probe, (scored, answer, plain) in zip(
            session.probes, session.each(session.probes, look), strict=True
        ):
            judge(judged, probe.name, scored, session.tie)
            if plain is not None:
                _judge_difference(differing, session, probe, scored, answer, plain)
        return [self._finding(session, judged, differing)]

    def _finding(self, session: Session, judged: JudgedText, differing: JudgedText) -> AuditFinding:
        evidence: Evidence = {
            "texts": len(session.probes),
            "tokens": judged.tokens,
            "wrong": len(judged.wrong),
            "ties": len(judged.ties),
            "largest gap in nats": judged.worst,
            "a tie, in nats": session.tie,
        }
        if session.reference.asks:
            evidence["texts that differ"] = differing.tokens
            evidence["first differences that are wrong"] = len(differing.wrong)
            evidence["first differences that are ties"] = len(differing.ties)
        if not judged.wrong and not differing.wrong:
            same = "all texts are the reference's" if not differing.tokens else "only ties differ"
            title = (
                f"T = 0 is lossless: {same}"
                if session.reference.asks
                else ("T = 0: every token is the likeliest by the server's own prefill")
            )
            return AuditFinding(severity=Severity.OK, title=title, evidence=evidence)
        evidence["first wrong token"] = min(
            place for each in (judged, differing) if (place := each.first_wrong) is not None
        )
        cause, remedy = cause_of(session, Sign.GREEDY)
        return AuditFinding(
            severity=Severity.FAILURE,
            title="T = 0 is not lossless: tokens are wrong beyond rounding",
            evidence=evidence,
            cause=cause,
            remedy=remedy
            or "switch speculation off and audit again: if this is gone, the drafts "
            "change the text; else the two servers differ (weights, quantization, template)",
        )


def _judge_difference(
    differing: JudgedText,
    session: Session,
    probe: Probe,
    scored: list[ScoredToken],
    answer: EngineAnswer,
    plain: EngineAnswer,
) -> None:
    """Judge the first difference of two texts by the reference's logprobs there."""
    place = first_difference(answer.token_ids, plain.token_ids)
    if place is None:
        return
    if place < len(scored):
        differing.add(probe.name, place, scored[place].gap, session.tie)
        return
    # The server's text ended here and the reference's went on: a tie only if its token there has
    # a rival.
    longer = session.reference.score(probe.ids, plain.token_ids[: place + 1])[place]
    likeliest = [logprob for _, logprob in longer.top]
    gap = likeliest[0] - likeliest[1] if len(likeliest) > 1 else MOST_TIE
    differing.add(probe.name, place, gap, session.tie)

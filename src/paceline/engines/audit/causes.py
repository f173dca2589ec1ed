"""Known faults of engines, by the sign that an audit sees.

Faults that a launch plan meets stand in `known_faults`; here are the signs of those, and of others
that were reported but that no plan tells beforehand.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from paceline.engines.audit.session import Session
from paceline.engines.known_faults import KNOWN_FAULTS


class Sign(StrEnum):
    """What an audit sees of a fault."""

    GREEDY = "greedy"  # at T = 0 another text
    LAW = "law"  # sampled tokens follow another law
    GRAMMAR = "grammar"
    LOGPROBS = "logprobs"
    PENALTIES = "penalties"
    REFUSED = "refused"  # a sampling parameter is refused
    COLLAPSE = "collapse"  # acceptance falls with context or length
    DEAD = "dead"  # and does not come back
    PREFIX_HITS = "prefix hits"
    PREFIX_TEXT = "prefix text"  # another text after a prefix hit
    LOOP = "loop"


SIGNS = {
    "vllm#54282": Sign.LAW,
    "vllm#55005": Sign.LAW,
    "vllm#54374": Sign.COLLAPSE,
    "vllm#52873": Sign.DEAD,
    "vllm#54360": Sign.PREFIX_HITS,
    "vllm#53912": Sign.PREFIX_TEXT,
    "sglang#38009": Sign.GREEDY,
    "sglang#37326": Sign.DEAD,
}


class FaultReport(NamedTuple):
    """A fault that users reported, of any version."""

    engine: str
    sign: Sign
    issues: str
    words: str


REPORTS = (
    FaultReport("vllm", Sign.GREEDY, "vllm#41758", "n-gram drafts change texts at T = 0"),
    FaultReport("vllm", Sign.GRAMMAR, "vllm#36138, #44006, #52620",
           "structured output breaks under speculation"),
    FaultReport("vllm", Sign.LOGPROBS, "vllm#30846, #44727",
           "log-probabilities are wrong or missing under speculation"),
    FaultReport("vllm", Sign.REFUSED, "vllm#42744, #38202",
           "min_p and logit_bias are refused under speculation"),
    FaultReport("vllm", Sign.COLLAPSE, "vllm#54691", "acceptance falls at very long contexts"),
    FaultReport("vllm", Sign.PREFIX_HITS, "vllm#53670",
           "speculation drops the last matched block of the prefix cache"),
)  # fmt: skip


def cause_of(session: Session, sign: Sign) -> tuple[str | None, str | None]:
    """Return the known faults of the server's engine and version that show this sign, in words,
    and what to do."""
    told = session.server.description
    faults = [
        fault
        for fault in KNOWN_FAULTS
        if fault.engine == told.kind
        and SIGNS.get(fault.name) is sign
        and (told.version is None or fault.concerns(told.version))
    ]
    words = [f"{fault.name}: {fault.symptom}" for fault in faults]
    words += [f"{r.issues}: {r.words}" for r in REPORTS if (r.engine, r.sign) == (told.kind, sign)]
    remedies = [fault.remedy for fault in faults]
    return ("; ".join(words) or None), (" ".join(remedies) or None)

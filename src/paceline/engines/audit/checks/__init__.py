"""The checks of an audit, in the order in which they are asked."""

from __future__ import annotations

from paceline.engines.audit.check import AuditCheck
from paceline.engines.audit.checks.acceptance import AcceptanceCheck
from paceline.engines.audit.checks.deep import DeepCheck
from paceline.engines.audit.checks.greedy import GreedyCheck
from paceline.engines.audit.checks.law import LawCheck
from paceline.engines.audit.checks.logprobs import LogprobCheck
from paceline.engines.audit.checks.loops import LoopCheck
from paceline.engines.audit.checks.penalties import PenaltyCheck
from paceline.engines.audit.checks.prefix import PrefixCheck
from paceline.engines.audit.checks.recovery import RecoveryCheck
from paceline.engines.audit.checks.seeds import ChoiceCheck, SeedCheck
from paceline.engines.audit.checks.stops import StopCheck
from paceline.engines.audit.checks.structured import StructuredCheck

# What comes first is asked first where the budget is small; the checks of speed come last, since
# they put the most load on the server.
CHECKS: tuple[AuditCheck, ...] = (
    GreedyCheck(),
    LawCheck(),
    DeepCheck(),
    StopCheck(),
    StructuredCheck(),
    LogprobCheck(),
    PenaltyCheck(),
    SeedCheck(),
    ChoiceCheck(),
    AcceptanceCheck(),
    PrefixCheck(),
    LoopCheck(),
    RecoveryCheck(),
)

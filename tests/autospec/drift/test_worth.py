"""Whether a training pays, and what forbids one that would."""

from __future__ import annotations

import pytest

from paceline.autospec.drift.cells import DAY
from paceline.autospec.drift.ledger import Ledger, LedgerEntry, LedgerKind
from paceline.autospec.drift.worth import FallenCohort, objections, retrain_worth
from paceline.autospec.policy import RetrainPolicy

NOW = 100 * DAY
FALLEN = [FallenCohort("a", 0.5, 3.6, 4.0)]


def reasons(*entries: LedgerEntry, **policy: float) -> list[str]:
    chosen = RetrainPolicy.read(policy)
    worth = retrain_worth(FALLEN, chosen)
    return list(objections(FALLEN, worth, Ledger(entries), NOW, chosen))


def test_saved_time_is_that_of_the_formula() -> None:
    policy = RetrainPolicy.read(
        {"gpu_hours_per_day": 10.0, "price": 3.0, "horizon_days": 20.0, "persistence": 0.5,
         "recovery": 0.75, "training_hours": 4.0, "canary_hours": 1.0}
    )  # fmt: skip
    worth = retrain_worth(FALLEN, policy)
    after = 3.6 + 0.75 * 0.4
    assert worth.hours_saved == pytest.approx(0.5 * (1 - 3.6 / after) * 10 * 20 * 0.5)
    assert worth.gain == pytest.approx(3 * worth.hours_saved) and worth.cost == 15
    assert not worth.pays


def test_the_servers_own_speedup_counts() -> None:
    flat = retrain_worth(FALLEN, RetrainPolicy(), speedup=lambda al: 1.0)
    assert flat.hours_saved == 0 and not flat.pays


def test_nothing_is_saved_where_speculation_is_off_before_and_after() -> None:
    slow = [FallenCohort("a", 1.0, 1.0, 1.2)]
    assert retrain_worth(slow, RetrainPolicy()).hours_saved == 0


def test_a_fall_that_costs_more_to_mend_is_left() -> None:
    assert reasons() == []
    (said,) = reasons(training_hours=500.0)
    assert "cost 1001.00" in said


def test_a_running_training_a_cool_down_and_a_budget_forbid_another() -> None:
    only_a = frozenset({"a"})
    running = LedgerEntry(LedgerKind.TRAINING, NOW - DAY, only_a)
    assert "under way already" in reasons(running)[0]
    swapped = LedgerEntry(LedgerKind.SWAP, NOW - 3 * DAY, only_a)
    assert "3.0 days ago; the cool-down is 7 days" in reasons(swapped)[0]
    long_ago = LedgerEntry(LedgerKind.SWAP, NOW - 8 * DAY, only_a)
    other = LedgerEntry(LedgerKind.TRAINING, NOW - DAY, frozenset({"b"}), NOW)
    assert reasons(long_ago, other) == []
    (said,) = reasons(long_ago, other, other)
    assert "2 trainings began in the last seven days; the budget is 2" in said


def test_the_ledger_tells_where_a_reference_begins() -> None:
    swap = LedgerEntry(LedgerKind.SWAP, 5.5 * 3600, frozenset({"a"}))
    accepted = LedgerEntry(LedgerKind.ACCEPTED, 9 * 3600.0)
    assert Ledger((swap,)).begins(["a", "b"]).tolist() == [6, 0]
    assert Ledger((swap, accepted)).begins(["a", "b"]).tolist() == [9, 9]
    deployed = LedgerEntry(LedgerKind.DEPLOYMENT, 50 * 3600.0)
    ledger = Ledger((deployed,))
    assert ledger.deployment_near(45 * 3600.0, 6) is deployed
    assert ledger.deployment_near(43 * 3600.0, 6) is None

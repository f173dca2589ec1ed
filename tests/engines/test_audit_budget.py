"""An audit never uses more than it may, and says beforehand what it leaves out."""

from __future__ import annotations

import threading

import pytest

from paceline.core import InvalidRequest
from paceline.engines import connect
from paceline.engines.audit import Audit, AuditSettings, Budget, BudgetSpent, CheckState
from paceline.engines.audit.budget import Cost, Meter
from tests.engines.audit_fake import FakeEngine, serving


def test_a_request_beyond_the_budget_is_not_sent() -> None:
    meter = Meter(Budget(requests=3, tokens=100, at_once=1, seconds=10))
    with meter.request(60) as settle:
        settle(20)
    assert meter.used == Cost(1, 20)
    with pytest.raises(BudgetSpent, match="80 tokens are left"), meter.request(90):
        raise AssertionError("sent")
    with meter.request(80):
        pass
    with pytest.raises(BudgetSpent), meter.request(1):
        raise AssertionError("sent")


def test_a_failed_request_keeps_its_tokens() -> None:
    meter = Meter(Budget(tokens=100))
    with pytest.raises(OSError), meter.request(60):
        raise OSError
    assert meter.room.tokens == 40


def test_nothing_is_sent_after_the_last_second() -> None:
    now = [0.0]
    meter = Meter(Budget(seconds=5), lambda: now[0])
    with meter.request(1):
        now[0] = 6.0
    with pytest.raises(BudgetSpent, match="--seconds"), meter.request(1):
        raise AssertionError("sent")


def test_choices_of_one_request_take_places_each() -> None:
    meter, running, most = Meter(Budget(at_once=4)), [0], [0]
    lock = threading.Lock()

    def ask(places: int) -> None:
        with meter.request(1, places):
            with lock:
                running[0] += places
                most[0] = max(most[0], running[0])
            threading.Event().wait(0.01)
            with lock:
                running[0] -= places

    threads = [threading.Thread(target=ask, args=(1 + n % 4,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most[0] <= 4


def test_a_small_budget_leaves_checks_out_and_is_kept() -> None:
    engine = FakeEngine()
    budget = Budget(requests=120, tokens=12_000, at_once=2)
    with serving(engine) as url:
        audit = Audit(connect(url), None, AuditSettings(budget=budget))
        left_out = {item.check.name for item in audit.plan if item.reason}
        planned = [item.cost for item in audit.plan if not item.reason]
        before = len(engine.bodies)
        report = audit.run()
    assert {"law", "deep"} <= left_out and "greedy" not in left_out
    assert len(engine.bodies) - before <= sum(cost.requests for cost in planned)
    assert len(engine.bodies) == report.requests <= 120 and report.tokens <= 12_000
    assert engine.most_running <= 2
    told = {check.name for check in report.checks if check.state is CheckState.LEFT_OUT}
    assert told == left_out and report.exit_status() == 0


def test_a_larger_budget_finds_smaller_biases() -> None:
    def bias(tokens: int) -> float:
        with serving(FakeEngine()) as url:
            settings = AuditSettings(only=("law",), budget=Budget(tokens=tokens))
            report = Audit(connect(url), None, settings).run()
        named = {f.title.partition(":")[0]: f for f in report.checks[0].findings}
        return float(named["rank of tokens 2 and on"].evidence["bias found with 90%"] or 1)

    assert bias(100_000) < 0.6 * bias(20_000)


def test_a_check_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="only: got 'gredy'; expected a check: one of greedy"):
        AuditSettings(only=("gredy",))

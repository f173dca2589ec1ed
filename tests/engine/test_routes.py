"""Routes: who gets which drafter, and who keeps it when shares change."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort
from paceline.engine.routes import RouteKey, Routes

SESSIONS = [f"session-{index}" for index in range(4000)]


def split(salt: str = "canary", **shares: float) -> Routes:
    return Routes.read({"default": "a", "cohorts": [{"shares": shares}], "salt": salt})


def arm(routes: Routes, name: str) -> set[str]:
    """The sessions that get a drafter."""
    keys = (RouteKey(Cohort("m"), session) for session in SESSIONS)
    return {key.session for key in keys if routes.choose(key).drafter == name}


def test_a_share_is_that_share_of_sessions() -> None:
    for share in (0.01, 0.05, 0.2, 0.5):
        got = len(arm(split(a=1 - share, b=share), "b")) / len(SESSIONS)
        assert abs(got - share) < 4 * (share * (1 - share) / len(SESSIONS)) ** 0.5


def test_a_session_keeps_its_drafter() -> None:
    routes = split(a=0.7, b=0.3)
    assert arm(routes, "b") == arm(Routes.read(routes.model_dump()), "b")


def test_an_arm_that_grows_keeps_its_sessions_and_gives_none_back_in_between() -> None:
    before: set[str] = set()
    for share in (0.01, 0.05, 0.25, 0.5, 1.0):
        # in either order: a client that sorts its JSON must not move anybody
        shares = {"a": 1 - share, "b": share}
        now = arm(split(**shares), "b")
        assert now == arm(split(**dict(reversed(shares.items()))), "b")
        assert before < now
        before = now
    assert before == set(SESSIONS)


def test_a_third_arm_takes_from_both_and_moves_nobody_between_them() -> None:
    two, three = split(a=0.5, b=0.5), split(a=0.4, b=0.4, c=0.2)
    for name in ("a", "b"):
        assert arm(three, name) < arm(two, name)


def test_another_salt_draws_anew() -> None:
    first, second = arm(split(a=0.5, b=0.5), "b"), arm(split("other", a=0.5, b=0.5), "b")
    assert 0.4 < len(first & second) / len(first) < 0.6


def test_a_share_of_nothing_gets_nobody() -> None:
    assert arm(split(a=1.0, b=0.0), "b") == set()


def test_the_first_route_that_matches_decides_and_tells_why() -> None:
    routes = Routes.read(
        {
            "default": "a",
            "cohorts": [
                {"match": {"app": "chat", "language": "de"}, "shares": {"german": 1}},
                {"match": {"app": "chat"}, "shares": {"chat": 1}, "why": "chat by scores"},
            ],
        }
    )

    def chosen(*parts: str) -> tuple[str | None, str]:
        return tuple(routes.choose(RouteKey(Cohort(*parts), "s")))

    assert chosen("m", "chat", "de", "eu") == ("german", "route 0")
    assert chosen("m", "chat", "en", "eu") == ("chat", "route 1: chat by scores")
    assert chosen("m", "code", "de", "eu") == ("a", "default")
    assert tuple(routes.choose(None)) == ("a", "default")


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        ({"cohorts": [{"shares": {"a": 1.5}}]}, "cohorts[0].shares.a", "a share from 0 to 1"),
        ({"cohorts": [{"shares": {"a": -0.1}}]}, "cohorts[0].shares.a", "a share from 0 to 1"),
        ({"cohorts": [{"shares": {"a": 0.5}}]}, "cohorts[0].shares", "add up to 1, not 0.5"),
        ({"cohorts": [{"shares": {}}]}, "cohorts[0].shares", "add up to 1"),
        ({"cohorts": [{"match": {"town": "x"}, "shares": {"a": 1}}]}, "town", "unknown field"),
        ({"fallback": "a"}, "fallback", "unknown field"),
        ({"cohorts": [{"shares": {"a": 1}, "why": "a\nb"}]}, "cohorts[0].why", "printable ASCII"),
        ({"cohorts": [{"shares": {"a": 1}, "why": "a" * 301}]}, "cohorts[0].why", "up to 300"),
    ],
)
def test_bad_routes_are_refused_by_field(document: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        Routes.read(document)
    assert field in refused.value.field


def test_an_unknown_drafter_is_refused_where_it_stands() -> None:
    routes = Routes.read({"default": "a", "cohorts": [{"shares": {"a": 0.5, "b": 0.5}}]})
    with pytest.raises(InvalidRequest, match=r"cohorts\[0\].shares.b: got 'b'; expected one of: a"):
        routes.check(["a"])
    with pytest.raises(InvalidRequest, match="default"):
        routes.check(["b"])
    routes.check(["a", "b"])

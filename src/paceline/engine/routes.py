"""Routes: which drafter a request gets that names none, by its cohort and its session.

A cohort's sessions are shared out by weighted rendezvous hashing (Thaler and Ravishankar 1998, with
the weights of Schindelhauer and Schomaker 2005): every drafter draws a number for the session, and
the best one for its share has it. So a session keeps its drafter while the shares stay, and a share
that grows takes sessions over without giving any away: the sessions of the first 5 % are among
those of the 20 % that follow.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from typing import Annotated, NamedTuple, Self

from pydantic import ConfigDict, Field, model_validator

from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort
from paceline.core.documents import Document
from paceline.core.field_types import AtMost, Between, Expected

DEFAULT, NAMED = "default", "named"  # reasons for a drafter, beside `route 0` and so on
CLOSE = 1e-6  # of shares to 1: they may be thirds
MOST_ROUTES, MOST_SHARES = 1024, 64
LONGEST_WHY = 300  # characters
Share = Annotated[float, Between(0, 1, words="a share from 0 to 1")]
Why = Annotated[
    str,
    Expected(
        f"up to {LONGEST_WHY} printable ASCII characters",
        lambda text: (
            (len(text) <= LONGEST_WHY and text.isascii() and text.isprintable()) or not text
        ),
    ),
]


class RouteKey(NamedTuple):
    """What routes look at in a request. Requests of one `session` get the same drafter."""

    cohort: Cohort
    session: str


class Routed(NamedTuple):
    """A drafter, None for plain decoding, and the reason for it."""

    drafter: str | None
    reason: str


class CohortMatch(Document):
    """Parts of a cohort. One that is not stated may be anything."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    model: str | None = None
    """The name that the request has for the model."""
    app: str | None = None
    language: str | None = None
    region: str | None = None

    @property
    def parts(self) -> dict[str, str]:
        """Return the parts that are stated."""
        return {name: value for name, value in self if value is not None}


class CohortRoute(Document):
    """The drafters of some cohorts, each with its share of their sessions."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    match: CohortMatch = CohortMatch()
    """The cohorts that the route is for; {} is for all."""
    shares: Annotated[dict[str, Share], AtMost(MOST_SHARES, "drafters")]
    """The share of sessions that each drafter gets; together they are 1."""
    why: Why = ""
    """Why they do; the reason that requests, traces and metrics get for their drafter ends with
    it."""

    @model_validator(mode="after")
    def _check_sum(self) -> Self:
        total = math.fsum(self.shares.values())
        if abs(total - 1) > CLOSE:
            raise InvalidRequest("shares", self.shares, f"shares that add up to 1, not {total:g}")
        return self

    def reason(self, index: int) -> str:
        """Return why a request gets its drafter: the place of the route, and what it is for."""
        return f"route {index}: {self.why}" if self.why else f"route {index}"

    def drafter_of(self, session: str, salt: str) -> str:
        """Return the drafter that the session draws."""
        shares = ((name, share) for name, share in self.shares.items() if share)
        return min(shares, key=lambda item: -math.log(drawn(salt, session, item[0])) / item[1])[0]


class Routes(Document):
    """Which drafter serves whom. The first of `cohorts` that matches a request decides; where none
    does, `default` serves it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    default: str | None = None
    """The drafter of requests that no route matches; null decodes without drafts."""
    cohorts: Annotated[list[CohortRoute], AtMost(MOST_ROUTES, "routes")] = Field(
        default_factory=list
    )
    salt: str = ""
    """Mixed into the hash of sessions: another salt draws anew who gets which drafter."""

    @property
    def drafters(self) -> dict[str, str]:
        """Return the drafters that are named, each with the field that names it first."""
        fields = {} if self.default is None else {self.default: "default"}
        for index, route in enumerate(self.cohorts):
            for name in route.shares:
                fields.setdefault(name, f"cohorts[{index}].shares.{name}")
        return fields

    def check(self, drafters: Collection[str]) -> None:
        """Raise InvalidRequest where a drafter is named that is not among `drafters`."""
        for name, field in self.drafters.items():
            if name not in drafters:
                listed = ", ".join(drafters) or "none: no drafter is loaded"
                raise InvalidRequest(field, name, f"one of: {listed}")

    def choose(self, key: RouteKey | None) -> Routed:
        """Return the drafter of a request; one without a key gets the default."""
        for index, route in enumerate(self.cohorts if key else ()):
            assert key is not None
            if key.cohort.matches(route.match.parts):
                return Routed(route.drafter_of(key.session, self.salt), route.reason(index))
        return Routed(self.default, DEFAULT)


def drawn(*texts: str) -> float:
    """Return a number above 0 and below 1 that is spread evenly and always the same for `texts`."""
    digest = hashlib.blake2b(digest_size=8)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(encoded), encoded))
    return (int.from_bytes(digest.digest(), "little") + 0.5) / 2**64

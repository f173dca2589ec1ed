"""A client of the API with which a running server loads, routes and retires drafters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import httpx

from paceline.bench.load.address import ServerAddress
from paceline.core import PacelineError

DRAFTERS, ROUTES = "/v1/drafters", "/v1/drafters/routes"
LOAD_SECONDS = 1800.0  # a large drafter comes from a slow disk
ASK_SECONDS = 30.0
WHOLE = 1.0  # the share of a drafter that gets all requests of a rule
NO_API = "the server has no API for drafters; it needs `paceline serve` of this version"
KEY_REMEDY = "give the server's admin key with --admin-key or PACELINE_ADMIN_KEY"
Json = dict[str, Any]  # an object that the server sends


class ServerRefused(PacelineError):
    """A server did not do what it was asked, or did not answer; `status` is its HTTP status, None
    where there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ServerDrafter:
    """A drafter of a server. `state` is "loading", "live" or "retiring"; `version` tells its
    weights from others and is None while it loads; `requests` is how many it drafts for now."""

    name: str
    version: str | None
    spec: str
    state: str
    requests: int
    weight_bytes: int
    kv_bytes: int

    @classmethod
    def of(cls, document: Json) -> Self:
        """Return the drafter of a server's answer."""
        return cls(**{name: document[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class RouteRule:
    """The requests that have these parts of a cohort, and the share of them that each drafter
    gets; the shares add up to 1. `why` is part of the reason that these requests get."""

    match: Mapping[str, str]
    shares: Mapping[str, float]
    why: str = ""

    @classmethod
    def of(cls, document: Json) -> Self:
        """Return the rule of a server's answer, in which parts that may be anything are null."""
        match = {part: value for part, value in document["match"].items() if value is not None}
        return cls(match, document["shares"], document.get("why") or "")

    def as_json(self) -> Json:
        """Return the rule as the server takes it."""
        why = {"why": self.why} if self.why else {}
        return {"match": dict(self.match), "shares": dict(self.shares), **why}


@dataclass(frozen=True, slots=True)
class DrafterRoutes:
    """Which drafter a request gets: that of the first rule that matches, else the default. The
    salt is part of the hash that places a request in the shares of a rule."""

    default: str | None = None
    cohorts: tuple[RouteRule, ...] = ()
    salt: str = ""

    @classmethod
    def of(cls, document: Json) -> Self:
        """Return the routes of a server's answer."""
        rules = [RouteRule.of(rule) for rule in document["cohorts"]]
        return cls(document["default"], tuple(rules), document.get("salt") or "")

    def as_json(self) -> Json:
        """Return the routes as the server takes them."""
        return {
            "default": self.default,
            "cohorts": [rule.as_json() for rule in self.cohorts],
            "salt": self.salt,
        }

    def in_words(self) -> str:
        """Return the routes for people: the shares of each rule, and who has all other requests."""
        rules = [
            f"{', '.join(f'{part}={value}' for part, value in rule.match.items()) or 'others'}: "
            + ", ".join(f"{share:.4g} {name}" for name, share in rule.shares.items())
            for rule in self.cohorts
        ]
        return "; ".join([*rules, f"all others: {self.default or 'nobody'}"])

    def serving(self, name: str, match: Mapping[str, str]) -> DrafterRoutes:
        """Return the routes with a drafter for all requests of a cohort; {} is the default."""
        if not match:
            return replace(self, default=name)
        rule = RouteRule(match, {name: WHOLE})
        places = [place for place, old in enumerate(self.cohorts) if old.match == match]
        if not places:  # before the rules that were there: the first that matches counts
            return replace(self, cohorts=(rule, *self.cohorts))
        rules = list(self.cohorts)
        rules[places[0]] = rule
        return replace(self, cohorts=tuple(rules))

    def without_cohort(self, match: Mapping[str, str]) -> DrafterRoutes:
        """Return the routes without the rule of a cohort."""
        rules = tuple(rule for rule in self.cohorts if rule.match != match)
        return replace(self, cohorts=rules)

    def without(self, name: str) -> DrafterRoutes:
        """Return the routes without a drafter that is not their default: what it had goes to the
        others of its rule, and a rule that was its alone goes."""
        rules = []
        for rule in self.cohorts:
            shares = {other: share for other, share in rule.shares.items() if other != name}
            total = sum(shares.values())
            if shares.keys() == rule.shares.keys():
                rules.append(rule)
            elif total > 0:
                shares = {other: share / total for other, share in shares.items()}
                rules.append(replace(rule, shares=shares))
        return replace(self, cohorts=tuple(rules))


@dataclass(frozen=True, slots=True)
class ServerDrafters:
    """The drafters of a server, by name, its routes, and whether drafters can look answers up in a
    corpus there."""

    drafters: Mapping[str, ServerDrafter]
    routes: DrafterRoutes
    takes_corpora: bool


@dataclass(frozen=True, slots=True)
class DrafterClient:
    """A client of one server. Every method raises ServerRefused where the server is not there or
    refuses, with what it said and what to do."""

    address: ServerAddress
    admin_key: str | None = field(default=None, repr=False)
    transport: httpx.BaseTransport | None = None

    @classmethod
    def connect(cls, url: str, admin_key: str | None = None) -> Self:
        """Return a client of the server at `url`. Raises InvalidRequest for what is no address."""
        address = ServerAddress.parse(url)
        return cls(address, admin_key, address.transport())

    def drafters(self) -> ServerDrafters:
        """Return what the server has loaded, and its routes."""
        answer = self._ask("GET", DRAFTERS)
        try:
            loaded = [ServerDrafter.of(each) for each in answer["drafters"]]
            routes = DrafterRoutes.of(answer["routes"])
            takes_corpora = bool(answer["takes_corpora"])
        except (KeyError, TypeError) as error:
            raise ServerRefused(f"{self.address.shown}{DRAFTERS}: no {error} in it") from None
        return ServerDrafters({drafter.name: drafter for drafter in loaded}, routes, takes_corpora)

    def load(self, name: str, spec: str) -> None:
        """Load a drafter beside the others; return when requests can be routed to it."""
        self._ask("POST", DRAFTERS, {"name": name, "spec": spec}, LOAD_SECONDS)

    def retire(self, name: str) -> bool:
        """Have a drafter leave when its last request has ended. Return whether it has left."""
        return bool(self._send("DELETE", f"{DRAFTERS}/{name}").status_code != 202)

    def set_routes(self, routes: DrafterRoutes) -> None:
        """Replace the routes. Requests that run keep their drafter."""
        self._ask("PUT", ROUTES, routes.as_json())

    def _ask(
        self, method: str, path: str, body: Json | None = None, seconds: float = ASK_SECONDS
    ) -> Json:
        response = self._send(method, path, body, seconds)
        try:
            answer: Json = response.json()
        except ValueError:
            raise ServerRefused(f"{self.address.shown}{path}: the answer is no JSON") from None
        return answer

    def _send(
        self, method: str, path: str, body: Json | None = None, seconds: float = ASK_SECONDS
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.admin_key}"} if self.admin_key else {}
        client = httpx.Client(
            base_url=self.address.base_url,
            transport=self.transport,
            headers=headers,
            timeout=httpx.Timeout(seconds, connect=10),
            trust_env=False,  # a proxy for the internet must not stand between us and the server
        )
        try:
            response = client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ServerRefused(f"no server at {self.address.shown}: {error}") from error
        if response.is_success:
            return response
        raise ServerRefused(self._refusal(response), response.status_code)

    def _refusal(self, response: httpx.Response) -> str:
        text = self.address.refusal(response).partition("; set PACELINE_API_KEY")[0]
        if response.status_code == 401:
            return f"{text}; {KEY_REMEDY}"
        if response.status_code in (404, 405) and response.url.path in (DRAFTERS, ROUTES):
            return f"{text}; {NO_API}"
        return text

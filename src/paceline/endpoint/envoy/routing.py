"""Envoy's routes: which cluster of replicas a request goes to, by its headers and its session.

Envoy draws a session's place with a hash of the session's header and the salt, and walks through
the shares in the order of their names. So a session keeps its drafter while the shares stay, and of
two drafters the one whose share grows takes sessions over without giving any away.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from paceline.core.cohorts import NONE
from paceline.endpoint.description import EndpointDescription
from paceline.engine.routes import CohortMatch, Routes

Json = dict[str, Any]
TYPES = "type.googleapis.com/"
ROUTES = "routes"  # the name of the route configuration
CLUSTER_PREFIX = "drafter-"  # before a drafter's name, in the name of its cluster
PARTS = 1_000_000  # that shares are counted in
HEADERS = {"app": "X-Paceline-App", "region": "X-Paceline-Region"}  # of a cohort's parts
DRAFTER_HEADER, ROUTE_HEADER = "x-paceline-drafter", "x-paceline-route"  # of answers
REQUEST_ID = "x-request-id"
RETRIES = 3
# Each of these comes before any byte of the answer, and Envoy retries nothing after the first.
RETRIED = "connect-failure,refused-stream,reset"
NOBODY = "no replica serves here at the moment"


def cluster_name(drafter: str) -> str:
    return CLUSTER_PREFIX + drafter


def route_configuration(description: EndpointDescription) -> Json:
    """Return Envoy's RouteConfiguration for the routes of an endpoint."""
    routes = description.routes
    rules = _unrouted() if routes is None else _rules(description, routes)
    return {
        "@type": f"{TYPES}envoy.config.route.v3.RouteConfiguration",
        "name": ROUTES,
        "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": rules}],
    }


def _unrouted() -> list[Json]:
    answer = {"status": 503, "body": {"inline_string": NOBODY}}
    return [{"match": {"prefix": "/"}, "direct_response": answer}]


def _rules(description: EndpointDescription, routes: Routes) -> list[Json]:
    assert routes.default is not None  # as the description has checked
    rules = [
        _rule(description, route.reason(index), _headers(route.match), route.shares, routes.salt)
        for index, route in enumerate(routes.cohorts)
    ]
    rules.append(_rule(description, "default", [], {routes.default: 1.0}, routes.salt))
    return rules


def _rule(
    description: EndpointDescription,
    name: str,
    headers: list[Json],
    shares: Mapping[str, float],
    salt: str,
) -> Json:
    """Return the rule that sends requests with `headers` to the clusters of `shares`. A drafter
    that has failed keeps its place in the row, so that nobody else's sessions move."""
    standins = description.standins
    clusters = [
        {"name": cluster_name(standins.get(drafter, drafter)), "weight": weight}
        for drafter, weight in weights(shares).items()
    ]
    shown = {
        DRAFTER_HEADER: "%UPSTREAM_METADATA(paceline:drafter)%",
        ROUTE_HEADER: name.replace("%", "%%"),
    }
    return {
        "name": name,
        "match": {"prefix": "/", "headers": headers},
        "route": {
            "weighted_clusters": {"clusters": clusters, "use_hash_policy": True},
            "hash_policy": [_hashed(description.session_header, salt), _hashed(REQUEST_ID, salt)],
            "timeout": "0s",  # an answer may take any time; `idle` bounds silence
            "retry_policy": _retries(),
        },
        "response_headers_to_add": [
            {
                "header": {"key": key, "value": value},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
            for key, value in shown.items()
        ],
    }


def weights(shares: Mapping[str, float]) -> dict[str, int]:
    """Return shares in whole parts of PARTS, in the order of their names; those of 0 have 0. The
    borders between drafters are rounded, so that the parts always add up."""
    names, total, borders = sorted(shares), sum(shares.values()), [0]
    reached = 0.0
    for name in names:
        reached += shares[name]
        borders.append(round(PARTS * reached / total))
    return {name: high - low for name, (low, high) in zip(names, pairwise(borders), strict=True)}


def _headers(match: CohortMatch) -> list[Json]:
    """Return what a cohort's parts ask of the headers: `none` is a request that names none."""
    return [
        {"name": HEADERS[part], "present_match": False}
        if value == NONE
        else {"name": HEADERS[part], "string_match": {"exact": value}}
        for part, value in match.parts.items()
        if part in HEADERS
    ]


def _hashed(header: str, salt: str) -> Json:
    """Return a policy that hashes a header and the salt; where it is there, no later one counts."""
    policy: Json = {"header_name": header}
    if salt:
        rewrite = salt.replace("\\", "\\\\")  # `\\1` would stand for a group
        policy["regex_rewrite"] = {"pattern": {"regex": "^"}, "substitution": f"{rewrite}:"}
    return {"header": policy, "terminal": True}


def _retries() -> Json:
    return {
        "retry_on": RETRIED,
        "num_retries": RETRIES,
        "host_selection_retry_max_attempts": RETRIES,
        "retry_priority": {
            "name": "another priority",
            "typed_config": {
                "@type": f"{TYPES}envoy.extensions.retry.priority.previous_priorities.v3."
                "PreviousPrioritiesConfig",
                "update_frequency": 1,
            },
        },
        "retry_host_predicate": [
            {
                "name": "another replica",
                "typed_config": {
                    "@type": f"{TYPES}envoy.extensions.retry.host.previous_hosts.v3."
                    "PreviousHostsPredicate"
                },
            }
        ],
    }

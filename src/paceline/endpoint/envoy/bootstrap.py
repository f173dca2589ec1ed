"""Envoy's bootstrap: the listener, the admin interface, and where clusters and routes come from."""

from __future__ import annotations

from pathlib import Path

from paceline.endpoint.description import EndpointDescription, EndpointSettings
from paceline.endpoint.envoy.clusters import cluster, endpoints, socket_address
from paceline.endpoint.envoy.routing import ROUTES, TYPES, Json, route_configuration
from paceline.endpoint.envoy.taps import tap_cluster, tap_filter

ADMIN = "admin.sock"  # in the folder that Envoy runs in
BUFFERED_BYTES = 4 * 2**20  # of a request that is kept for a retry; more is sent once


def bootstrap(settings: EndpointSettings, clusters: Path, routes: Path) -> Json:
    """Return the configuration that Envoy starts with: clusters and routes come from two files,
    which Envoy reads anew whenever another file is moved to their place."""
    source = {"rds": {"route_config_name": ROUTES, "config_source": watched(routes)}}
    return {
        **_base(settings, source),
        "dynamic_resources": {"cds_config": watched(clusters)},
    }


def whole(description: EndpointDescription) -> Json:
    """Return the same endpoint as one configuration without further files, which Envoy can check
    offline."""
    configuration = _base(description, {"route_config": _plain(route_configuration(description))})
    configuration["static_resources"]["clusters"] += [
        _plain(
            cluster(
                description,
                drafter,
                {"type": "STATIC", "load_assignment": _plain(endpoints(description, drafter))},
            )
        )
        for drafter in description.names
    ]
    return configuration


def watched(path: Path) -> Json:
    return {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}


def _base(settings: EndpointSettings, routes: Json) -> Json:
    return {
        "node": {"id": "paceline", "cluster": "paceline"},
        "admin": {"address": {"pipe": {"path": ADMIN, "mode": 0o600}}},
        "static_resources": {
            "listeners": [
                {
                    "name": "requests",
                    "address": socket_address(*settings.address),
                    "per_connection_buffer_limit_bytes": BUFFERED_BYTES,
                    "filter_chains": [{"filters": [_http(settings, routes)]}],
                }
            ],
            "clusters": [] if settings.traces is None else [tap_cluster()],
        },
    }


def _http(settings: EndpointSettings, routes: Json) -> Json:
    router = {"@type": f"{TYPES}envoy.extensions.filters.http.router.v3.Router"}
    traces = settings.traces
    taps = [] if traces is None else [tap_filter(traces, settings.session_header)]
    return {
        "name": "http",
        "typed_config": {
            "@type": f"{TYPES}envoy.extensions.filters.network.http_connection_manager.v3."
            "HttpConnectionManager",
            "stat_prefix": "requests",
            **routes,
            "preserve_external_request_id": True,
            "stream_idle_timeout": f"{settings.times.idle:g}s",
            "http_filters": [*taps, {"name": "router", "typed_config": router}],
        },
    }


def _plain(resource: Json) -> Json:
    """Return a resource without its type, as it stands within another message."""
    return {key: value for key, value in resource.items() if key != "@type"}

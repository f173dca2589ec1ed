"""The part of Envoy's configuration that hands copies of answers to the controller."""

from __future__ import annotations

from importlib.resources import files

from paceline.endpoint.description import EndpointTraces
from paceline.endpoint.envoy.routing import TYPES, Json

SOCKET = "taps.sock"  # in the folder that Envoy runs in
CLUSTER = "taps"
AT_ONCE = 32  # copies on their way, each of 1.3 MB at most; more are dropped


def tap_filter(traces: EndpointTraces, session_header: str) -> Json:
    """Return the filter that runs taps.lua on each request and its answer."""
    script = files("paceline.endpoint.envoy").joinpath("taps.lua").read_text("utf-8")
    places = {
        "@CONSENT@": ", ".join(f'["{app}"] = true' for app in sorted(traces.tokens)),
        "@SHARE@": repr(traces.sample),
        "@SESSION@": session_header.lower(),
    }
    for place, text in places.items():
        script = script.replace(place, text)
    return {
        "name": "taps",
        "typed_config": {
            "@type": f"{TYPES}envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": script},
        },
    }


def tap_cluster() -> Json:
    """Return the cluster of the controller's socket."""
    bounds = {
        "max_connections": 4,
        "max_pending_requests": AT_ONCE,
        "max_requests": AT_ONCE,
        "max_retries": 0,
    }
    endpoint = {"endpoint": {"address": {"pipe": {"path": SOCKET}}}}
    return {
        "name": CLUSTER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
        "circuit_breakers": {"thresholds": [bounds]},
    }

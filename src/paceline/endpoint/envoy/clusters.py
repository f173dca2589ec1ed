"""Envoy's clusters: the replicas of each drafter, and those that serve while all of these fail."""

from __future__ import annotations

from paceline.endpoint.description import EndpointDescription, ReplicaDescription
from paceline.endpoint.envoy.routing import TYPES, Json, cluster_name

MANY = 100_000  # connections and requests: the engines have queues, and bounds of their own
RETRIES_AT_ONCE = 1_000
EJECTED_SECONDS = 5
# One healthy replica in a hundred may take all requests of its priority; the next priority is for
# when there is none.
OVERPROVISIONED = 10_000


def endpoints(description: EndpointDescription, drafter: str) -> Json:
    """Return Envoy's ClusterLoadAssignment of a drafter: first its replicas, then, for when none of
    them is healthy, those of the others."""
    replicas = [replica for replica in description.replicas if replica.name == drafter]
    others = [
        replica for replica in description.replicas if replica.name != drafter and replica.fallback
    ]
    priorities = [replicas, others] if others else [replicas]
    return {
        "@type": f"{TYPES}envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": cluster_name(drafter),
        "endpoints": [
            {"priority": priority, "lb_endpoints": [_host(replica) for replica in members]}
            for priority, members in enumerate(priorities)
        ],
        "policy": {"overprovisioning_factor": OVERPROVISIONED},
    }


def cluster(description: EndpointDescription, drafter: str, source: Json) -> Json:
    """Return Envoy's Cluster of a drafter. `source` says where its endpoints are."""
    times = description.times
    return {
        "@type": f"{TYPES}envoy.config.cluster.v3.Cluster",
        "name": cluster_name(drafter),
        **source,
        "lb_policy": "LEAST_REQUEST",
        "connect_timeout": f"{times.connect:g}s",
        "health_checks": [
            {
                "http_health_check": {"path": description.health_path},
                "timeout": f"{times.health:g}s",
                "interval": f"{times.health_every:g}s",
                "no_traffic_interval": f"{times.health_every:g}s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
            }
        ],
        # A connection that fails ejects at once; an engine's 500 may be the request's fault.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_local_origin_success_rate": 0,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "interval": "1s",
            "base_ejection_time": f"{EJECTED_SECONDS}s",
            "max_ejection_percent": 100,
        },
        # Where no replica at all is healthy, requests try their luck with all of them.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": MANY,
                    "max_pending_requests": MANY,
                    "max_requests": MANY,
                    "max_retries": RETRIES_AT_ONCE,
                }
            ]
        },
    }


def socket_address(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}


def _host(replica: ReplicaDescription) -> Json:
    return {
        "endpoint": {"address": socket_address(*replica.address)},
        "metadata": {"filter_metadata": {"paceline": {"drafter": replica.name}}},
    }

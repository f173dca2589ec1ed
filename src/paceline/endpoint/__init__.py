"""Replicas of engines behind Envoy: how a drafter is replaced where the engine cannot load one.

Envoy is the data plane, and no byte of a request goes through Paceline: it writes Envoy's files
(`envoy/`), starts and ends the engines (`replicas.py`), and watches both. This is the first slice
of what will serve regions.
"""

from __future__ import annotations

from paceline.endpoint.description import EndpointDescription, ManagedEndpoint, ReplicaDescription
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.replicas import DrafterReplicas, ServedReplica

__all__ = [
    "DrafterReplicas",
    "EndpointDescription",
    "EndpointError",
    "ManagedEndpoint",
    "ReplicaDescription",
    "ServedReplica",
]

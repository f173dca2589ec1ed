"""The files that a running Envoy watches, and what it says of those it has read.

    envoy/bootstrap.json          read once, when Envoy starts
    envoy/whole.json              the same endpoint in one file, which Envoy checks before anything
                                  else is written
    envoy/clusters.json           the drafters that have replicas
    envoy/endpoints-DRAFTER.json  the addresses of a drafter's replicas, and of those behind them
    envoy/routes.json             who gets which drafter

Envoy sees a file only when it is moved to its place, and refuses one that it cannot read; then the
file before it still counts.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.dataset.training_set import write_whole
from paceline.endpoint.description import EndpointDescription
from paceline.endpoint.envoy.admin import EnvoyAdmin
from paceline.endpoint.envoy.bootstrap import ADMIN, bootstrap, watched, whole
from paceline.endpoint.envoy.clusters import cluster, endpoints
from paceline.endpoint.envoy.program import find_envoy, validate
from paceline.endpoint.envoy.routing import (
    CLUSTER_PREFIX,
    ROUTES,
    Json,
    cluster_name,
    route_configuration,
)
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.unix_server import check_socket

BOOTSTRAP, WHOLE, CLUSTERS, ROUTE_FILE = (
    "bootstrap.json", "whole.json", "clusters.json", "routes.json",
)  # fmt: skip
TAKEN_SECONDS = 20.0  # until Envoy has read a file, and asked new replicas for their health
POLL_SECONDS = 0.01
CDS, RDS = "cluster_manager.cds", f"http.requests.rds.{ROUTES}"


class EnvoyFiles:
    """The files of one Envoy, in a folder that it runs in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        check_socket(self.folder / ADMIN)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.admin = EnvoyAdmin(self.folder / ADMIN)

    @property
    def bootstrap(self) -> Path:
        return self.folder / BOOTSTRAP

    def render(self, description: EndpointDescription) -> None:
        """Write all files, once Envoy has found that it can read them. Raises EndpointError."""
        self.check(description)
        self._write_endpoints(description)
        self._write_clusters(self._clusters(description))
        self._write_routes(description)
        clusters, routes = self.folder / CLUSTERS, self.folder / ROUTE_FILE
        write_json(self.bootstrap, bootstrap(description, clusters, routes))

    def apply(self, description: EndpointDescription) -> None:
        """Change what a running Envoy does, and return when it does so. Raises EndpointError where
        it refuses the change; it then serves as before.

        Clusters come before the routes that lead to them, and go after them.
        """
        self.check(description)
        endpoint_versions = self._write_endpoints(description)
        new, old = self._clusters(description), self._present(CLUSTERS)
        removed = {name: value for name, value in old.items() if name not in new}
        self._take({CDS: self._write_clusters({**removed, **new}), **endpoint_versions})
        self._await_clusters(list(new))
        self._take({RDS: self._write_routes(description)})
        if removed:
            self._take({CDS: self._write_clusters(new)})
            for name in removed:
                self._endpoint_file(name).unlink(missing_ok=True)

    def check(self, description: EndpointDescription) -> None:
        """Let Envoy read the endpoint as one configuration. Raises EndpointError."""
        write_json(self.folder / WHOLE, whole(description))
        validate(find_envoy(), self.folder / WHOLE)

    def _clusters(self, description: EndpointDescription) -> dict[str, Json]:
        return {
            cluster_name(drafter): cluster(
                description,
                drafter,
                {
                    "type": "EDS",
                    "eds_cluster_config": {
                        "eds_config": watched(self._endpoint_file(cluster_name(drafter)))
                    },
                },
            )
            for drafter in description.names
        }

    def _endpoint_file(self, cluster: str) -> Path:
        return self.folder / f"endpoints-{cluster.removeprefix(CLUSTER_PREFIX)}.json"

    def _write_endpoints(self, description: EndpointDescription) -> dict[str, str]:
        """Write the endpoints of each drafter; return Envoy's names of them with their versions."""
        return {
            f"cluster.{cluster_name(drafter)}": self._write(
                self._endpoint_file(cluster_name(drafter)).name, [endpoints(description, drafter)]
            )
            for drafter in description.names
        }

    def _write_clusters(self, clusters: Mapping[str, Json]) -> str:
        return self._write(CLUSTERS, list(clusters.values()))

    def _write_routes(self, description: EndpointDescription) -> str:
        return self._write(ROUTE_FILE, [route_configuration(description)])

    def _write(self, name: str, resources: Sequence[Json]) -> str:
        """Put a watched file in place, unless it says the same already. Return its version."""
        digest = hashlib.blake2b(json.dumps(resources).encode(), digest_size=8)
        version, path = digest.hexdigest(), self.folder / name
        if _version(path) != version:
            write_json(path, {"version_info": version, "resources": list(resources)})
        return version

    def _present(self, name: str) -> dict[str, Json]:
        """Return the resources of a watched file, by name."""
        try:
            value = json.loads((self.folder / name).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return {resource["name"]: resource for resource in value["resources"]}

    def _take(self, versions: Mapping[str, str]) -> None:
        """Wait until Envoy serves with these versions. Raises EndpointError."""
        end, missing = time.monotonic() + TAKEN_SECONDS, dict(versions)
        while missing:
            served = self.admin.versions()
            missing = {name: v for name, v in versions.items() if served.get(name) != v}
            if missing and time.monotonic() > end:
                reason = self.admin.refused() or "it gives no reason"
                raise EndpointError(f"Envoy does not take {', '.join(missing)}: {reason}")
            if missing:
                time.sleep(POLL_SECONDS)

    def _await_clusters(self, names: Sequence[str]) -> None:
        """Wait until Envoy has asked the replicas of each cluster for their health."""
        end = time.monotonic() + TAKEN_SECONDS
        while missing := set(names) - self.admin.clusters():
            if time.monotonic() > end:
                raise EndpointError(f"Envoy does not get ready for {', '.join(sorted(missing))}")
            time.sleep(POLL_SECONDS)


def write_json(path: Path, value: Json) -> None:
    """Put a file in place in one step."""
    write_whole(path, json.dumps(value, indent=1).encode() + b"\n")


def _version(path: Path) -> str | None:
    try:
        version: str = json.loads(path.read_text("utf-8"))["version_info"]
    except (OSError, ValueError, KeyError):
        return None
    return version

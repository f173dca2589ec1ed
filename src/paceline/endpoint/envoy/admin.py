"""Reads a running Envoy through its admin interface, a socket that only its owner can open."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx

from paceline.endpoint.errors import EndpointError

VERSION = re.compile(r'^(\S+)\.version_text: "(.*)"$', re.MULTILINE)

BROKEN = "upstream_cx_destroy_remote_with_active_rq"
ANSWER = re.compile(rf"cluster\.(.+)\.(upstream_rq_[245]xx|{BROKEN})")


class EnvoyAdmin:
    """The admin interface of the Envoy whose socket is at `path`."""

    def __init__(self, path: Path) -> None:
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://envoy", timeout=5
        )

    def is_ready(self) -> bool:
        """Return whether Envoy serves: its replicas are known, and it listens."""
        try:
            return self._http.get("/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def versions(self) -> dict[str, str]:
        """Return the version that Envoy has taken of each watched file, by Envoy's name of it."""
        text = self._get("/stats?filter=version_text").text
        return {name: version for name, version in VERSION.findall(text) if version}

    def clusters(self) -> set[str]:
        """Return the clusters that requests can be sent to."""
        listed: list[dict[str, Any]] = (
            self._get("/clusters?format=json").json().get("cluster_statuses", [])
        )
        return {cluster["name"] for cluster in listed}

    def active_requests(self) -> dict[int, int]:
        """Return the requests that replicas are answering, by the port of the replica. A replica
        stands in several clusters, which are counted together."""
        counts: dict[int, int] = {}
        for cluster in self._get("/clusters?format=json").json().get("cluster_statuses", []):
            for host in cluster.get("host_statuses", []):
                if "socket_address" not in host["address"]:
                    continue  # the socket of the taps
                port = host["address"]["socket_address"]["port_value"]
                stats = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
                counts[port] = counts.get(port, 0) + stats.get("rq_active", 0)
        return counts

    def answer_counts(self) -> dict[str, dict[str, int]]:
        """Return how each cluster's requests have ended: by class of their status, and `broken`
        where the connection ended under them."""
        listed = self._get("/stats?format=json&filter=^cluster").json()["stats"]
        counts: dict[str, dict[str, int]] = {}
        for stat in listed:
            if match := ANSWER.fullmatch(stat.get("name", "")):
                ended = "broken" if match[2] == BROKEN else match[2].removeprefix("upstream_rq_")
                counts.setdefault(match[1], {})[ended] = int(stat["value"])
        return counts

    def stop_listening(self) -> None:
        """Let Envoy take no more connections; open ones go on."""
        try:
            self._http.post("/drain_listeners").raise_for_status()
        except httpx.HTTPError as error:
            raise EndpointError(f"Envoy does not stop listening: {error}") from error

    def refused(self) -> str | None:
        """Return why Envoy refused the latest clusters or routes; None where it took them."""
        dump = self._get("/config_dump").json()
        reasons = [
            resource["error_state"]["details"]
            for config in dump.get("configs", [])
            for kind in ("dynamic_active_clusters", "dynamic_warming_clusters",
                         "dynamic_route_configs")
            for resource in config.get(kind, [])
            if "error_state" in resource
        ]  # fmt: skip
        return "; ".join(reasons) or None

    def _get(self, path: str) -> httpx.Response:
        try:
            response = self._http.get(path)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise EndpointError(f"Envoy's admin interface does not answer: {error}") from error
        return response

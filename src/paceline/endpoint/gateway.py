"""The Envoy of an endpoint: started once, found again, changed by its files, and started anew where
it has ended."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.endpoint.description import EndpointDescription
from paceline.endpoint.envoy.bootstrap import bootstrap
from paceline.endpoint.envoy.files import CLUSTERS, ROUTE_FILE, EnvoyFiles
from paceline.endpoint.envoy.program import find_envoy
from paceline.endpoint.envoy.routing import CLUSTER_PREFIX
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.processes import LastingProcess, ProcessLaunch
from paceline.engines.kind import LaunchPlan
from paceline.engines.process import check_port

GRACE_SECONDS = 10.0  # that Envoy gets to end
READY_SECONDS = 30.0
AGAIN_SECONDS = 2.0  # between two starts of an Envoy that ends by itself
POLL_SECONDS = 0.02


class EnvoyGateway:
    """The Envoy whose files lie in `folder`/envoy. `applied` is the endpoint that it serves, as far
    as this controller knows."""

    def __init__(self, folder: Path) -> None:
        self.process = LastingProcess(folder / "processes" / "envoy")
        self.files = EnvoyFiles(folder / "envoy")
        self.applied: EndpointDescription | None = None
        self._tried = 0.0

    def open(self, description: EndpointDescription) -> bool:
        """Start Envoy, or find the one that runs; return whether it was started. Raises
        InvalidRequest (field `listen`) for a port that is taken, and EndpointError."""
        if self.process.is_running():
            self.process.keep()
            self._check_bootstrap(description)
            self._await_ready()
            self.apply(description)
            return False
        host, port = description.address
        try:
            check_port(LaunchPlan("", host=host, port=port))
        except InvalidRequest as error:
            raise InvalidRequest("listen", description.listen, error.expected) from None
        self._start(description)
        self._await_ready()
        self.applied = description
        return True

    def keep(self, description: EndpointDescription) -> bool:
        """Bring Envoy to serve `description`, and start it anew where it has ended; return whether
        it was started. Raises EndpointError."""
        if not self.process.is_running():
            if time.monotonic() < self._tried + AGAIN_SECONDS:
                return False
            self._start(description)
            return True
        if description != self.applied and self.files.admin.is_ready():
            self.apply(description)
        return False

    def apply(self, description: EndpointDescription) -> None:
        """Change what Envoy does, and return when it does so. Raises EndpointError."""
        self.files.apply(description)
        self.applied = description

    def active_requests(self) -> dict[int, int]:
        """Return the requests that replicas are answering, by port; none of an Envoy that ended."""
        if not self.process.is_running():
            return {}
        return self.files.admin.active_requests()

    def answer_counts(self) -> dict[str, dict[str, int]]:
        """Return how each drafter's requests have ended, since Envoy started."""
        if not self.process.is_running():
            return {}
        counts = self.files.admin.answer_counts()
        return {
            name.removeprefix(CLUSTER_PREFIX): each
            for name, each in counts.items()
            if name.startswith(CLUSTER_PREFIX)
        }

    def close(self, seconds: float) -> None:
        """Take no more requests, wait `seconds` at most for the running ones, and end Envoy."""
        if not self.process.is_running():
            return
        with suppress(EndpointError):
            self.files.admin.stop_listening()
            end = time.monotonic() + seconds
            while sum(self.active_requests().values()) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
        self.process.stop(GRACE_SECONDS + 5)

    def _start(self, description: EndpointDescription) -> None:
        self._tried = time.monotonic()
        self.applied = None
        self.files.render(description)
        (self.files.folder / "admin.sock").unlink(missing_ok=True)
        command = [str(find_envoy()), "-c", str(self.files.bootstrap), "--disable-hot-restart",
                   "--log-level", "warning"]  # fmt: skip
        folder, alone = self.files.folder, description.times.alone
        self.process.start(ProcessLaunch(command, GRACE_SECONDS, folder=folder, alone=alone))

    def _await_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while not self.files.admin.is_ready():
            if not self.process.is_running():
                raise EndpointError(f"Envoy has ended.{self.process.tail()}")
            if time.monotonic() > end:
                raise EndpointError(f"Envoy is not ready after {READY_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _check_bootstrap(self, description: EndpointDescription) -> None:
        """Raise EndpointError where Envoy was started with settings that it cannot change."""
        folder = self.files.folder
        wanted = bootstrap(description, folder / CLUSTERS, folder / ROUTE_FILE)
        try:
            present = json.loads(self.files.bootstrap.read_text("utf-8"))
        except (OSError, ValueError):
            present = None
        if present != wanted:
            raise EndpointError(
                "Envoy runs with another `listen`, `times.idle` or `traces`, which it reads at its "
                "start only: end the endpoint, and start it again"
            )

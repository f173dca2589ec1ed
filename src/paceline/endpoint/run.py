"""A running endpoint: its replicas and Envoy, and the API by which it is steered."""

from __future__ import annotations

from collections.abc import Callable

from paceline.autospec.server_client import DrafterRoutes
from paceline.autospec.serving import FAILED
from paceline.core import InvalidRequest
from paceline.endpoint.description import ManagedEndpoint
from paceline.endpoint.metrics import MetricsServer
from paceline.endpoint.place import EndpointPlace
from paceline.endpoint.replicas import DrafterReplicas
from paceline.endpoint.state import EndpointEvent
from paceline.endpoint.steering import ReplicaSteering


class RunningEndpoint:
    """An endpoint that this process steers, from construction to end().

    Raises InvalidRequest and EndpointError, as DrafterReplicas does.
    """

    def __init__(
        self,
        place: EndpointPlace,
        endpoint: ManagedEndpoint,
        on_event: Callable[[EndpointEvent], None] | None = None,
    ) -> None:
        self.replicas = DrafterReplicas(place.folder, endpoint, on_event)
        place.note(endpoint)
        self._steering = ReplicaSteering(self.replicas)
        try:
            listen = endpoint.metrics
            self._metrics = None if listen is None else MetricsServer(listen, self.replicas)
        except InvalidRequest:
            self._steering.close()
            self.replicas.close()
            raise

    def begin(self) -> None:
        """Start what has ended while nobody looked, and the first replica of a new endpoint; return
        when they are ready. Raises DrafterRefused."""
        there, first = self.replicas.loaded(), self.replicas.endpoint.first
        for name, replica in there.items():
            if replica.state == FAILED:
                self.replicas.load(name, replica.spec)
        if not there and first is not None:
            name, spec = first
            self.replicas.load(name, spec)
            self.replicas.route(DrafterRoutes(name))

    def loading(self) -> dict[str, str]:
        """Return what the logs of loading replicas tell, by name."""
        loading = [each.name for each in self.replicas.loaded().values() if each.state == "loading"]
        return {name: self.replicas.progress(name) or "starting" for name in loading}

    def end(self, seconds: float) -> None:
        """End everything; running requests get `seconds`."""
        self._steering.close()
        if self._metrics is not None:
            self._metrics.close()
        self.replicas.down(seconds)

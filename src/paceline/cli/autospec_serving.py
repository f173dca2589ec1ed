"""What `paceline autospec run` steers: a server, or the replicas of an endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core import InvalidRequest, PacelineError

if TYPE_CHECKING:
    from paceline.autospec.server_client import DrafterClient

ENDPOINT_HELP = (
    "in place of a server: the endpoint whose replicas it starts and routes to, by the file that "
    "`paceline endpoint up` got, or its folder"
)


def steered_client(
    server: str | None, endpoint: str | None, admin_key: str | None = None
) -> DrafterClient:
    """Return a client of a server, or of a running endpoint: both have the same API. Raises
    InvalidRequest, and PacelineError for an endpoint that nobody has started."""
    from paceline.autospec.server_client import DrafterClient
    from paceline.endpoint.place import EndpointPlace

    if (server is None) == (endpoint is None):
        raise InvalidRequest("server", server, "a server's address, or --endpoint, and not both")
    if server is not None:
        try:
            return DrafterClient.connect(server, admin_key)
        except InvalidRequest as error:
            raise InvalidRequest("server", server, error.expected) from None
    assert endpoint is not None
    if admin_key is not None:
        raise InvalidRequest("admin_key", "<hidden>", "none: only its owner can open an endpoint")
    place = EndpointPlace.of(endpoint)
    place.endpoint()
    if place.controller() is None:
        raise PacelineError(
            f"nobody steers the endpoint in {place.folder}: run `paceline endpoint up` first, and "
            "leave it running"
        )
    return DrafterClient.connect(place.address)

"""The socket that a server listens on, and what can be checked before a model is loaded.

It imports little, so that what is wrong shows at once.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import ssl
import sys

from paceline.core import InvalidRequest, PacelineError
from paceline.server.settings import ServerSettings
from paceline.server.unix_socket import UnixSocket

EVERYWHERE = ("0.0.0.0", "::", "")
MOST = 1024  # connections by default: three times the requests that a default queue takes
RESERVE = 32  # open files that are kept for the server itself, and for clients that get a refusal


def bind(settings: ServerSettings) -> socket.socket:
    """Take the port or the Unix socket, and refuse connections until the server is up.

    Call it before a model is loaded, so that a port in use is noticed at once.

    Raises PacelineError naming host and port, or the path; InvalidRequest, which is one, for a port
    that this process may not take.
    """
    if settings.uds is not None:
        return UnixSocket(settings.uds)
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PacelineError(f"cannot listen on host {host!r}: {error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        told = f"cannot listen on port {port} of {host}:"
        if error.errno == errno.EADDRINUSE:  # perhaps not for long: another start may go well
            reason = "it is in use; choose another port, or 0 for any free one"
            raise PacelineError(f"{told} {reason}") from None
        message = f"{told} {error.strerror}"
        raise InvalidRequest("port", port, "a port that is free", message) from None
    return sock


def url_of(sock: socket.socket, settings: ServerSettings) -> str:
    """Return the URL under which a client on this machine reaches the server."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    scheme = "https" if settings.ssl_certfile else "http"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def announcement(url: str, settings: ServerSettings) -> str:
    """Say where the server is reached, and from where."""
    if settings.uds is not None:
        return f"Paceline is serving at {url}"
    said = f"Paceline is serving at {url}/ (its web page) and {url}/v1"
    if settings.on_loopback:
        return said
    everywhere = settings.host in EVERYWHERE
    reach = "every network that this machine is on" if everywhere else "other machines"
    return f"{said}, reachable from {reach} (--host {settings.host})"


def check_certificate(settings: ServerSettings) -> None:
    """Raise InvalidRequest where the server could not speak HTTPS with its certificate."""
    if settings.ssl_certfile is None:
        return
    files = {"ssl_certfile": settings.ssl_certfile, "ssl_keyfile": settings.ssl_keyfile}
    for field, path in files.items():
        if path is not None and not os.access(path, os.R_OK):
            raise InvalidRequest(field, path, "a file that can be read")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, _no_password)
    except (ssl.SSLError, OSError) as error:
        expected = f"a certificate chain and its private key, both PEM ({error})"
        raise InvalidRequest("ssl_certfile", settings.ssl_certfile, expected) from None


def _no_password() -> str:
    raise OSError("the key has a password; store it without one")


def connection_bound(settings: ServerSettings) -> int:
    """Return how many connections may be open, so that files remain for the server itself.

    Raises InvalidRequest naming max_connections when it is more than the process may open, and
    PacelineError when no connection is left.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = sys.maxsize if limit == resource.RLIM_INFINITY else limit
    most = limit - len(os.listdir("/dev/fd")) - RESERVE
    if most < 1:
        raise PacelineError(
            f"the limit of {limit} open files (ulimit -n) leaves none for connections; raise it"
        )
    wanted = settings.max_connections
    if wanted is not None and wanted > most:
        expected = f"at most {most} under the limit of {limit} open files (ulimit -n)"
        raise InvalidRequest("max_connections", wanted, expected)
    return wanted if wanted is not None else min(most, MOST)

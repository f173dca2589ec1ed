"""The metrics of an endpoint, in one scrape: what Envoy counted for each drafter, and the metrics
of every replica, with its drafter's name as the label `replica`.

A canary is judged by them: a version of a drafter is a replica here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx

from paceline.core import InvalidRequest
from paceline.endpoint.description import split_listen
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.replicas import DrafterReplicas, ServedReplica
from paceline.endpoint.unix_server import QuietHandler

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SCRAPE_SECONDS = 5.0
AT_ONCE = 8  # replicas that are asked
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(.+)$")
ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
Labels = Mapping[str, str]
Families = dict[str, list[str]]  # the lines of each metric, comments first

REQUESTS, BROKEN = "paceline:endpoint_requests_total", "paceline:endpoint_broken_total"
STATES, ACTIVE = "paceline:endpoint_replica", "paceline:endpoint_active_requests"
HELP = {
    REQUESTS: ("counter", "Answers of each replica, by class of their status."),
    BROKEN: ("counter", "Connections that broke off under a request."),
    STATES: ("gauge", "1 for the state that each replica is in."),
    ACTIVE: ("gauge", "Requests that each replica is answering."),
}
CODES = ("2xx", "4xx", "5xx")


class MetricsServer:
    """Answers GET /metrics at an address until close(). Raises InvalidRequest (field `metrics`) for
    one that is taken."""

    def __init__(self, listen: str, replicas: DrafterReplicas) -> None:
        try:
            address = split_listen(listen)
            self._server = ThreadingHTTPServer(address, _handler(lambda: rendered(replicas)))
        except OSError as error:
            raise InvalidRequest("metrics", listen, f"a free address ({error.strerror})") from None
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def rendered(replicas: DrafterReplicas) -> str:
    """Return the text that Prometheus scrapes. A replica that does not answer is left out."""
    there = replicas.loaded()
    families: Families = {}
    _add_own(families, there, replicas.answer_counts())
    ready = [each for each in there.values() if each.state in ("live", "retiring")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for replica, text in zip(ready, pool.map(_scraped, ready), strict=True):
            add_labelled(families, text, {"replica": replica.name})
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def add_labelled(families: Families, text: str, labels: Labels) -> None:
    """Add the metrics of a text with further labels. Lines of one metric stay together, and its
    comments come once."""
    name, known = "", set[str]()
    for line in text.splitlines():
        words = line.split(maxsplit=3)
        if line.startswith("#"):
            if len(words) < 3 or words[1] not in ("HELP", "TYPE"):
                continue
            if words[2] != name:
                name = words[2]
                known = {each for each in families.get(name, ()) if each.startswith("#")}
            if not any(each.split(maxsplit=3)[:3] == words[:3] for each in known):
                families.setdefault(name, []).append(line)
        elif match := SAMPLE.match(line):
            stated = f",{match[2]}" if match[2] else ""
            family = name if name and match[1].startswith(name) else match[1]
            families.setdefault(family, []).append(
                f"{match[1]}{{{_shown(labels)}{stated}}} {match[3]}"
            )


def _add_own(
    families: Families, there: Mapping[str, ServedReplica], counts: Mapping[str, Mapping[str, int]]
) -> None:
    for name, (kind, text) in HELP.items():
        families[name] = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for name, of_it in counts.items():
        for code in CODES:
            _sample(families, REQUESTS, {"replica": name, "code": code}, of_it.get(code, 0))
        _sample(families, BROKEN, {"replica": name}, of_it.get("broken", 0))
    for name, replica in there.items():
        _sample(families, STATES, {"replica": name, "state": replica.state}, 1)
        _sample(families, ACTIVE, {"replica": name}, replica.requests)


def _sample(families: Families, name: str, labels: Labels, value: float) -> None:
    families[name].append(f"{name}{{{_shown(labels)}}} {value}")


def _shown(labels: Labels) -> str:
    return ",".join(
        f'{name}="{"".join(ESCAPED.get(letter, letter) for letter in value)}"'
        for name, value in labels.items()
    )


def _scraped(replica: ServedReplica) -> str:
    try:
        answer = httpx.get(f"{replica.url}/metrics", timeout=SCRAPE_SECONDS, trust_env=False)
    except httpx.HTTPError:
        return ""
    return answer.text if answer.is_success else ""


def _handler(render: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class MetricsHandler(QuietHandler):
        def do_GET(self) -> None:
            try:
                status, text = (200, render()) if self.path == PATH else (404, "")
            except EndpointError as error:
                status, text = 503, f"{error}\n"
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return MetricsHandler

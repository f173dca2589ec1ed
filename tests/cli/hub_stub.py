"""A hub on this machine: what huggingface_hub asks of one for single files, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.engines.listening import listening

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StubHub:
    """Serves the config.json of `configs`, by hub id; None for a repository that has none. Ids in
    `gated` are refused without `token`. `asked` are the paths of all requests."""

    def __init__(
        self, configs: Mapping[str, Mapping[str, Any] | None], gated: str = "", token: str = ""
    ) -> None:
        self.configs, self.gated, self.token = configs, gated, token
        self.asked: list[str] = []

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        repository, _, file = path.strip("/").partition("/resolve/")
        if repository not in self.configs:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if repository == self.gated and authorization != f"Bearer {self.token}":
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        config = self.configs[repository]
        if config is None or file.partition("/")[2] != "config.json":
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
        body = json.dumps(config).encode()
        return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{sha1(body).hexdigest()}"'}, body


@contextmanager
def serving(hub: StubHub) -> Iterator[str]:
    """Run the hub and give its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with listening(Handler) as url:
        yield url

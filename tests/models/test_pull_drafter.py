"""A public drafter is pulled from a hub, which is a stand-in on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.engines.listening import listening

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/drafter"
FILES = {
    "config.json": json.dumps({"architectures": ["DFlashDraftModel"]}).encode(),
    "model.safetensors": bytes(range(256)) * 64,
    "provenance.json": b"{}",
    "README.md": b"# not needed to serve it",
}


def listed(name: str) -> dict[str, Any]:
    """Return what the hub says of a file; of a large one it has the SHA-256."""
    digest, size = hashlib.sha256(FILES[name]).hexdigest(), len(FILES[name])
    large = {"lfs": {"oid": digest, "size": size, "pointerSize": 130}}
    about = {"type": "file", "path": name, "size": size, "oid": digest[:40]}
    return about | (large if name.endswith(".safetensors") else {})


def pull(tmp_path: Path, files: dict[str, bytes | None], named: str = REPOSITORY) -> Any:
    """Run `paceline pull` in a process of its own: huggingface_hub reads HF_ENDPOINT once. The hub
    lists FILES with their digests, and sends `files`; None is a file that it has no more."""

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            file = path.rpartition("/")[2]
            if path.startswith(f"/api/models/{REPOSITORY}/revision/"):
                siblings = [{"rfilename": name} for name in FILES]
                about = {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}
                return self._send(200, json.dumps(about).encode())
            if path.startswith(f"/api/models/{REPOSITORY}/tree/"):
                return self._send(200, json.dumps([listed(name) for name in FILES]).encode())
            if not path.startswith(f"/{REPOSITORY}/resolve/"):
                return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
            body = files.get(file)
            if body is None:
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            about = listed(file)
            tag = about["lfs"]["oid"] if "lfs" in about else about["oid"]
            named = {"ETag": f'"{tag}"', "X-Linked-Etag": f'"{tag}"', "X-Repo-Commit": COMMIT}
            return self._send(200, body, named | {"X-Linked-Size": str(len(FILES[file]))})

        do_HEAD = do_GET

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with listening(Hub) as url:
        environment = {
            **os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hub"),
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }  # fmt: skip
        environment.pop("HF_HUB_OFFLINE", None)
        command = [sys.executable, "-m", "paceline", "pull", named]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


def test_a_drafter_is_fetched_whole(tmp_path: Path) -> None:
    done = pull(tmp_path, dict(FILES))
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    there = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert there == {name: FILES[name] for name in FILES if name != "README.md"}
    # What is there is found without being sent again.
    again = pull(tmp_path, {name: b"other" for name in FILES} | {"model.safetensors": None})
    assert again.returncode == 0 and Path(again.stdout.strip()) == folder


@pytest.mark.parametrize("damage", ["another byte", "too short"])
def test_a_file_that_is_damaged_on_the_way_is_refused_and_not_kept(
    damage: str, tmp_path: Path
) -> None:
    whole = FILES["model.safetensors"]
    sent = whole[:-1] + b"?" if damage == "another byte" else whole[:-7]
    done = pull(tmp_path, FILES | {"model.safetensors": sent})
    assert done.returncode == 2 and not done.stdout
    assert "arrived damaged" in done.stderr and "model.safetensors" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    # The next try fetches it again, and finds it whole.
    later = pull(tmp_path, dict(FILES))
    assert later.returncode == 0, later.stderr
    assert (Path(later.stdout.strip()) / "model.safetensors").read_bytes() == whole


def test_a_file_that_the_hub_has_no_more_is_named(tmp_path: Path) -> None:
    done = pull(tmp_path, FILES | {"model.safetensors": None})
    assert done.returncode == 2 and not done.stdout
    assert "model.safetensors" in done.stderr and "Traceback" not in done.stderr


def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = pull(tmp_path, dict(FILES), "org/other")
    assert done.returncode == 2 and "org/other: the hub knows no such model" in done.stderr

"""A trained drafter on the hub: what is sent, and what is refused before anything is."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.core import InvalidRequest, ModelError
from paceline.drafters.publishing import FILES, check_publishable
from paceline.drafters.shipped import FOLDERS
from tests.engines.listening import listening

REPOSITORY = "org/my-drafter"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    folder = tmp_path / "drafter"
    shutil.copytree(FOLDERS / "smollm2-135m", folder)
    (folder / "model.safetensors").write_bytes(b"weights")  # nobody looks into them here
    (folder / "notes.txt").write_text("not for others")
    return folder


class PushHub(BaseHTTPRequestHandler):
    """The addresses of a hub that a commit of small files needs; `sent` are its files, and `made`
    the repositories."""

    sent: dict[str, bytes]
    made: list[dict[str, Any]]
    token: str

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            return self._answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            self.made.append(json.loads(body))
            return self._answer(200, {"url": f"https://huggingface.co/{REPOSITORY}"})
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if self.path.startswith(f"/api/models/{REPOSITORY}/preupload/"):
            names = [each["path"] for each in json.loads(body)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False}
                     for name in names]  # fmt: skip
            return self._answer(200, {"files": files})
        assert self.path.startswith(f"/api/models/{REPOSITORY}/commit/"), self.path
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.sent[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        address = f"https://huggingface.co/{REPOSITORY}/commit/1"
        self._answer(200, {"commitUrl": address, "commitOid": "1", "success": True})

    def do_GET(self) -> None:
        self._answer(200, {"id": REPOSITORY, "siblings": [], "sha": "0"})

    def _answer(self, status: int, value: object) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


def push(url: str, drafter: Path, *options: str, token: str = "hf_right") -> Any:
    """Run the command in a process of its own: huggingface_hub reads HF_ENDPOINT once."""
    environment = {
        "HF_ENDPOINT": url,
        "HF_TOKEN": token,
        "PATH": "/usr/bin",
        "HOME": str(drafter.parent),
    }
    command = [sys.executable, "-m", "paceline", "drafter", "push", str(drafter), REPOSITORY]
    return subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, timeout=60
    )


def hub() -> type[PushHub]:
    return type("Hub", (PushHub,), {"sent": {}, "made": [], "token": "hf_right"})


def test_the_files_of_a_drafter_are_sent_and_no_others(drafter: Path) -> None:
    handler = hub()
    with listening(handler) as url:
        done = push(url, drafter, "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"https://huggingface.co/{REPOSITORY}/commit/1"
    assert set(handler.sent) == set(FILES)
    assert handler.sent["README.md"] == (drafter / "README.md").read_bytes()
    made = handler.made[0]
    assert made["name"] == "my-drafter" and (made.get("private") or made["visibility"] == "private")


def test_a_hub_that_refuses_is_quoted(drafter: Path) -> None:
    handler = hub()
    with listening(handler) as url:
        done = push(url, drafter, token="hf_wrong")
    assert done.returncode == 2 and not handler.sent
    assert f"{REPOSITORY}: the hub refused: " in done.stderr and "401" in done.stderr
    assert "Traceback" not in done.stderr


def test_weights_that_users_have_taught_are_not_published_by_mistake(drafter: Path) -> None:
    provenance = drafter / "provenance.json"
    facts = json.loads(provenance.read_text())
    taught = {"general": {**facts["data"]["general"], "user_data": True}}
    first = {"name": "first", "made": {"init": None, "data": taught}}
    second = {"name": "second", "made": {"init": first, "data": facts["data"]}}
    later = {**facts, "init": second}
    for told in ({**facts, "data": taught}, later):  # also two trainings before
        provenance.write_text(json.dumps(told))
        with pytest.raises(InvalidRequest, match="--user-data; general is what users said"):
            check_publishable(drafter, REPOSITORY)
        check_publishable(drafter, REPOSITORY, user_data=True)
    of_users = {"origin": {"sets": {"general": "ab12"}, "user_data": ["general"]}}
    begun = {"name": "first", "made": {"init": None, "data": facts["data"], **of_users}}
    for told in ({**facts, **of_users}, {**facts, "init": begun}):  # its target, or one before
        provenance.write_text(json.dumps(told))
        with pytest.raises(InvalidRequest, match="--user-data; general is what users said"):
            check_publishable(drafter, REPOSITORY)
        check_publishable(drafter, REPOSITORY, user_data=True)
    provenance.write_text(json.dumps({**facts, "origin": {"sets": {"general": "ab12"}}}))
    with pytest.raises(InvalidRequest, match="the set that its target was distilled from is what"):
        check_publishable(drafter, REPOSITORY)
    provenance.write_text(json.dumps({**facts, "origin": {"user_data": []}}))
    check_publishable(drafter, REPOSITORY)
    provenance.write_text(json.dumps({**facts, "data": None}))
    with pytest.raises(ModelError, match="data must say which sets"):
        check_publishable(drafter, REPOSITORY)
    judged = {**taught["general"], "trained_on": False}
    provenance.write_text(json.dumps({**facts, "data": {"general": judged}}))
    check_publishable(drafter, REPOSITORY)


def test_a_folder_that_is_no_whole_drafter_and_a_wrong_id_are_refused(
    drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidRequest, match="repository: got 'mine'; expected a hub id"):
        check_publishable(drafter, "mine")
    (drafter / "README.md").unlink()
    assert main(["drafter", "push", str(drafter), REPOSITORY]) == 2
    assert "README.md is missing" in capsys.readouterr().err

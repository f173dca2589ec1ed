"""Where a server listens: Unix sockets, TLS, a path below a proxy; and what it says of it."""

from __future__ import annotations

import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from paceline.core import InvalidRequest, PacelineError
from paceline.server.settings import ServerSettings
from paceline.server.sockets import announcement, bind, check_certificate

from .conftest import TEXT, Client, listening
from .fake import FakeAsyncEngine
from .raw import RawClient


def test_a_unix_socket_serves_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "paceline.sock"
    settings = ServerSettings(uds=str(path))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))  # and left behind
    with listening(FakeAsyncEngine(), uds=str(path)) as server:
        assert server.url == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://any.name") as http:
            assert http.post("/v1/completions", json=TEXT).status_code == 200
            lines = http.post("/v1/completions", json={**TEXT, "stream": True}).text
            assert lines.endswith("data: [DONE]\n\n")
        with pytest.raises(PacelineError, match="in use"):
            bind(settings)
    assert list(tmp_path.iterdir()) == []


def test_a_socket_whose_model_still_loads_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "paceline.sock"
    settings = ServerSettings(uds=str(path))
    first = bind(settings)  # it does not listen yet
    inode = path.stat().st_ino
    with pytest.raises(PacelineError, match="in use"):
        bind(settings)
    assert path.stat().st_ino == inode
    path.unlink()  # by hand, and another program takes the path
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        first.close()
        assert path.exists()
    bind(settings).close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_replaced_by_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(PacelineError, match=r"notes\.txt: it is a file that is no socket"):
        bind(ServerSettings(uds=str(path)))
    assert path.read_text() == "mine"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    yield cert, key


def test_https(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with listening(FakeAsyncEngine(), ssl_certfile=cert, ssl_keyfile=key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=cert)
        with httpx.Client(base_url=server.url, verify=context, trust_env=False) as http:
            assert http.post("/v1/completions", json=TEXT).status_code == 200
            # refused by the connection itself: TLS cannot close one direction alone
            assert http.get("/", headers=[("A", "b")] * 200).status_code == 431
            assert http.get("/health").status_code == 200
        with RawClient(f"http://{urlsplit(server.url).netloc}") as plain:
            plain.send(plain.head("GET", "/health"))
            assert b"200" not in plain.rest()


def test_a_wrong_certificate_is_refused_before_anything_starts(
    certificate: tuple[str, str], tmp_path: Path
) -> None:
    cert, _ = certificate
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for chain, key in (("/no/such.pem", None), (broken, None), (cert, None), (cert, broken)):
        settings = ServerSettings(ssl_certfile=str(chain), ssl_keyfile=key and str(key))
        with pytest.raises(InvalidRequest, match="ssl_certfile"):
            check_certificate(settings)


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_below_a_path_the_proxy_may_strip_it_or_not(prefix: str) -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(root_path="/llm", api_keys=("secret",)))
    headers = {"Authorization": "Bearer secret"}
    assert client.post(f"{prefix}/v1/completions", json=TEXT, headers=headers).status_code == 200
    assert client.get(f"{prefix}/v1/models").status_code == 401  # no way around the key
    assert client.get(f"{prefix}/").status_code == 200
    assert client.get(f"{prefix}/web/shell.js").status_code == 200


def test_the_root_path_alone_leads_to_its_folder() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(root_path="/llm"))
    answer = client.get("/llm")
    assert (answer.status_code, answer.headers["location"]) == (308, "/llm/")
    assert client.get("/llmx/health").status_code == 404
    assert client.get("/llm/health/").status_code == 404  # a redirect would have to keep /llm


def test_the_announcement_says_who_can_reach_the_server() -> None:
    url = "http://127.0.0.1:8000"
    assert "reachable" not in announcement(url, ServerSettings())
    assert "every network" in announcement(url, ServerSettings(host="0.0.0.0"))
    assert "other machines" in announcement(url, ServerSettings(host="192.0.2.7"))

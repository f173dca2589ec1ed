"""Ask every client of the table, and print it: `python -m tools.clients --help`.

Each client has an environment of its own below .venv-clients. The server runs in this one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.version import __version__
from tools.clients.catalogue import CLIENTS, CONSTRAINTS, Client

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-clients"
PAGE = ROOT / "docs" / "clients.md"
MARKS = ("<!-- table: python -m tools.clients --write -->\n", "<!-- end of table -->\n")
INSTALLING, ASKING, STARTING = 1800.0, 1800.0, 180.0  # seconds


@dataclass(frozen=True)
class Row:
    """What came of one question to one client."""

    client: str
    version: str
    what: str
    outcome: str

    @property
    def is_failed(self) -> bool:
        return not self.outcome.startswith(("green", "refused"))


def python_of(client: Client) -> Path:
    """Return the interpreter of a client's environment, which is made where it is missing or made
    from other requirements. Raises CalledProcessError where pip fails."""
    folder = HOME / client.name
    stamp, python = folder / "requirements", folder / "bin" / "python"
    wanted = "\n".join([*client.requirements, *CONSTRAINTS])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(CONSTRAINTS) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--constraint", str(constraints), *client.requirements]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALLING)
    stamp.write_text(wanted)
    return python


@contextmanager
def served(model: str) -> Iterator[str]:
    """Serve `model` on a free port; gives the URL."""
    command = [sys.executable, "-m", "paceline.cli", "serve", model, "--port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield _announced(process, log)
        finally:
            process.terminate()
            process.wait(60)


def _announced(process: subprocess.Popen[bytes], log: object) -> str:
    """Return the URL that the server announces, once it is healthy."""
    end = time.monotonic() + STARTING
    while time.monotonic() < end and process.poll() is None:
        log.seek(0)  # type: ignore[attr-defined]
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read())  # type: ignore[attr-defined]
        if found and urllib.request.urlopen(f"{found[0]}/health", timeout=20).status == 200:
            return found[0]
        time.sleep(0.2)
    log.seek(0)  # type: ignore[attr-defined]
    raise SystemExit(f"the server did not start:\n{log.read()}")  # type: ignore[attr-defined]


def rows_of(client: Client, url: str, model: str, folder: str) -> list[Row]:
    """Ask a client all its questions."""
    try:
        python = python_of(client)
    except subprocess.SubprocessError as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return [Row(client.name, "", "pip install", f"not installed: {lines[-1][:200]}")]
    version = _version(python, client.distribution)
    with tempfile.TemporaryDirectory() as scratch:
        told = {"URL": url, "MODEL": model, "FOLDER": folder, "SCRATCH": scratch}
        environment = {**os.environ, **{f"CLIENTS_{name}": told[name] for name in told}}
        environment.pop("PYTHONPATH", None)
        command = [str(python), str(client.script)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ASKING, env=environment, cwd=scratch
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"what"')]
    answers = [json.loads(line) for line in lines]
    rows = [Row(client.name, version, answer["what"], answer["outcome"]) for answer in answers]
    if done.returncode:
        rows.append(Row(client.name, version, "all", f"failed: {done.stderr.strip()[-300:]}"))
    return rows


def _version(python: Path, distribution: str) -> str:
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def table(rows: Sequence[Row]) -> str:
    """Return the table in Markdown: a row for each client, and in it what came of what."""
    lines = [
        "| client | version | green | refused by a named limit | failed |",
        "|---|---|---|---|---|",
    ]
    for client in dict.fromkeys(row.client for row in rows):
        own = [row for row in rows if row.client == client]
        green = " · ".join(row.what for row in own if row.outcome == "green")
        refused = " · ".join(
            f"{row.what}: {row.outcome.removeprefix('refused: ')}"
            for row in own
            if row.outcome.startswith("refused")
        )
        failed = " · ".join(f"{row.what}: {row.outcome}" for row in own if row.is_failed)
        cells = [client, own[0].version, green, refused, failed.replace("|", "\\|")]
        lines.append("| " + " | ".join(cell or "–" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write(rows: Sequence[Row], model: str) -> None:
    """Put the table into the page, with its date and the versions."""
    page = PAGE.read_text("utf-8")
    before, rest = page.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    today = datetime.datetime.now(datetime.UTC).date()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    head = f"Asked on {today}, of Paceline {__version__} ({commit}) with {model}.\n\n"
    PAGE.write_text(
        before + MARKS[0] + "\n" + head + table(rows) + "\n" + MARKS[1] + after, "utf-8"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.clients", description=__doc__)
    parser.add_argument("names", nargs="*", help="clients to ask (default: all)")
    parser.add_argument("--model", default="smollm2-135m", help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    known = [client.name for client in CLIENTS]
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no client {unknown[0]!r}; there are {', '.join(known)}")
    pull = [sys.executable, "-m", "paceline.cli", "pull", options.model]
    folder = subprocess.run(pull, capture_output=True, text=True, check=True).stdout.strip()
    rows: list[Row] = []
    with served(options.model) as url:
        for client in CLIENTS:
            if client.name in (options.names or known):
                for row in rows_of(client, url, options.model, folder.splitlines()[-1]):
                    print(f"{row.client} {row.version}: {row.what}: {row.outcome}", flush=True)
                    rows.append(row)
    print(f"\n{table(rows)}")
    if options.write:
        write(rows, options.model)
    return int(any(row.is_failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""The README's commands, in order, as a newcomer has them: with what `make demo` installs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from paceline.bench.load.server_process import free_port
from tests.docs.blocks import ROOT, SERVER, blocks
from tests.docs.core_environment import make_environment

pytestmark = pytest.mark.xdist_group("readme")  # one environment for both

README = ROOT / "README.md"
SERVE, ACTIVATE = "paceline serve", "source .venv/bin/activate"
WAIT = """
for _ in $(seq 600); do
    python -c "import httpx; httpx.get('http://ADDRESS/health').raise_for_status()" && break
    kill -0 $server || exit 1
    sleep 0.3
done 2>/dev/null
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("core") / "venv")


@pytest.mark.docs
def test_the_environment_has_no_package_of_the_extras(programs: Path) -> None:
    script = (
        "import importlib.util, paceline\n"
        "assert not [name for name in ('openai', 'pytest', 'pyarrow', 'matplotlib')"
        " if importlib.util.find_spec(name)]"
    )
    subprocess.run([programs / "python", "-c", script], check=True, env=_plain())


@pytest.mark.docs
@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_commands_run_in_order(programs: Path, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    script = "".join(_commands(address))
    assert script.count(f"{SERVE} --port") == 1
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(SERVER, address)],
        cwd=tmp_path,
        env={**_plain(), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n--- failed with ---\n{done.stdout}{done.stderr}"


def _plain() -> dict[str, str]:
    """Return the environment's variables without those that bring packages along."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _commands(address: str) -> list[str]:
    """Return what a reader types, as one script: the server runs beside what follows it."""
    parts = []
    for block in blocks(README):
        if block.mark.startswith("not run:"):
            continue
        if block.language == "python":
            parts.append(f"python - <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK\n")
        for line in block.text.splitlines(keepends=True) if block.language == "bash" else ():
            if line.strip() == SERVE:
                port = address.partition(":")[2]
                parts.append(f"{SERVE} --port {port} &\nserver=$!\ntrap 'kill $server' EXIT\n")
                parts.append(WAIT.replace("ADDRESS", address))
            elif line.strip() != ACTIVATE:
                parts.append(line)
    return parts

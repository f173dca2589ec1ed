"""An environment as `make demo` leaves it: Paceline and what it requires, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.docs.blocks import ROOT

ENTRY = "#!{python}\nimport sys\nfrom paceline.cli import main\nsys.exit(main())\n"


def required() -> list[Distribution]:
    """Return what Paceline requires, directly and indirectly, without its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found: dict[str, Distribution] = {}
    waiting, seen = [(line, ("",)) for line in project["dependencies"]], set[tuple[str, str]]()
    while waiting:
        need, extras = Requirement(waiting[0][0]), waiting.pop(0)[1]
        if need.marker is not None and not any(need.marker.evaluate({"extra": e}) for e in extras):
            continue
        name, wanted = re.sub(r"[-_.]+", "-", need.name).lower(), ("", *sorted(need.extras))
        if (name, str(wanted)) not in seen:
            seen.add((name, str(wanted)))
            found[name] = distribution(name)
            waiting += [(line, wanted) for line in found[name].requires or ()]
    return list(found.values())


def make_environment(folder: Path) -> Path:
    """Make a virtual environment in `folder` out of the packages that are installed here. Return
    its folder of programs."""
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(command, check=True)
    programs = folder / "bin"
    python = programs / "python"
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(subprocess.run([python, "-c", script], capture_output=True, text=True,
                               check=True).stdout.strip())  # fmt: skip
    for item in required():
        tops = {file.parts[0] for file in item.files or () if file.parts[0] not in ("..", "/")}
        base = Path(str(item.locate_file("")))
        for top in tops - {"__pycache__"}:
            if not (site / top).exists() and (base / top).exists():
                (site / top).symlink_to(base / top)
    (site / "paceline.pth").write_text(f"{ROOT / 'src'}\n", "utf-8")
    entry = programs / "paceline"
    entry.write_text(ENTRY.format(python=python), "utf-8")
    entry.chmod(0o755)
    return programs

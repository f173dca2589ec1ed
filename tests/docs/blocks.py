"""The code blocks of README and docs.

Python blocks run, all of a page in one script and in order, unless `<!-- not run: why -->` stands
above one. Shell blocks run where `<!-- run -->` stands above; of all others the `paceline` and
`make` commands must at least be such that they would be accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^>]*?) -->\n+)?^```(?P<language>[a-z]+)\n(?P<text>.*?)^```$", re.M | re.S
)
SERVER = "127.0.0.1:8000"  # what pages call the server; tests put their own there


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    language: str
    mark: str
    text: str

    @property
    def runs(self) -> bool:
        if self.language == "python":
            return not self.mark.startswith("not run:")
        return self.language == "bash" and self.mark == "run"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[Block]:
    return [
        Block(page.name, found["language"], found["mark"] or "", found["text"])
        for found in FENCE.finditer(page.read_text("utf-8"))
    ]


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]


def commands(block: Block, program: str) -> list[str]:
    """The lines of a shell block that start with `program`, joined where they go on."""
    if block.language != "bash":
        return []
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(f"{program} ")]

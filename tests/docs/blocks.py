"""Find the code blocks of README and docs.

The Python blocks of a page run in order, as one script, except those below `<!-- not run: why -->`.
A shell block runs below `<!-- run -->`. All other shell blocks must be bash, and their `paceline`
and `make` commands must parse. Every block states its language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^>]*?) -->\n+)?^```(?P<language>[a-z]+)\n(?P<text>.*?)^```$", re.M | re.S
)
SERVER = "127.0.0.1:8000"  # the server's address in the pages; tests replace it by their own


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
        Block(page.name, match["language"], match["mark"] or "", match["text"])
        for match in FENCE.finditer(page.read_text("utf-8"))
    ]


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]


def commands(block: Block, program: str) -> list[str]:
    """Return the lines of a shell block that start with `program`, continuation lines joined."""
    if block.language != "bash":
        return []
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(f"{program} ")]

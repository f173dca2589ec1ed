"""The clients of the table, each in an environment of its own: their requirements contradict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ASKS = Path(__file__).parent / "asks"


@dataclass(frozen=True)
class Client:
    """A client: what pip installs, and the distribution whose version the table names."""

    name: str
    requirements: tuple[str, ...]
    distribution: str

    @property
    def script(self) -> Path:
        """The script that asks, which runs in the client's environment."""
        return ASKS / f"ask_{self.name.replace('-', '_')}.py"


def _client(name: str, *requirements: str) -> Client:
    distribution = requirements[0].partition("[")[0].partition(">")[0]
    return Client(name, requirements, distribution)


CLIENTS = (
    _client("openai", "openai>=3,<4"),
    _client("anthropic", "anthropic>=2.12,<3"),
    _client("litellm", "litellm>=1.80,<2", "mcp>=1,<3"),  # its tools import mcp
    _client("langchain", "langchain-openai>=1,<2"),
    _client("instructor", "instructor>=1.11,<2"),
    _client("pydantic-ai", "pydantic-ai-slim[openai]>=2.68,<3"),
    _client("llm", "llm>=0.27,<1"),
    _client("lm-eval", "lm-eval[api]>=0.4.9,<0.5", "transformers>=5.20,<6"),  # for the tokenizer
    _client("guidellm", "guidellm>=0.8,<0.9"),
    _client("aiperf", "aiperf>=0.13,<0.14"),
)
# No client needs a GPU: where one wants torch, this is the version that Paceline runs on.
CONSTRAINTS = ("torch==2.13.0",)

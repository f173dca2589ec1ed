"""The protocol of an engine's adapter, and the registry of all adapters."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from paceline.engines.answers import Ask, EngineAnswer, Json
from paceline.engines.metrics import EngineMetrics

if TYPE_CHECKING:
    from paceline.engines.client import EngineClient


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What is to be served. `draft_len` None: the drafter's own block. `extra` arguments are the
    user's, and go to the end of the line as they are."""

    target: str
    drafter: Path | None = None
    draft_len: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    prefix_cache: bool = True
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """A command, the variables that it needs beside the user's own, and notes for the user."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can tell or do for one request."""

    token_ids: bool  # answers and prompts come with their token ids
    rounds: bool  # what every draft of an answer did
    acceptance: bool  # drafted and accepted tokens of an answer
    speculation_off: bool  # for one request
    logprobs: bool


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """A running engine: its kind, version, model, and what speculation it is set to where it
    tells."""

    kind: str
    version: str | None
    model: str
    max_model_len: int | None
    capabilities: Capabilities
    drafter: str | None = None
    draft_len: int | None = None


class EngineKind(Protocol):
    """One engine: how it is launched, recognised, asked and read."""

    name: str

    def launch(self, plan: LaunchPlan) -> LaunchLine:
        """Write the line that serves `plan`. Raises InvalidRequest for a plan that the engine
        cannot serve, or that is known to be broken there; the message names the issue."""

    def describe(self, client: EngineClient) -> EngineDescription | None:
        """Describe the server behind `client`; None where it is another engine's."""

    def request(self, ask: Ask, model: str) -> tuple[str, Json]:
        """Return the path and the body of a streamed request."""

    def take(self, answer: EngineAnswer, event: Json) -> None:
        """Add one event of the stream to the answer."""

    def read_metrics(self, text: str) -> EngineMetrics:
        """Read the text of /metrics. Raises ValueError for another engine's."""

"""The protocol of an engine's adapter: how one engine is launched, recognised, asked and read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from paceline.engines.answers import EngineAnswer, EngineAsk, Json
from paceline.engines.metrics import EngineMetrics
from paceline.roofline.architecture.work import Options

if TYPE_CHECKING:
    from paceline.engines.client import EngineClient


@dataclass(frozen=True, slots=True)
class Program:
    """An engine as it is installed somewhere: the words that start it, its version where that is
    known, and whether it is a build for CPUs."""

    command: tuple[str, ...]
    version: str | None = None
    cpu: bool = False


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What is to be served.

    target      a folder or hub id, as the engine reads it
    kind        how to draft, one of roofline's KINDS; None: as the drafter's config says, and
                without a drafter not at all
    draft_len   None: the drafter's own block, or the kind's usual length
    draft_lens  draft lengths by batch size, as (first, last, draft length), on engines that have
                such a table; `draft_len` is then the longest
    devices     over how many devices, and how
    program     the installed engine; None: the engine's name, found by the shell
    extra       the user's arguments, which go to the end of the line as they are
    """

    target: str
    drafter: Path | None = None
    draft_len: int | None = None
    draft_lens: tuple[tuple[int, int, int], ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    prefix_cache: bool = True
    extra: tuple[str, ...] = ()
    kind: str | None = None
    devices: Options = field(default_factory=Options)
    program: Program | None = None


@dataclass(frozen=True, slots=True)
class EngineLaunch:
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


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """Describe what an engine promises or can do that others do not.

    takes_corpora   its drafters look answers up in a corpus of ours
    promises_text   equal requests get equal texts, whatever they are computed beside
    scores_texts    it tells the log-probabilities of a given text
    reads_training  it serves a drafter by what our trainer writes beside the weights: the context
                    that it was trained on, and its list of frequent tokens
    """

    takes_corpora: bool = False
    promises_text: bool = False
    scores_texts: bool = False
    reads_training: bool = False


class EngineKind(Protocol):
    """One engine: how it is launched, recognised, asked and read."""

    name: str
    traits: EngineTraits

    def launch(self, plan: LaunchPlan) -> EngineLaunch:
        """Write the line that serves `plan`. Raises InvalidRequest for a plan that the engine
        cannot serve, or that is known to be broken there; the message names the issue."""

    def progress(self, line: str) -> str | None:
        """Say what a line of the starting engine's log tells of its loading; None for other
        lines."""

    def replacement(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the steps that put `plan.drafter` in place of the drafter of a running engine."""

    def describe(self, client: EngineClient) -> EngineDescription | None:
        """Describe the server behind `client`; None where it is another engine's."""

    def request(self, ask: EngineAsk, model: str) -> tuple[str, Json]:
        """Return the path and the body of a streamed request."""

    def take(self, answer: EngineAnswer, event: Json) -> None:
        """Add one event of the stream to the answer."""

    def read_metrics(self, text: str) -> EngineMetrics:
        """Read the text of /metrics. Raises ValueError for another engine's."""

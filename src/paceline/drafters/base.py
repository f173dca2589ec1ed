"""The protocol of drafters: all that the engine knows of them. A drafter in turn knows nothing of
scheduling, verification rules or commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

import torch

from paceline.core import DraftBatch, KVSpec, Request
from paceline.core.spans import Spans
from paceline.models.batch import Network

if TYPE_CHECKING:
    from paceline.models.tokenizer import Tokenizer

State = TypeVar("State")


@dataclass(slots=True)
class TargetInfo:
    """The parts of the target that a drafter may share. `network` gives embeddings and head; None
    when mocked."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_model_len: int
    block_size: int
    num_blocks: int
    network: Network | None = None
    tokenizer: Tokenizer | None = None
    eos_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class ObservedRows:
    """Rows of one request that were computed and are committed, in order of position.

    `start` is the position of the first row in the request's tokens, `count` how many there are;
    the ids are `request.tokens[start:start + count]`. `features` is a tensor
    [count, len(feature_layers) * hidden] or None when the drafter taps no layer. A drafter that
    looks up as well is also shown rows of which nothing was tapped, with None.
    """

    request: Request
    start: int
    count: int
    features: torch.Tensor | None = None


class Drafter(Protocol):
    """Proposes draft tokens for requests. A subclass inherits all but propose() and the first two
    attributes, as a drafter has them that needs texts alone: no features, no KV, no weights.

    name, version    the registered name, and what distinguishes one set of weights from the next
    max_draft_len    the longest draft it will propose
    reach            the longest text it can draft for, in tokens; None: any
    feature_layers   target layers whose outputs observe() gets; () for none
    kv               draft KV that the engine allocates at the target's own slots; None for none
    lookback         trailing tokens of a prefix hit that it must see again
    parallel         one pass (or look-up) drafts all tokens: a longer draft takes no longer
    weight_bytes     of its own weights in memory, for the memory plan; 0 for none
    """

    name: str
    max_draft_len: int
    version: str = "1"
    reach: int | None = None
    feature_layers: tuple[int, ...] = ()
    kv: KVSpec | None = None
    lookback: int = 0
    parallel: bool = True
    weight_bytes: int = 0

    def plan(self, target: TargetInfo) -> None:
        """Set `weight_bytes` to what attach() is going to take around this target."""
        return

    def attach(self, target: TargetInfo) -> None:
        """Called once before use. Raises ModelError when it does not fit the target, naming why."""
        return

    def begin(self, requests: Sequence[Request], held: Sequence[int]) -> None:
        """Requests are admitted or resumed. `held[i]` leading tokens already have this drafter's
        KV."""
        return

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        """Sees computed and committed rows, those of prompts and undrafted steps too.

        Rows of steps without a draft come later: before the next draft, or in the end. A drafter
        without features gets only prompts and drafted steps: it has the tokens, and catches up.
        Where the load leaves no room for drafts nothing is shown, and a hole remains.
        """
        return

    def held_tokens(self, request: Request) -> int:
        """Leading tokens of `request` whose draft KV is in place; asked only when `kv` is set."""
        return 0

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        """Drafts up to `lengths[i]` tokens to follow `requests[i].tokens`; fewer, or none, is fine.

        When `kv` is set, the engine guarantees that `requests[i].blocks` has slots for positions
        up to len(tokens) + lengths[i] - 1. Must not depend on which requests share the batch.
        """
        ...

    def release(self, requests: Sequence[Request]) -> None:
        """Requests finished, were aborted or preempted: drop what is held for them.

        A preempted one has `finish_reason` None and will come back through begin().
        """
        return


@runtime_checkable
class Rehearsing(Protocol):
    """A drafter whose drafting can be timed before there is anything to draft for."""

    def rehearse(self, requests: int, length: int) -> None:
        """The forwards of one propose(), over blocks that nobody owns yet."""


@runtime_checkable
class LookingUp(Protocol):
    """A drafter some of whose drafts take next to no time, and need neither features nor KV.

    `longest_proposed` is the longest of its other drafts, which propose() makes. The engine asks
    for those only after look_up() has been asked in the same round.
    """

    longest_proposed: int

    def look_up(
        self, requests: Sequence[Request], lengths: Sequence[int]
    ) -> tuple[DraftBatch, list[bool]]:
        """Those drafts, without q, and of each request whether they are all that it should get:
        propose() is not expected to bring more. Must not look at what is still to be drawn."""
        ...


@runtime_checkable
class Branching(Protocol):
    """A drafter that can propose alternatives to its drafts."""

    def propose_trees(
        self, requests: Sequence[Request], lengths: Sequence[int], nodes: Sequence[int]
    ) -> DraftBatch:
        """Do what propose() does, and give the i-th request a tree of up to `nodes[i]` nodes beside
        its draft, no deeper than that. None for 0, and wherever the drafter has no alternatives."""
        ...


class Recorded(Protocol):
    """A network whose time can be recorded by part: see `models.batch`."""

    streamed_parts: dict[str, int]
    number: str

    def record(self, spans: Spans) -> None: ...


@runtime_checkable
class Networked(Protocol):
    """A drafter that runs a network, once it is attached: its forwards can be recorded."""

    @property
    def network(self) -> Recorded | None: ...


@runtime_checkable
class Windowed(Protocol):
    """A drafter that can look at the last `window` tokens only; None: it looks at all. Its folder
    may have set the window."""

    @property
    def window(self) -> int | None: ...


@runtime_checkable
class Remembering(Protocol):
    """A drafter that drafts from the answers to earlier requests, which its `memories` hold."""

    @property
    def memories(self) -> Sequence[Memory]: ...


class Memory(Protocol):
    """Answers by scope, as `Request.answers_scope` names it."""

    def __len__(self) -> int: ...

    def close(self) -> None:
        """Forget all, and take only what warm() is given from now on: measuring, which answers each
        prompt several times, must not copy an answer from the one before."""

    def warm(self, scope: bytes, context: Sequence[int], response: Sequence[int]) -> None:
        """Add a response; the last tokens of `context`, the text before it, lead into it."""


@runtime_checkable
class Reporting(Protocol):
    """A drafter that has rows of (label, value) for the start-up table."""

    start_up_rows: list[tuple[str, str]]


def longest_proposed(drafter: Drafter) -> int:
    """The longest draft that it makes when it is asked to propose one."""
    return drafter.longest_proposed if isinstance(drafter, LookingUp) else drafter.max_draft_len


class StatefulDrafter(Drafter, Generic[State]):
    """Keeps for each running request what start() returns."""

    def __init__(self, name: str, max_draft_len: int) -> None:
        self.name, self.max_draft_len = name, max_draft_len
        self._states: dict[tuple[str, int], State] = {}

    def start(self, request: Request, held: int) -> State | None:
        """Return what is kept for a request; None: it gets no drafts."""
        raise NotImplementedError

    def state(self, request: Request) -> State | None:
        return self._states.get((request.id, request.choice))

    def begin(self, requests: Sequence[Request], held: Sequence[int]) -> None:
        for request, tokens in zip(requests, held, strict=True):
            state = self.start(request, tokens)
            if state is not None:
                self._states[request.id, request.choice] = state

    def release(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._states.pop((request.id, request.choice), None)

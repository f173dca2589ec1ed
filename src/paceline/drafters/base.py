"""The protocol and the registry of drafters: all that the engine knows of them.

A drafter proposes tokens. It knows nothing of scheduling, verification rules or commits, and the
engine knows nothing of how tokens are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from paceline.core import DraftBatch, InvalidRequest, KVSpec, Request
from paceline.core.spans import Spans
from paceline.models.loader import LoadedModel


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
    network: Any = None
    tokenizer: Any = None
    eos_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class ObservedRows:
    """Rows of one request that were computed and are committed, in order of position.

    `start` is the position of the first row in the request's tokens, `count` how many there are;
    the ids are `request.tokens[start:start + count]`. `features` is a tensor
    [count, len(feature_layers) * hidden] or None when the drafter taps no layer.
    """

    request: Request
    start: int
    count: int
    features: Any = None


class Drafter(Protocol):
    """Proposes draft tokens for requests.

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
    version: str
    max_draft_len: int
    reach: int | None
    feature_layers: tuple[int, ...]
    kv: KVSpec | None
    lookback: int
    parallel: bool
    weight_bytes: int

    def attach(self, target: TargetInfo) -> None:
        """Called once before use. Raises ModelError when it does not fit the target, naming why."""
        ...

    def begin(self, requests: Sequence[Request], held: Sequence[int]) -> None:
        """Requests are admitted or resumed. `held[i]` leading tokens already have this drafter's
        KV."""
        ...

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        """Sees computed and committed rows, those of prompts and undrafted steps too.

        Rows of steps without a draft come later: before the next draft, or in the end. A drafter
        without features gets only prompts and drafted steps: it has the tokens, and catches up.
        Where the load leaves no room for drafts nothing is shown, and a hole remains.
        """
        ...

    def held_tokens(self, request: Request) -> int:
        """Leading tokens of `request` whose draft KV is in place; asked only when `kv` is set."""
        ...

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
        ...


@runtime_checkable
class Rehearsing(Protocol):
    """A drafter whose drafting can be timed before there is anything to draft for."""

    def rehearse(self, requests: int, length: int) -> None:
        """The forwards of one propose(), over blocks that nobody owns yet."""
        ...


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
class Networked(Protocol):
    """A drafter that runs a network, once it is attached: its forwards can be recorded."""

    @property
    def network(self) -> Recorded | None: ...


@runtime_checkable
class Windowed(Protocol):
    """A drafter that can look at the last `window` tokens only; None: it looks at all."""

    @property
    def window(self) -> int | None: ...


@runtime_checkable
class Reporting(Protocol):
    """A drafter that has something to say in the start-up table."""

    @property
    def start_up_rows(self) -> list[tuple[str, str]]:
        """Rows of (label, value)."""
        ...


class Recorded(Protocol):
    """A network whose time can be recorded by part: see `models.batch`."""

    streamed_parts: dict[str, int]

    def record(self, spans: Spans) -> None: ...


def longest_proposed(drafter: Drafter) -> int:
    """The longest draft that it makes when it is asked to propose one."""
    return drafter.longest_proposed if isinstance(drafter, LookingUp) else drafter.max_draft_len


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A parsed `NAME[=VALUE][,key=value…]`: what to register and how to build it."""

    name: str
    kind: str
    value: str | None = None
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The settings of the engine that a drafter is built for.

    target    the loaded target; None where a spec is only checked. Its weights may be consumed.
    dtype, device, backend, quantize   how the target runs; a drafter that is a network runs alike
    needs_q   whether the verification rule judges sampled drafts by the q they were drawn from
    window    the most tokens of context that a draft may look at; None: all
    """

    target: LoadedModel | None = None
    dtype: str = "bfloat16"
    device: str = "cpu"
    backend: str = "auto"
    quantize: str | None = None
    needs_q: bool = False
    window: int | None = None

    def network_settings(self, *, device: bool) -> dict[str, Any]:
        """The options of a drafter's network that the user did not set, as its spec writes them.
        Without `device` for a network that shares the target's head, and so its device."""
        quantize = self.quantize or "none"
        settings = {"dtype": self.dtype, "backend": self.backend, "quantize": quantize}
        if device:
            settings["device"] = self.device
        return settings

    @property
    def draw(self) -> dict[str, Any]:
        """The option `draw` where the rule decides it: a rule that needs q gets sampled drafts."""
        return {"draw": "sample"} if self.needs_q else {}


Factory = Callable[[DrafterSpec, BuildContext], Drafter]
_FACTORIES: dict[str, Factory] = {}


def register(kind: str) -> Callable[[Factory], Factory]:
    """Decorator: makes `kind` a drafter that can be asked for by name."""

    def add(factory: Factory) -> Factory:
        _FACTORIES[kind] = factory
        return factory

    return add


def kinds() -> list[str]:
    return sorted(_FACTORIES)


def build(spec: DrafterSpec, context: BuildContext | None = None) -> Drafter:
    """Make the drafter of a spec. Raises InvalidRequest for a kind that is not registered."""
    if spec.kind not in _FACTORIES:
        raise InvalidRequest("drafter", spec.kind, "one of " + ", ".join(kinds()))
    return _FACTORIES[spec.kind](spec, context or BuildContext())

"""Drafters as users state them, in plain JSON, checked: what each costs, and how well it drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.core import InvalidRequest, ModelError, PacelineError
from paceline.core.errors import check_integer
from paceline.roofline.acceptance import Acceptance, Geometric, acceptance_of
from paceline.roofline.architecture import Architecture, model_config
from paceline.roofline.drafters import block as block_drafter
from paceline.roofline.drafters import eagle, mtp, small_model
from paceline.roofline.drafting import DrafterCost, Fraction, Ideal, Lookup
from paceline.roofline.flags import METHODS

KEYS = ("kind", "name", "cost", "config", "seconds", "block", "max_draft", "acceptance",
        "checkpoint")  # fmt: skip
LONGEST = 64
MOST_LAYERS = 1024  # no model has so many; a slip of the pen must not keep a server busy
Read = TypeVar("Read")
LOOK_UPS = ("ngram", "suffix")
BLOCK, OWN_LAYER = "dflash", "mtp"
BLOCK_MEANING = f"tokens that one pass drafts, 1 to {LONGEST}, the anchor not counted"


@dataclass(frozen=True)
class StatedDrafter:
    """`block` is None where passes draft one token each; `max_draft` None where nothing but the
    question limits it."""

    name: str
    kind: str
    cost: DrafterCost
    acceptance: Acceptance
    block: int | None
    max_draft: int | None
    checkpoint: str | None
    stated: Mapping[str, Any]

    def longest(self, asked: int) -> int:
        """The longest draft worth looking at."""
        limits = (asked, self.block, self.max_draft, self.acceptance.depth)
        return min(limit for limit in limits if limit is not None)


def read_drafter(field: str, stated: Any, target: Architecture) -> StatedDrafter:
    """Raises InvalidRequest, or ModelError for a config that is no such drafter of the target;
    `field` says which drafter it is."""
    if not isinstance(stated, Mapping):
        raise InvalidRequest(field, stated, "an object with at least a kind")
    for key in stated:
        if key not in KEYS:
            raise InvalidRequest(f"{field}.{key}", stated[key], "one of " + ", ".join(KEYS))
    kind = stated.get("kind")
    if not isinstance(kind, str) or kind not in METHODS:
        raise InvalidRequest(f"{field}.kind", kind, "one of " + ", ".join(METHODS))
    name = stated.get("name", kind)
    if not isinstance(name, str) or not name.strip() or len(name) > 64:
        raise InvalidRequest(f"{field}.name", name, "a name of up to 64 letters")
    with _within(field):
        cost, block = _cost(field, kind, stated, target)
    longest = stated.get("max_draft")
    if longest is not None:
        top = block or LONGEST
        expected = f"a draft length, 1 to {top}" + (", its block" if block else "")
        check_integer(f"{field}.max_draft", longest, 1, top, expected)
    return StatedDrafter(
        name=name,
        kind=kind,
        cost=cost,
        acceptance=_acceptance(field, kind, stated, block),
        block=block,
        max_draft=longest,
        checkpoint=_checkpoint(field, stated),
        stated=dict(stated),
    )


def reading_config(field: str, config: Mapping[str, Any], read: Callable[[], Read]) -> Read:
    """`read()`, whose errors name the config: a pasted one may hold anything."""
    text = config.get("text_config")
    layers = (text if isinstance(text, Mapping) else config).get("num_hidden_layers")
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise InvalidRequest(f"{field}.num_hidden_layers", layers, f"at most {MOST_LAYERS}")
    try:
        return read()
    except ModelError as error:
        raise ModelError(field + str(error).removeprefix("config")) from None
    except PacelineError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"{field}: a value of the wrong kind ({type(error).__name__}: {error})"
        raise ModelError(message) from error


def _cost(
    field: str, kind: str, stated: Mapping[str, Any], target: Architecture
) -> tuple[DrafterCost, int | None]:
    """What it costs, and its block, where it drafts one at a time."""
    given = _given(field, kind, stated)
    if "block" in stated and (kind != BLOCK or "config" in given):
        expected = f"no block for {kind}" if kind != BLOCK else "the block of its config alone"
        raise InvalidRequest(f"{field}.block", stated["block"], expected)
    if kind == "ideal":
        return Ideal(), None
    if kind in LOOK_UPS:
        return Lookup(stated.get("seconds", 0.0)), None
    if "config" in given:
        return _from_config(field, kind, stated["config"], target)
    if kind == OWN_LAYER and not given:
        return mtp(target), None
    block = None
    if kind == BLOCK:
        block = stated.get("block")
        check_integer(f"{field}.block", block, 1, LONGEST, BLOCK_MEANING)
    return Fraction(stated["cost"], block or 1), block


def _given(field: str, kind: str, stated: Mapping[str, Any]) -> list[str]:
    """Which of the keys that say a cost are there; refuses what the kind does not take."""
    special = {"ideal": (), OWN_LAYER: ("cost",), **dict.fromkeys(LOOK_UPS, ("seconds",))}
    allowed = special.get(kind, ("cost", "config"))
    given = [key for key in ("cost", "config", "seconds") if key in stated]
    for key in given:
        if key not in allowed:
            either = " or ".join(allowed) or "nothing: it is free"
            raise InvalidRequest(f"{field}.{key}", stated[key], f"for {kind}: {either}")
    if kind not in special and len(given) != 1:
        expected = "cost (of a pass, as a share of an AR step) or config, one of them"
        raise InvalidRequest(f"{field}.cost", stated.get("cost"), expected)
    return given


def _from_config(
    field: str, kind: str, config: Any, target: Architecture
) -> tuple[DrafterCost, int | None]:
    if isinstance(config, str):
        config = model_config(config)
    if not isinstance(config, Mapping):
        raise InvalidRequest(f"{field}.config", config, "a config.json, or a listed model's name")
    where = f"{field}.config"
    if kind == BLOCK:
        found = reading_config(where, config, lambda: block_drafter(config, target))
        return found, found.max_draft
    if kind == "eagle3":
        return reading_config(where, config, lambda: eagle(config, target)), None
    return reading_config(where, config, lambda: small_model(config)), None


def _acceptance(field: str, kind: str, stated: Mapping[str, Any], block: int | None) -> Acceptance:
    acceptance = stated.get("acceptance")
    if acceptance is None and kind == "ideal":
        return Geometric(1.0)
    if not isinstance(acceptance, Mapping):
        expected = 'an object, as {"alpha": 0.8} or {"al": 3.5, "draft_length": 7}'
        raise InvalidRequest(f"{field}.acceptance", acceptance, expected)
    with _within(f"{field}.acceptance"):
        found = acceptance_of(acceptance)
        reach = acceptance.get("draft_length", found.depth)
        if block is not None and reach is not None and reach > block:
            name = "draft_length" if "draft_length" in acceptance else "acceptance"
            raise InvalidRequest(name, reach, f"drafts of at most {block}, its block")
    return found


@contextmanager
def _within(field: str) -> Iterator[None]:
    """Names where it stands a part that does not know that itself."""
    try:
        yield
    except InvalidRequest as error:
        if error.field.startswith(field):
            raise
        name = error.field.rpartition(".")[2]
        full = field if field.endswith(f".{name}") else f"{field}.{name}"
        raise InvalidRequest(full, error.value, error.expected) from None


def _checkpoint(field: str, stated: Mapping[str, Any]) -> str | None:
    checkpoint = stated.get("checkpoint")
    if checkpoint is not None and (not isinstance(checkpoint, str) or not checkpoint.strip()):
        raise InvalidRequest(f"{field}.checkpoint", checkpoint, "a folder or a hub id")
    return checkpoint

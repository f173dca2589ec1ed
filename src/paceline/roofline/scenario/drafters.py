"""A scenario's drafters, priced: the cost of each, and its model of acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from paceline.core import InvalidRequest, ModelError, PacelineError
from paceline.core.errors import check_integer
from paceline.roofline.acceptance import AcceptanceModel, Geometric
from paceline.roofline.architecture import Architecture, model_config
from paceline.roofline.cost import DrafterCost, free_drafts, look_up, share_of_step
from paceline.roofline.scenario.documents import BLOCK, StatedDrafter
from paceline.roofline.scenario.kinds import KINDS

MOST_LAYERS = 1024  # no model has so many; a slip of the pen must not keep a server busy
Read = TypeVar("Read")


@dataclass(frozen=True)
class PricedDrafter:
    """`block` is None where passes draft one token each; `max_draft` None where the scenario alone
    limits it. `longest` is the longest draft worth looking at."""

    name: str
    kind: str
    cost: DrafterCost
    acceptance: AcceptanceModel
    block: int | None
    max_draft: int | None
    checkpoint: str | None
    longest: int


def price(field: str, stated: StatedDrafter, target: Architecture, most: int) -> PricedDrafter:
    """Price a drafter of `target`; `field` is its place in the scenario, whose longest draft is
    `most`.

    Raises InvalidRequest for fields that do not go together, or ModelError for a config that is no
    such drafter of the target.
    """
    with _placed(field):
        _check_complete(field, stated)
        _check_cost(stated)
        cost = _cost(field, stated, target)
        block = stated.block
        if KINDS[stated.kind].drafts_block and block is None:
            block = cost.max_draft
        if stated.max_draft is not None and block is not None:
            expected = f"a draft length, 1 to {block}, its block"
            check_integer("max_draft", stated.max_draft, 1, block, expected)
        acceptance = _acceptance(f"{field}.acceptance", stated, block)
        limits = (most, block, stated.max_draft, acceptance.depth)
        return PricedDrafter(
            name=stated.name or stated.kind,
            kind=stated.kind,
            cost=cost,
            acceptance=acceptance,
            block=block,
            max_draft=stated.max_draft,
            checkpoint=stated.checkpoint,
            longest=min(limit for limit in limits if limit is not None),
        )


def reading_config(field: str, config: Mapping[str, object], read: Callable[[], Read]) -> Read:
    """Return `read()`; its errors name the config, which a user may have pasted from anywhere."""
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


@contextmanager
def _placed(field: str) -> Iterator[None]:
    """Name the place of a part, in the errors of code that knows the part alone."""
    try:
        yield
    except InvalidRequest as error:
        if error.field.startswith(field):
            raise
        name = error.field.rpartition(".")[2]
        full = field if field.endswith(f".{name}") else f"{field}.{name}"
        raise InvalidRequest(full, error.value, error.expected) from None


def _check_complete(field: str, stated: StatedDrafter) -> None:
    """Refuse a drafter that lacks several things at once: all of them are named."""
    kind = KINDS[stated.kind]
    missing = []
    if "config" in kind.costs and stated.cost is None and stated.config is None:
        missing.append("cost (of a pass, as a share of an AR step) or config")
        if kind.drafts_block and stated.block is None:
            missing.append("block (tokens that one pass drafts, with a cost)")
    elif kind.drafts_block and stated.config is None and stated.block is None:
        missing.append(f"block ({BLOCK})")
    if stated.acceptance is None and kind.costs:
        missing.append("acceptance (how well it drafts, as alpha or al with draft_length)")
    if len(missing) > 1:
        plain = stated.model_dump(exclude_none=True, exclude_defaults=True)
        raise InvalidRequest(field, plain, f"also {', '.join(missing)}")


def _check_cost(stated: StatedDrafter) -> None:
    """Refuse fields of the cost that the kind does not take, and none where it needs one."""
    kind = KINDS[stated.kind]
    fields = [name for name in ("cost", "config", "seconds") if getattr(stated, name) is not None]
    for name in fields:
        if name not in kind.costs:
            either = " or ".join(kind.costs) or "nothing: it is free"
            raise InvalidRequest(name, getattr(stated, name), f"for {stated.kind}: {either}")
    if "config" in kind.costs and len(fields) != 1:
        expected = "cost (of a pass, as a share of an AR step) or config, one of them"
        if kind.drafts_block and not fields and stated.block is None:
            expected += f"; and with a cost the block: {BLOCK}"
        raise InvalidRequest("cost", stated.cost, expected)
    if stated.block is not None and not kind.drafts_block:
        raise InvalidRequest("block", stated.block, f"no block for {stated.kind}")
    if stated.block is not None and stated.config is not None:
        raise InvalidRequest("block", stated.block, "the block of its config alone")
    if kind.drafts_block and stated.config is None and stated.block is None:
        raise InvalidRequest("block", None, BLOCK)


def _cost(field: str, stated: StatedDrafter, target: Architecture) -> DrafterCost:
    kind = KINDS[stated.kind]
    if stated.config is not None and kind.reader is not None:
        config, reader = stated.config, kind.reader
        config = model_config(config) if isinstance(config, str) else config
        return reading_config(f"{field}.config", config, lambda: reader(config, target))
    if stated.cost is not None:
        return share_of_step(stated.cost, stated.block or 1)
    if kind.own_layer is not None:
        return kind.own_layer(target)
    return look_up(stated.seconds or 0.0) if "seconds" in kind.costs else free_drafts()


def _acceptance(field: str, stated: StatedDrafter, block: int | None) -> AcceptanceModel:
    acceptance = stated.acceptance
    if acceptance is None:
        if not KINDS[stated.kind].costs:  # what is free may accept all
            return Geometric(1.0)
        expected = 'an object, as {"alpha": 0.8} or {"al": 3.5, "draft_length": 7}'
        raise InvalidRequest(field, None, expected)
    with _placed(field):
        model = acceptance.model()
        reach = model.depth if acceptance.draft_length is None else acceptance.draft_length
        if block is not None and reach is not None and reach > block:
            name = "acceptance" if acceptance.draft_length is None else "draft_length"
            raise InvalidRequest(name, reach, f"drafts of at most {block}, its block")
    return model

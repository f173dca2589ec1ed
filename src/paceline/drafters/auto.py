"""`auto`: suffix decoding, and prompt lookup where the suffix cache has no draft.

For a target that a drafter is shipped for, `auto` is `hybrid` with that drafter.
"""

from __future__ import annotations

from paceline.drafters.base import BuildContext, Drafter, DrafterSpec, register
from paceline.drafters.chain import look_up_drafter
from paceline.drafters.hybrid import hybrid_drafter
from paceline.drafters.shipped import find
from paceline.drafters.spec import read_options, refuse_value
from paceline.drafters.suffix import SUFFIX_OPTIONS

LABEL = "shipped drafter"


@register("auto")
def _build(spec: DrafterSpec, context: BuildContext) -> Drafter:
    refuse_value(spec)
    settings = read_options(spec, SUFFIX_OPTIONS)
    target = context.target
    shipped = None if target is None else find(target)
    if target is None or shipped is None:
        return look_up_drafter(spec.name, settings)
    if shipped.mismatch is not None:
        rows = [(LABEL, f"NOT used: {shipped.mismatch}")]
        return look_up_drafter(spec.name, settings, rows)
    rows = [(LABEL, f"used: DFlash, trained for these weights of {target.name}")]
    return hybrid_drafter(spec.name, str(shipped.folder), settings, context, rows)

"""Read what a distilled model was made from, and which of its sets held users' data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paceline.core.config_fields import ConfigFields
from paceline.models.json_files import read_optional_json

ORIGIN = "distilled.json"  # in the folder of such a model
USER_DATA = "user_data"  # in there: the sets of users' data that it learnt from
UNKNOWN = "the set that a model was distilled from"  # one that does not say whose it is


def user_sets(model: Path) -> tuple[str, ...]:
    """Return the sets of users' data that the model in a folder was distilled from. Raises
    ModelError for a file that says something else."""
    return sets_of(read_optional_json(model / ORIGIN), ORIGIN)


def sets_of(origin: Mapping[str, object], where: str) -> tuple[str, ...]:
    """Return those that the content of such a file names, which is found at `where`."""
    if not origin:
        return ()
    fields = ConfigFields(origin, where)
    return fields.words(USER_DATA) if fields.has(USER_DATA) else (UNKNOWN,)

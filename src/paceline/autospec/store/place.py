"""The folder of the store of drafters that no option names."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.core import InvalidRequest


def default_folder() -> Path:
    """Return the folder in the user's data directory, $XDG_DATA_HOME or ~/.local/share. Raises
    InvalidRequest (field `store`) for a user without a home folder."""
    given = os.environ.get("XDG_DATA_HOME")
    try:
        data = Path(given) if given else Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise InvalidRequest("store", None, f"a folder: there is no default ({error})") from error
    return data / "paceline" / "autospec"

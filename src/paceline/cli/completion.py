"""Complete a word that is half typed in a shell: names of models and devices, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paceline.core.names import listed_spellings


def _models(prefix: str, **_: object) -> list[str]:
    return _words(prefix, listed_spellings())


def _devices(prefix: str, **_: object) -> list[str]:
    from paceline.roofline.device import hardware_spellings

    return _words(prefix, hardware_spellings())


def _words(prefix: str, names: Iterable[str]) -> list[str]:
    """Return names in the case that the user writes, since case makes no difference, and files."""
    from argcomplete.completers import FilesCompleter  # here, since only a shell asks

    cased = [name.lower() for name in names] if prefix == prefix.lower() else list(names)
    return [*cased, *FilesCompleter()(prefix)]


# by the field that an option sets
COMPLETERS: dict[str, Callable[..., list[str]]] = {"model": _models, "hardware": _devices}

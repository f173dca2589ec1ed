"""Names as users write them, and the listed models that all commands know by the same names."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline.core.errors import InvalidRequest, shown

MOST_OFFERED = 12  # candidates of an ambiguous name that an error lists
MOST_GUESSES = 3
LEAST_START = 4  # characters of a misspelt start that is compared with those of names
_LISTED = Path(__file__).parent / "listed"


def _key(word: str) -> str:
    """Return what two spellings of one name share: case, `-`, `_` and spaces make no difference."""
    return word.strip().lower().translate(str.maketrans("", "", "-_ "))


def find_name(
    field: str, word: str, spellings: Mapping[str, str], *, whole: bool = False
) -> str | None:
    """Return the name that `word` means, or None where it begins no name.

    `spellings` maps every spelling to its name. A whole spelling goes before a prefix, and a prefix
    counts where all spellings that begin with it are of one name; with `whole` no prefix counts.
    Raises InvalidRequest with the candidates for a prefix of several.
    """
    key = _key(word)
    if not key:
        return None
    matches = {name for spelling, name in spellings.items() if _key(spelling) == key}
    if not matches and not whole:
        matches = {name for spelling, name in spellings.items() if _key(spelling).startswith(key)}
    names = sorted(matches, key=str.lower)
    if len(names) > 1:
        more = f" and {len(names) - MOST_OFFERED} more" if len(names) > MOST_OFFERED else ""
        expected = f"one of these that begin with it: {', '.join(names[:MOST_OFFERED])}{more}"
        raise InvalidRequest(field, word, expected)
    return names[0] if names else None


def guesses(word: str, spellings: Mapping[str, str]) -> list[str]:
    """Return the names that `word` may stand for: spelt alike, or with `word` in them. The start of
    a name stands for it, so a start that is spelt like `word` counts too."""
    key = _key(word)
    by_key = {_key(spelling): name for spelling, name in spellings.items()}
    close = difflib.get_close_matches(key, by_key, MOST_GUESSES, 0.7)
    within = [spelt for spelt in by_key if key and key in spelt]
    if len(key) >= LEAST_START:
        starts = {spelt: spelt[: len(key)] for spelt in by_key}
        alike = difflib.get_close_matches(key, {*starts.values()}, MOST_GUESSES, 0.8)
        within += [spelt for start in alike for spelt in by_key if starts[spelt] == start]
    return list(dict.fromkeys(by_key[spelt] for spelt in (*close, *within)))[:MOST_GUESSES]


def unknown_name(
    field: str, word: str, spellings: Mapping[str, str], expected: str, *, brief: str = ""
) -> InvalidRequest:
    """Return the refusal of a word that names nothing, with the names that are spelt alike. `brief`
    says what is expected where there are some: without a list of all names."""
    likely = guesses(word, spellings)
    if not likely:
        return InvalidRequest(field, word, expected)
    expected = brief or expected
    message = f"{field}: got {shown(word)}; did you mean {' or '.join(likely)}? Expected {expected}"
    return InvalidRequest(field, word, expected, message)


def local_path(word: str, field: str) -> Path:
    """Return the path that a word gives, with `~` expanded; nothing needs to be there. Raises
    InvalidRequest, naming `field`, for a word that cannot be looked up."""
    try:
        path = Path(word).expanduser()
        path.exists()
    except RuntimeError:  # `~name`
        expected = "a name, or a path whose ~ or ~user has a home folder here"
        raise InvalidRequest(field, word, expected) from None
    except OSError as error:
        expected = f"a name, or a path that can be looked up ({error.strerror})"
        raise InvalidRequest(field, word, expected) from None
    return path


# -- listed models ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListedModel:
    """A model whose config comes with Paceline, by its hub id ("org/name")."""

    hub_id: str

    @property
    def name(self) -> str:
        """The hub id without the organisation."""
        return self.hub_id.partition("/")[2]

    @property
    def path(self) -> Path:
        """The file with the model's config."""
        return _LISTED / (self.hub_id.replace("/", "--") + ".json")

    @property
    def config(self) -> dict[str, object]:
        """The model's config.json."""
        config: dict[str, object] = json.loads(self.path.read_text("utf-8"))
        return config


@cache
def listed_models() -> Mapping[str, ListedModel]:
    """Return the models whose configs come with Paceline, by name."""
    files = [item.name for item in _LISTED.iterdir() if item.name.endswith(".json")]
    models = [ListedModel(name.removesuffix(".json").replace("--", "/", 1)) for name in files]
    return {model.name: model for model in sorted(models, key=lambda model: model.name.lower())}


@cache
def listed_spellings() -> Mapping[str, str]:
    """Return the names of listed models by name and by hub id."""
    models = listed_models().values()
    return {spelling: model.name for model in models for spelling in (model.name, model.hub_id)}


def find_listed(word: str, field: str = "model") -> ListedModel | None:
    """Return the listed model of a name, hub id, or the start of one. Case does not matter.

    None where there is none. Raises InvalidRequest with the candidates for a start of several.
    """
    name = find_name(field, word, listed_spellings())
    return None if name is None else listed_models()[name]


def listed_model(word: str, field: str = "model") -> ListedModel:
    """Return the listed model of a name, hub id, or the start of one. Raises InvalidRequest."""
    model = find_listed(word, field)
    if model is None:
        expected = f"a folder, a config.json, or one of {', '.join(listed_models())}"
        raise unknown_name(field, word, listed_spellings(), expected)
    return model

"""Fields of a request that its model does not have.

They pass where they ask for nothing. Others are refused by name; a server with --lenient leaves
them out and says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from paceline.core import InvalidRequest
from paceline.core.field_types import field_names
from paceline.core.refusals import Path, refusal, unsupported_places, written
from paceline.server.fields import JsonObject
from paceline.server.protocol import RequestBody

R = TypeVar("R", bound=RequestBody)

MOST_IGNORED = 32  # names; a body with more of them is refused
IGNORED_HEADER = b"x-paceline-ignored"
# Fields of vLLM, SGLang and llama.cpp, each with the value that asks for what is done here anyway.
ASKS_NOTHING: dict[str, object] = {
    "cache_prompt": True,
    "detokenize": True,
    "documents": [],
    "dry_multiplier": 0,
    "dynatemp_range": 0,
    "early_stopping": False,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "extra_body": {},
    "include_stop_str_in_output": False,
    "length_penalty": 1,
    "mirostat": 0,
    "mm_processor_kwargs": {},
    "no_stop_trim": False,
    "options": {},
    "repeat_penalty": 1,
    "spaces_between_special_tokens": True,
    "tfs_z": 1,
    "top_a": 0,
    "top_n_sigma": -1,
    "typical_p": 1,
    "use_beam_search": False,
    "vllm_xargs": {},
    "xtc_probability": 0,
}


def without_idle_fields(stated: JsonObject, model: type[RequestBody]) -> JsonObject:
    """Return `stated` without the fields that `model` lacks and that ask for nothing.

    Raises InvalidRequest for a listed field with another value.
    """
    extra, known = stated.keys() - field_names(model), {**ASKS_NOTHING, **model.idle_fields}
    idle = {name for name in extra if _asks_nothing(name, stated[name], known)}
    for name in sorted(extra - idle):
        if name in known:
            expected = f"{written_value(known[name])}: this server supports no other value"
            raise InvalidRequest(name, stated[name], expected)
    return {name: value for name, value in stated.items() if name not in idle} if idle else stated


def read_leniently(stated: JsonObject, model: type[R]) -> tuple[R, list[str]]:
    """Read `stated` as a `model`, without what the model lacks or does not support. Return the
    names of the fields that were left out, in the order in which they were found.

    Raises InvalidRequest for what is wrong in another way, and for more than MOST_IGNORED names.
    """
    names, known = field_names(model), {**ASKS_NOTHING, **model.idle_fields}
    extra = [name for name in stated if name not in names]
    ignored = [written((name,)) for name in extra if not _asks_nothing(name, stated[name], known)]
    rest = {name: value for name, value in stated.items() if name in names}
    while True:
        if len(ignored) > MOST_IGNORED:
            expected = f"at most {MOST_IGNORED} fields that this server does not support"
            raise InvalidRequest(ignored[-1], "one more", expected)
        try:
            body = model.model_validate(rest)
        except ValidationError as error:
            places = unsupported_places(error, rest)
            if not places:
                raise refusal(error, rest, model) from None
            # each round leaves out a name in all items of a list, so that the rounds are few
            for place in places:
                _leave_out(rest, place)
            ignored += dict.fromkeys(_pattern(place) for place in places)
        else:
            return body, ignored


def header_value(ignored: list[str]) -> bytes:
    """Return the names as the value of a header; what a header cannot hold is percent-encoded."""
    return ", ".join(quote(name, safe=".[]-_") for name in ignored).encode()


def _asks_nothing(name: str, value: object, known: Mapping[str, object]) -> bool:
    """Return whether a value asks for nothing: null, or the one that is known. Of lists and objects
    each empty one does."""
    if value is None:
        return True
    if name not in known:
        return False
    idle = known[name]
    if isinstance(idle, list | dict):
        return value in ([], {})
    return value == idle and isinstance(value, bool) == isinstance(idle, bool)


def written_value(value: object) -> str:
    """Return a value as JSON writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _leave_out(document: object, place: Path) -> None:
    """Delete what lies at `place`, in every item of the lists on the way."""
    step, rest = place[0], place[1:]
    if isinstance(document, list):
        if isinstance(step, int):
            for item in document:
                _leave_out(item, rest)
    elif isinstance(document, dict) and step in document:
        if rest:
            _leave_out(document[step], rest)
        else:
            del document[step]


def _pattern(place: Path) -> str:
    """Return a place with `[]` for each item of a list."""
    steps = tuple("[]" if isinstance(step, int) else step for step in place)
    return written(steps).replace(".[]", "[]")

"""Values of a field that ask for nothing. This server accepts them in fields that it lacks.

The rule: null, false, "", [] and {} ask for nothing. Routers and other servers' clients send such
values for fields that nobody set. A number asks for something, 0 too. The rule is wrong for a few
fields; IDLE_VALUES lists them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from paceline.core.refusals import LONGEST_NAME

EMPTY_VALUES: tuple[object, ...] = (False, "", [], {})
CLOSE = 0.8  # names that are more alike than this are one name and its misspelling

# Each field has one value beside null that asks for nothing; a None says that it has no such value.
IDLE_VALUES: Mapping[str, object] = MappingProxyType(
    {
        # What they switch on is done here anyway, so false asks for something.
        "cache_prompt": True,
        "detokenize": True,
        "include_reasoning": True,
        "parse_tool_calls": True,
        "separate_reasoning": True,
        "spaces_between_special_tokens": True,
        "stream_reasoning": True,
        # These numbers switch a sampler or a penalty off, or are the only value here.
        "best_of": 1,
        "dry_multiplier": 0,
        "dynatemp_range": 0,
        "epsilon_cutoff": 0,
        "eta_cutoff": 0,
        "frequency_penalty": 0,
        "length_penalty": 1,
        "mirostat": 0,
        "n": 1,
        "presence_penalty": 0,
        "priority": 0,
        "repeat_penalty": 1,
        "repetition_penalty": 1,
        "tfs_z": 1,
        "top_a": 0,
        "top_n_sigma": -1,
        "typical_p": 1,
        "xtc_probability": 0,
        # An empty schema, grammar or list of choices allows any JSON, or nothing at all.
        "allowed_token_ids": None,
        "ebnf": None,
        "format": "",
        "guided_choice": None,
        "guided_grammar": None,
        "guided_json": None,
        "guided_regex": None,
        "json_schema": None,
        "regex": None,
        "samplers": None,
        "structural_tag": None,
        # Both values ask for something: what is done without them depends on the model, or only
        # other endpoints of this server have the field.
        "add_generation_prompt": None,
        "do_sample": None,
        "enable_reasoning": None,
        "enable_thinking": None,
        "parallel_tool_calls": None,
        "reasoning": None,
        "skip_special_tokens": None,
        "speculative": None,
        "think": None,
        "thinking": None,
        "web_search_options": None,
        # A chat template writes the special tokens itself; /v1/completions adds them.
        "add_special_tokens": False,
    }
)


def is_empty(value: object) -> bool:
    """Return whether a value asks for nothing by the rule."""
    return value is None or any(
        value == empty and type(value) is type(empty) for empty in EMPTY_VALUES
    )


def is_idle(name: str, value: object, exceptions: Mapping[str, object]) -> bool:
    """Return whether a value asks for nothing in the field `name`, which a body lacks.

    `exceptions` has the fields for which the rule is wrong.
    """
    if value is None:
        return True
    if name not in exceptions:
        return is_empty(value)
    idle = exceptions[name]
    return value == idle and isinstance(value, bool) == isinstance(idle, bool)


def misspelt(name: str, exceptions: Mapping[str, object]) -> str | None:
    """Return the exception that `name` is probably a misspelling of. The rule does not hold for
    such a name either: it may have been meant to switch something off."""
    if name in exceptions or len(name) > LONGEST_NAME:
        return None
    return next(iter(difflib.get_close_matches(name, exceptions, n=1, cutoff=CLOSE)), None)


def idle_words(value: object) -> str:
    """Say which values of the same kind as `value` would ask for nothing in an unknown field."""
    kinds = {bool: "false", str: '""', list: "[]", dict: "{}"}
    empty = kinds.get(type(value))
    return f"{empty}, null" if empty is not None and not is_empty(value) else "null"

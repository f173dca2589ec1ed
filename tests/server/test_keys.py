"""Lines of API keys: names, consents, and errors that show no key."""

from __future__ import annotations

import pytest

from paceline.core import InvalidRequest
from paceline.server.keys import ApiKey, read_keys


def test_the_three_forms_of_a_line() -> None:
    keys = read_keys(["sk-1", "team-a sk-2", "team-b sk-3 tokens=own", "c sk-4 tokens=no"])
    assert keys == [
        ApiKey("key-1", "sk-1", "no", named=False),
        ApiKey("team-a", "sk-2", "no"),
        ApiKey("team-b", "sk-3", "own"),
        ApiKey("c", "sk-4", "no"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "a sk-1 b",
        "a sk-1 tokens=all",
        "a sk-1 tokens=",
        "a tokens=own",
        "a b c tokens=own",
        "ä",
    ],
)
def test_a_line_that_is_none_of_them_is_refused_without_showing_it(line: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"api_keys: .*NAME KEY tokens=no\|own\|shared"
    ) as seen:
        read_keys(["good sk-0", line])
    assert "sk-" not in str(seen.value)


def test_a_key_is_not_in_its_repr() -> None:
    assert "sk-1" not in repr(read_keys(["team sk-1 tokens=own"]))


def test_a_name_stands_once() -> None:
    with pytest.raises(InvalidRequest, match=r"api_keys: got 'a'; expected each name"):
        read_keys(["a sk-1", "a sk-2"])

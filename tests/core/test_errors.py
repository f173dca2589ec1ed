"""What errors say, and the checks that raise them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from paceline.core import InvalidRequest, SamplingParams
from paceline.core.errors import Amount, check_number, check_numbers, shown


@pytest.mark.parametrize(
    "value",
    ["a" * 500, "it's \"so\"\n", b"ab", [1, 2, [3, {"a": (1,)}]], {}, [], (), (1, 2), {"a": None},
     None, 1.5, True, [[]], ["a" * 200], 10**300, {"k" * 200: 1}, [True, "x", {}] * 60],
)  # fmt: skip
def test_a_value_is_shown_as_python_writes_it_cut_at_120_characters(value: Any) -> None:
    """But for true, false and null, which are as in documents."""
    text = repr(value)
    for python, written in (("True", "true"), ("False", "false"), ("None", "null")):
        text = text.replace(python, written)
    assert shown(value) == (text if len(text) <= 120 else text[:117] + "...")


def test_huge_values_are_not_written_out_to_be_cut() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]  # repr() would end in a RecursionError
    huge = [["x" * 1_000_000] * 1000] * 1000
    began = time.process_time()
    assert shown(deep).startswith("[[[") and len(shown(deep)) <= 120
    assert shown(huge).startswith("[['xxx") and len(shown(huge)) == 120
    assert shown(10**5000) == "a number of 16610 bits"  # Python does not write it
    assert time.process_time() - began < 5  # CPU seconds; to write `huge` takes 1 GB
    while deep:
        deep = deep[0]  # freed from the outside in: no deep recursion at the end


def test_an_amount_stands_without_quotes() -> None:
    error = InvalidRequest("stop", Amount("5000 items"), "up to 16")
    assert str(error) == "stop: got 5000 items; expected up to 16"


@pytest.mark.parametrize("value", [10**309, 10**400, -(10**400), float("nan"), float("inf"), True])
def test_numbers_past_all_floats_are_out_of_range(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="field: got"):
        check_number("field", value, -100, 100, "less")
    with pytest.raises(InvalidRequest, match="field: got"):
        check_numbers("field", [1, 2.5, value, 3], -100, 100, "less", int, float)


@pytest.mark.parametrize("value", [-1, 11, 2.0, True, None, "a", 10**400])
def test_the_first_wrong_item_is_named(value: Any) -> None:
    check_numbers("field", [], 0, 10, "0 to 10", int)
    check_numbers("field", range(11), 0, 10, "0 to 10", int)
    with pytest.raises(InvalidRequest) as error:
        check_numbers("field", [1, 2, value, -5], 0, 10, "0 to 10", int)
    assert error.value.value is value


def test_long_lists_are_checked_in_no_time() -> None:
    biases = {token: 0.5 for token in range(500_000)}
    began = time.process_time()
    SamplingParams(logit_bias=biases, stop_token_ids=tuple(biases))
    assert time.process_time() - began < 5  # CPU seconds; to write `huge` takes 1 GB
    biases[5] = 101
    with pytest.raises(InvalidRequest, match="logit_bias: got 101"):
        SamplingParams(logit_bias=biases)

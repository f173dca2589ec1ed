"""Names as users write them: case, starts, hub ids, and what is offered for what names nothing."""

from __future__ import annotations

import pytest

from paceline.core import InvalidRequest
from paceline.core.names import find_name, guesses, listed_model, unknown_name

NAMES = {"Qwen3-8B": "Qwen3-8B", "org/Qwen3-8B": "Qwen3-8B", "Qwen3-80B": "Qwen3-80B",
         "RTX-4090": "RTX-4090", "Apple-M4": "Apple-M4", "Apple-M4-Max": "Max"}  # fmt: skip


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("Qwen3-8B", "Qwen3-8B"),  # whole, though Qwen3-80B is spelt nearly so
        ("qwen3_8b", "Qwen3-8B"),
        ("ORG/qwen3-8b", "Qwen3-8B"),
        ("rtx 4090", "RTX-4090"),
        ("rt", "RTX-4090"),
        ("apple-m4", "Apple-M4"),  # whole goes before the start of Apple-M4-Max
        ("4090", None),
        ("other/Qwen3-8B", None),  # another organisation's model
        ("", None),
    ],
)
def test_a_name_is_found_by_any_case_and_by_a_start_of_one_name(word: str, name: str) -> None:
    assert find_name("model", word, NAMES) == name


def test_a_start_of_several_names_lists_them_and_only_them() -> None:
    with pytest.raises(InvalidRequest, match=r"begin with it: Qwen3-80B, Qwen3-8B$"):
        find_name("model", "qwen", NAMES)
    assert find_name("model", "rt", NAMES, whole=True) is None


def test_what_names_nothing_is_answered_with_what_is_spelt_alike() -> None:
    assert guesses("Qwen3-9B", NAMES)[0] == "Qwen3-8B"
    assert guesses("4090", NAMES) == ["RTX-4090"]
    assert str(unknown_name("model", "4090", NAMES, "a name")) == (
        "model: got '4090'; did you mean RTX-4090? Expected a name"
    )
    assert "did you mean" not in str(unknown_name("model", "zzz", NAMES, "a name"))


def test_a_misspelt_start_of_a_long_name_is_guessed_too() -> None:
    names = {"SmolLM2-135M-Instruct": "smol", "Qwen3-8B": "qwen"}
    assert guesses("smolm2-135m", names) == ["smol"]
    refused = unknown_name("model", "smolm2", names, "one of 36 names", brief="a listed name")
    assert str(refused) == "model: got 'smolm2'; did you mean smol? Expected a listed name"


@pytest.mark.parametrize("word", ["smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_listed_models_go_by_catalogue_name_and_hub_id_too(word: str) -> None:
    assert listed_model(word).name == "SmolLM2-135M-Instruct"
    assert listed_model(word).config["hidden_size"] == 576

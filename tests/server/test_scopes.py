"""Scopes: whose prompts and answers a request may share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.server.serving import scope_salt
from paceline.server.settings import SHARE_ANSWERS, ServerSettings

from .conftest import CHAT, TEXT, Client
from .fake import FakeAsyncEngine


def test_scope_depends_on_key_salt_and_user() -> None:
    def salt(keys: tuple[str, ...], key: str, cache_salt: str | None, **names: str) -> bytes:
        client = Client(FakeAsyncEngine(), ServerSettings(api_keys=keys))
        headers = {"Authorization": f"Bearer {key}"}
        body = {**CHAT, "cache_salt": cache_salt, **names}
        client.post("/v1/chat/completions", json=body, headers=headers)
        return client.engine.submitted[0].salt

    keys = ("a", "b", "ab")
    scopes = [
        salt((), "ignored", None),
        salt((), "ignored", "s"),
        salt(keys, "a", None),
        salt(keys, "b", None),
        salt(keys, "a", "s"),
        salt(keys, "a", "b"),
        salt(keys, "ab", None),
        salt((), "", None, user="s"),
        salt((), "", None, safety_identifier="s"),
        salt((), "", "s", user="s"),
        salt(keys, "a", "s", user="b"),
        salt(keys, "a", None, user="s"),
    ]
    assert scopes[0] == b"" and len(set(scopes)) == len(scopes)
    assert salt(keys, "a", "s") == scopes[4]
    assert salt((), "", "", user="", safety_identifier="") == b"", "empty texts name nobody"


NAMES = (
    st.none()
    | st.text(st.characters(min_codepoint=0), max_size=4)
    | st.sampled_from(["", "-", "1:a", "--", "0:", "1:-"])
)
PARTS = st.tuples(NAMES, st.tuples(NAMES, NAMES, NAMES))


@given(PARTS, PARTS)
def test_different_names_are_different_scopes(one: Any, other: Any) -> None:
    assert (scope_salt(*one) == scope_salt(*other)) == (one == other)


@given(st.lists(NAMES, min_size=4, max_size=4))
def test_a_part_that_moves_makes_another_scope(parts: list[str | None]) -> None:
    first, *names = parts
    scopes = {scope_salt(*p) for p in ((first, names), (names[0], [first, *names[1:]]))}
    assert len(scopes) == 1 + (first != names[0])


@pytest.mark.parametrize("names", [{}, {"cache_salt": ""}, {"user": ""}])
def test_only_those_who_name_a_scope_are_told_what_was_cached(names: dict[str, str]) -> None:
    for setting in SHARE_ANSWERS:
        client = Client(FakeAsyncEngine(), ServerSettings(share_answers=setting))
        details = client.chat(**names).json()["usage"]["prompt_tokens_details"]
        assert (details is not None) == (setting == "always")
        named = client.chat(**names, safety_identifier="s").json()["usage"]
        assert named["prompt_tokens_details"]["cached_tokens"] > 0
        usage = {"include_usage": True, "continuous_usage_stats": True}
        text = client.chat(**names, stream=True, stream_options=usage).text
        assert ("cached_tokens" in text) == (setting == "always")


@pytest.mark.parametrize(
    ("setting", "unnamed", "named"),
    [("named", False, True), ("always", True, True), ("never", False, False)],
)
def test_whose_answers_are_shared(setting: str, unnamed: bool, named: bool) -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(share_answers=setting))
    for names, shared in (({}, unnamed), ({"user": "u"}, named), ({"cache_salt": "s"}, named)):
        client.chat(**names)
        request = client.engine.submitted[-1]
        assert request.answers_scope == (request.salt if shared else None)
    lossy = {"user": "u", "speculative": {"lossy": 0.1}}
    assert client.chat(**lossy).status_code == 200
    assert client.engine.submitted[-1].answers_scope is None


def test_a_request_carries_its_keys_name_and_whether_it_is_lossless() -> None:
    """By these a drafter knows what of a corpus a request may get."""
    client = Client(FakeAsyncEngine(), ServerSettings(api_keys=("shop sk-1", "sk-2")))
    for key, name, wish, lossless in (
        ("sk-1", "shop", None, True),
        ("sk-2", "key-2", None, True),
        ("sk-1", "shop", {"lossy": 0.1}, False),
    ):
        headers = {"Authorization": f"Bearer {key}"}
        body = {**TEXT, "speculative": wish}
        assert client.post("/v1/completions", json=body, headers=headers).status_code == 200
        request = client.engine.submitted[-1]
        assert (request.key, request.lossless) == (name, lossless)
    open_server = Client(FakeAsyncEngine(), ServerSettings())
    open_server.chat()
    assert open_server.engine.submitted[-1].key == ""

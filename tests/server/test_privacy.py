"""One client tries to read another's answer out of drafts: the attack of `explain` over one key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from paceline.server.settings import SHARE_ANSWERS

from .conftest import listening
from .test_real_engine import tiny_engine

VICTIM = {"prompt": [40, 41, 42, 43, 44], "seed": 1, "max_tokens": 60}
STEPS = (0, 6, 12, 18)  # how far into the answer the attacker steers
CHANGING = ("request", "time", "draft_ms", "step_ms", "step_requests", "step_rows")


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """A server for each setting, without a key: everybody is in one scope."""
    with ExitStack() as stack:
        yield {
            setting: stack.enter_context(
                listening(
                    tiny_engine(drafter=("suffix,min_token_prob=0", "auto"), max_num_seqs=4),
                    share_answers=setting,
                )
            ).url
            for setting in SHARE_ANSWERS
        }


def ask(url: str, **changes: Any) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "temperature": 5,  # hot, so that two answers agree in next to nothing
        "ignore_eos": True,
        "return_token_ids": True,
        "explain": True,
        "speculative": {"drafter": "suffix", "policy": "fixed"},
        **changes,
    }
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
        response = http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        if not body["explain"]:
            return answer
        told = http.get(f"/v1/requests/{answer['id']}/rounds")
        assert told.status_code == 200
        return {**answer, "rounds": told.json()["choices"][0]["rounds"]}


def said(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def steer(url: str, victims: list[int], seed: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """Asks with a piece of what the victim was told, a little further each time.

    `{at}` in a name is the step: each step then has a scope of its own, and does not draft from the
    steps before. With another seed the answers are new to the scope.
    """
    answers = []
    for at in STEPS:
        names = {k: v.format(at=at) if isinstance(v, str) else v for k, v in changes.items()}
        prompt = [200, 201, *victims[at : at + 6]]
        answers.append(ask(url, prompt=prompt, seed=seed + at, max_tokens=8, **names))
    return answers


def counted(answers: list[dict[str, Any]], name: str) -> int:
    return sum(one[name] for answer in answers for one in answer["rounds"])


def check_only_committed(answers: list[dict[str, Any]]) -> None:
    """Where tokens are hidden, nothing is shown of the draft but what the answer says itself."""
    for answer in answers:
        for one in answer["rounds"]:
            if not one["hidden_tokens"]:
                continue
            committed = [token["id"] for token in one["committed_tokens"]]
            for name in ("drafted_tokens", "verified_tokens"):
                shown = [token["id"] for token in one[name]]
                assert shown == committed[: len(shown)]
            assert len(one["drafted_tokens"]) + one["hidden_tokens"] == one["proposed"]
            assert len(one["confidence"]) == len(one["drafted_tokens"]) == one["accepted"]


def same(answers: list[dict[str, Any]]) -> list[Any]:
    """The rounds of answers without what differs between any two runs."""
    return [
        [{k: v for k, v in one.items() if k not in CHANGING} for one in answer["rounds"]]
        for answer in answers
    ]


@pytest.mark.parametrize("names", [{}, {"cache_salt": "mine"}, {"user": "mine"}])
def test_a_strangers_answer_leaves_no_trace_by_default(
    servers: dict[str, str], names: dict[str, str]
) -> None:
    """Neither the anonymous nor those with another name draft from it: not one round differs."""
    url = servers["named"]
    victims = said(ask(servers["never"], **VICTIM, speculative="off"))
    before = steer(url, victims, **{name: "before {at}" for name in names})
    ask(url, **VICTIM)
    ask(url, **VICTIM, user="victim")
    after = steer(url, victims, **{name: f"{value} {{at}}" for name, value in names.items()})
    assert same(after) == same(before)
    assert counted(after, "hidden_tokens") == 0


@pytest.mark.parametrize(
    ("setting", "names"),
    [("always", {}), ("always", {"user": "both"}), ("named", {"safety_identifier": "both"})],
)
@pytest.mark.parametrize("drafter", ["suffix", "auto"])
def test_what_is_shared_is_drafted_and_not_shown(
    servers: dict[str, str], setting: str, names: dict[str, str], drafter: str
) -> None:
    url, wish = servers[setting], {"drafter": drafter, "policy": "fixed"}
    victims = said(ask(url, **VICTIM, **names, speculative=wish))
    seed = {"suffix": 100, "auto": 200}[drafter]
    answers = steer(url, victims, seed, **names, speculative=wish)
    assert counted(answers, "hidden_tokens") > 0, "nothing was drafted from the victim's answer"
    check_only_committed(answers)


def test_a_stream_does_not_show_it_either(servers: dict[str, str]) -> None:
    url = servers["always"]
    victims = said(ask(url, **VICTIM))
    options = {"stream": True, "stream_options": {"include_rounds": True}}
    body = {
        "model": "tiny", "prompt": [200, 201, *victims[:6]], "seed": 300, "max_tokens": 8,
        "temperature": 5, "explain": True, "ignore_eos": True,
        "speculative": {"drafter": "suffix", "policy": "fixed"},
    }  # fmt: skip
    text = httpx.post(f"{url}/v1/completions", json={**body, **options}, trust_env=False).text
    chunks = [httpx.Response(200, content=line[6:]).json() for line in text.splitlines()
              if line.startswith("data: {")]  # fmt: skip
    rounds = [c["choices"][0]["round"] for c in chunks if "round" in c["choices"][0]]
    assert sum(one["hidden_tokens"] for one in rounds) > 0
    check_only_committed([{"rounds": rounds}])


def test_users_are_apart(servers: dict[str, str]) -> None:
    for setting in SHARE_ANSWERS:
        victims = said(ask(servers[setting], **VICTIM, user="alice"))
        answers = steer(servers[setting], victims, user="bob {at}")
        assert counted(answers, "hidden_tokens") == 0
        both = {"user": "alice", "cache_salt": "other {at}"}
        assert counted(steer(servers[setting], victims, **both), "hidden_tokens") == 0


def test_never_is_never(servers: dict[str, str]) -> None:
    victims = said(ask(servers["never"], **VICTIM, user="alice"))
    answers = steer(servers["never"], victims, user="alice")
    assert counted(answers, "hidden_tokens") == 0


def lead_in(url: str, victims: list[int], at: int, **changes: Any) -> dict[str, Any]:
    """Has the model itself say the last token of the victim's first `at`: what follows is drafted
    before anything else has been said."""
    changes.setdefault("speculative", {"drafter": "suffix", "policy": "fixed"})
    bias = {str(victims[at - 1]): 100}
    prompt = [200, 201, *victims[at - 6 : at - 1]]
    answer = ask(url, prompt=prompt, seed=0, max_tokens=8, logit_bias=bias, **changes)
    assert said(answer)[0] == victims[at - 1]
    return answer


@pytest.mark.parametrize("setting", SHARE_ANSWERS)
def test_a_steered_model_does_not_tell_in_its_drafts(servers: dict[str, str], setting: str) -> None:
    victims = said(ask(servers[setting], **VICTIM))
    for at in (6, 20):
        rounds = lead_in(servers[setting], victims, at)["rounds"]
        for name in ("drafted_tokens", "verified_tokens"):
            drafts = [[token["id"] for token in one[name]] for one in rounds]
            assert victims[at : at + 2] not in [draft[:2] for draft in drafts]


def test_a_lossy_request_is_not_told_anothers_answer(servers: dict[str, str]) -> None:
    """With the whole budget every draft stands: it must not be another's text."""
    url = servers["always"]
    victims = said(ask(url, **VICTIM))
    wish = {"drafter": "suffix", "policy": "fixed", "lossy": 1.0}
    for at in (6, 20):
        assert said(lead_in(url, victims, at, speculative=wish))[1:3] != victims[at : at + 2]


def test_the_setting_changes_no_text(servers: dict[str, str]) -> None:
    texts = []
    for url in servers.values():
        victims = said(ask(url, **VICTIM, user="u"))
        texts.append([victims, *(said(a) for a in steer(url, victims, user="u"))])
    assert texts[0] == texts[1] == texts[2]

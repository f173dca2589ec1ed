"""A corpus on a server: whom it serves, what clients see of it, and that no text depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.drafters.corpus_folder import CorpusAnswer
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.models.loader import tokenizer_digest
from tests.drafters.corpora import make_corpus
from tests.engine.tiny import save_tiny

from .conftest import listening

KEYS = {"shop": "sk-1", "bank": "sk-2"}
PROMPT = [40, 41, 42, 43, 44]
ASKED = {
    "model": "model", "prompt": PROMPT, "seed": 1, "max_tokens": 40, "temperature": 5,
    "ignore_eos": True, "return_token_ids": True, "explain": True,
    "speculative": {"policy": "fixed"},
}  # fmt: skip


def ask(url: str, key: str, **changes: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {KEYS[key]}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as http:
        response = http.post("/v1/completions", json={**ASKED, **changes})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        told = http.get(f"/v1/requests/{answer['id']}/rounds").json()
        return {**answer, "rounds": told["choices"][0]["rounds"]}


def said(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def accepted(answer: dict[str, Any]) -> int:
    return sum(one["accepted"] for one in answer["rounds"])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same server without a corpus, with one for all keys, and with one of the key `shop`. The
    corpora hold what it answers to ASKED."""
    folder = tmp_path_factory.mktemp("home") / "model"
    folder.mkdir()
    save_tiny(folder)

    def url_of(stack: ExitStack, spec: str) -> str:
        options = {"dtype": "float32", "backend": "torch", "threads": 1, "max_num_seqs": 4}
        engine = build_engine(EngineConfig(model=str(folder), drafter=spec, **options))
        keys = tuple(f"{name} {key}" for name, key in KEYS.items())
        return stack.enter_context(listening(AsyncEngine(engine), api_keys=keys)).url

    def corpus(root: Path, scope: str | None, text: list[int]) -> str:
        answer = CorpusAnswer(1.0, "model|a|en|none", scope or "", PROMPT, text)
        made = make_corpus(root, [answer], scope=scope, tokenizer=tokenizer_digest(folder))
        return f"suffix,corpus={made}"

    with ExitStack() as stack:
        urls = {"none": url_of(stack, "suffix")}
        text, root = said(ask(urls["none"], "shop")), folder.parent
        urls["all"] = url_of(stack, corpus(root / "all", None, text))
        urls["shop"] = url_of(stack, corpus(root / "shop", "shop", text))
        yield urls


def test_a_corpus_drafts_for_whoever_it_is_for(servers: dict[str, str]) -> None:
    plain = {key: accepted(ask(servers["none"], key)) for key in KEYS}
    assert max(plain.values()) < 10, "random text repeats itself: nothing can be told"
    assert {key for key in KEYS if accepted(ask(servers["all"], key)) > 20} == set(KEYS)
    assert {key for key in KEYS if accepted(ask(servers["shop"], key)) > 20} == {"shop"}
    assert accepted(ask(servers["shop"], "bank")) == plain["bank"]


def test_no_text_depends_on_it(servers: dict[str, str]) -> None:
    for seed in (1, 2):
        texts = [said(ask(url, "shop", seed=seed)) for url in servers.values()]
        assert texts[0] == texts[1] == texts[2]


def test_what_of_it_is_not_committed_is_not_shown(servers: dict[str, str]) -> None:
    """With another seed the answer leaves what the corpus holds."""
    known = said(ask(servers["none"], "shop"))
    hidden = 0
    for seed in range(2, 8):
        bias = {"logit_bias": {str(known[0]): 100}, "max_tokens": 12}
        answer = ask(servers["all"], "bank", seed=seed, **bias)
        for one in answer["rounds"]:
            hidden += one["hidden_tokens"]
            committed = [token["id"] for token in one["committed_tokens"]]
            drafted = [token["id"] for token in one["drafted_tokens"]]
            if one["hidden_tokens"]:
                assert drafted == committed[: len(drafted)]
    assert hidden > 0, "nothing was drafted from the corpus"


def test_a_lossy_request_gets_nothing_of_it(servers: dict[str, str]) -> None:
    """With the whole budget every draft stands: it must not be another's text."""
    known = said(ask(servers["none"], "shop"))
    wish = {"policy": "fixed", "lossy": 1.0}
    changes = {"logit_bias": {str(known[0]): 100}, "seed": 7, "speculative": wish}
    assert said(ask(servers["all"], "bank", **changes))[1:4] != known[1:4]

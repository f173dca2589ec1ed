"""The whole evaluation: the real engine over a tiny model, a drafter with planted errors."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.bench.load.answers import MeasuredAnswer
from paceline.core import FinishReason, InvalidRequest, ModelError, Request
from paceline.core.rounds import AR
from paceline.dataset.training_set import read_manifest, write_manifest, write_shard
from paceline.drafters.replay import true_tokens
from paceline.drafters.suffix import ResponseCache, SuffixDrafter
from paceline.evaluate import measure, numbers
from paceline.evaluate.evaluation import evaluate
from paceline.evaluate.result import TIMED, EvaluationSettings
from paceline.models.loader import identity, load_model
from tests.engine.tiny import save_tiny
from tests.evaluate.made import FULLY, synth_row, synth_set
from tests.models.dflash.tiny import write_drafter

ENGINE: dict[str, Any] = {"dtype": "bfloat16", "threads": 1,
                          "kv_memory": 2**24}  # fmt: skip
PROMPTS = [f"prompt {chr(97 + i) * (i + 1)}" for i in range(6)]
LONG, ENDING = "long", "ending"  # answers: none ends before the limit; two do
PROFILE = (0.9, 0.7, 0.5, 0.3)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a file of prompts, and what the target says to them at T = 1, under the first seed
    by which no answer ends before the limit, and the first by which two do."""
    home = tmp_path_factory.mktemp("evaluate")
    (home / "target").mkdir()
    save_tiny(home / "target", blur=0.0)
    (home / "few.jsonl").write_text("\n".join(json.dumps({"prompt": p}) for p in PROMPTS))
    llm = LLM(str(home / "target"), None, **ENGINE)
    for name, ending in ((LONG, 0), (ENDING, 2)):
        for seed in range(0, 600, len(PROMPTS)):
            params = [SamplingParams(temperature=1, max_tokens=48, seed=seed + index)
                      for index in range(len(PROMPTS))]  # fmt: skip
            said = llm.generate(PROMPTS, params)
            if sum(r.finish_reason == FinishReason.STOP for r in said) == ending:
                break
        learnt = [{"prompt_ids": r.prompt_ids, "output_ids": r.token_ids} for r in said]
        (home / f"{name}.json").write_text(json.dumps(learnt))
        (home / f"{name}.seed").write_text(str(seed))
    return home


def run(home: Path, drafter: str, sets: list[str] | None = None, **settings: Any) -> dict[str, Any]:
    default = {"tokens": 48, "temperatures": (1.0,), "seed": seed_of(home, LONG)}
    chosen = EvaluationSettings(**{**default, **settings})
    evaluation = evaluate(
        str(home / "target"), drafter, sets or [f"{home}/few.jsonl"], chosen, **ENGINE
    )
    return evaluation.as_json()


def seed_of(home: Path, name: str) -> int:
    return int((home / f"{name}.seed").read_text())


def replay(home: Path, profile: str, name: str = LONG) -> str:
    return f"mine=replay:{home}/{name}.json,profile={profile}"


# -- planted acceptance ----------------------------------------------------------------------------


def test_a_drafter_that_is_right_twice_has_an_acceptance_length_of_three(home: Path) -> None:
    result = run(home, replay(home, "1/1/0/0"))
    (one,) = result["results"]
    found = one["acceptance"]["drafter"]
    assert found["rounds"] > 50
    assert found["al"] == found["al_mean_of_requests"] == 3.0 and found["al_interval"] == [3, 3]
    assert [each["share"] for each in found["positions"]] == [1, 1, 0, 0]
    assert [each["conditional"] for each in found["positions"]] == [1, 1, 0, None]
    assert {c["al"] for c in found["contexts"]} == {3.0}
    assert result["same_text"] and result["drafters"]["drafter"] == {"version": "1", "block": 4}


def planted(home: Path, name: str) -> list[int]:
    """How many tokens each counted round must have accepted, worked out without the engine."""
    accepted = []
    answers = json.loads((home / f"{name}.json").read_text())
    for seed, learnt in enumerate(answers, seed_of(home, name)):
        prompt, said = learnt["prompt_ids"], learnt["output_ids"]
        position = 1
        while position + 4 + 1 <= 48 and position < len(said):
            request = Request(id="", prompt_ids=prompt, params=SamplingParams(), seed=seed)
            request.tokens = prompt + said[:position]
            # One token is the target's own, be it the last of the text.
            accepted.append(min(true_tokens(request, PROFILE), len(said) - position - 1))
            position += accepted[-1] + 1
    return accepted


@pytest.mark.parametrize("name", [LONG, ENDING])
def test_planted_acceptance_is_what_is_reported_and_by_position(home: Path, name: str) -> None:
    drafter = replay(home, "/".join(map(str, PROFILE)), name)
    result = run(home, drafter, seed=seed_of(home, name))
    ended = [row["finish_reason"] == "stop" for row in result["results"][0]["rows"]]
    assert sum(ended) == (2 if name == ENDING else 0)
    found = result["results"][0]["acceptance"]["drafter"]
    accepted = planted(home, name)
    assert found["rounds"] == len(accepted) > 20
    assert found["al"] == pytest.approx(1 + sum(accepted) / len(accepted))
    shares = [sum(a >= k for a in accepted) / len(accepted) for k in range(1, 5)]
    assert [each["share"] for each in found["positions"]] == pytest.approx(shares)
    assert found["al"] == pytest.approx(1 + sum(shares))


def test_every_drafter_is_measured_on_the_same_text(home: Path) -> None:
    result = run(home, replay(home, "1/1/1/1"), runs=2)
    (one,) = result["results"]
    for row in one["rows"]:
        assert len(row["same_text"]) == 6 and all(row["same_text"].values())
        assert {len(runs) for runs in row["seconds"].values()} == {2}
        assert set(row["rounds"]) == set(row["same_text"])
    assert one["acceptance"]["drafter"]["al"] == 5.0
    assert set(one["speed"]) == set(TIMED) - {AR}
    assert all(speed["speedup"] > 0 for speed in one["speed"].values())


def test_seeds_are_the_prompts_own_and_fixed(home: Path) -> None:
    few = {"prompts": 3, "tokens": 8}
    first, again = (run(home, "ngram", **few) for _ in range(2))
    other = run(home, "ngram", **few, seed=50)
    digests = [[row["output_sha256"] for row in r["results"][0]["rows"]] for r in (first, again)]
    assert digests[0] == digests[1] and len(set(digests[0])) == 3
    assert digests[0] != [row["output_sha256"] for row in other["results"][0]["rows"]]


# -- loops -----------------------------------------------------------------------------------------


def test_a_looping_text_does_not_raise_the_acceptance_length(home: Path) -> None:
    """The tiny model loops at T = 0, and ngram guesses every loop."""
    result = run(home, "ngram", tokens=128, temperatures=(0.0,))
    (one,) = result["results"]
    assert one["looping"] == len(PROMPTS)
    cut = one["acceptance"]["drafter"]["al"]
    uncut = [{**row, "counted_tokens": row["output_tokens"]} for row in one["rows"]]
    flattered = numbers.acceptance(uncut, FULLY, tokens=128, block=15).al
    assert flattered > cut + 0.5  # the control: without the cut it would be raised
    alone = one["acceptance"]["ngram"]
    assert alone["al"] == cut  # the same drafter, beside itself


# -- the warmed suffix tree ------------------------------------------------------------------------


def test_a_warmed_suffix_drafter_keeps_nothing_of_what_it_answers() -> None:
    drafter = SuffixDrafter("suffix")
    (memory,) = drafter.memories
    memory.close()
    memory.warm(b"scope", (1, 2), (3, 4, 5))
    request = Request(id="a", prompt_ids=[1, 2], params=SamplingParams(), max_draft_len=3)
    request.answers_scope, request.tokens = b"scope", [1, 2, 3]
    drafter.begin([request], [0])
    assert drafter.propose([request], [3]).tokens == [[4, 5]]
    request.finish_reason = FinishReason.STOP
    drafter.release([request])
    assert len(memory) == len(drafter.cache) == 1


def test_no_prompt_meets_its_own_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: dict[bytes, set[tuple[int, ...]]] = {}
    asked: dict[tuple[int, ...], set[bytes]] = {}
    ask, warm = measure.ask_engine, ResponseCache.warm

    def spy_ask(engine: Any, ids: list[int], params: Any, wish: Any, **more: Any) -> MeasuredAnswer:
        if wish.drafter == "beside-suffix":
            asked.setdefault(tuple(ids), set()).add(more["salt"])
        return ask(engine, ids, params, wish, **more)

    def spy_warm(self: ResponseCache, scope: bytes, context: Any, answer: Any) -> None:
        warmed.setdefault(scope, set()).add(tuple(context))
        warm(self, scope, context, answer)

    monkeypatch.setattr(measure, "ask_engine", spy_ask)
    monkeypatch.setattr(ResponseCache, "warm", spy_warm)
    result = run(home, "ngram", tokens=8, runs=2)
    assert "every other prompt" in result["results"][0]["warmed"]
    assert len(asked) == len(PROMPTS)
    for ids, (scope,) in asked.items():
        assert len(warmed[scope]) == 3 and ids not in warmed[scope]


@pytest.mark.parametrize(
    "drafter", [pytest.param("mine=suffix", marks=pytest.mark.slow), "mine=auto"]
)
def test_a_drafter_that_remembers_does_not_copy_its_own_answer(home: Path, drafter: str) -> None:
    """Random text repeats itself too little to be looked up; an answer that was given before is
    copied whole."""
    (one,) = run(home, drafter, runs=2)["results"]
    assert one["acceptance"]["drafter"]["al"] < 1.5


@pytest.mark.parametrize(
    "drafter", [pytest.param("mine=suffix", marks=pytest.mark.slow), "mine=auto"]
)
def test_a_warmed_drafter_has_what_suffix_has(home: Path, drafter: str) -> None:
    """Asked twice, each prompt's answer is among those that the other half was warmed with."""
    doubled = home / "doubled.jsonl"
    doubled.write_text("\n".join(json.dumps({"prompt": p}) for p in PROMPTS for _ in range(2)))
    cold, warmed = (
        run(home, drafter, [str(doubled)], temperatures=(0.0,), warm=warm)["results"][0]
        for warm in (False, True)
    )
    alone, own, suffix = (
        one["acceptance"][who]["al"]
        for one, who in ((cold, "drafter"), (warmed, "drafter"), (warmed, "suffix"))
    )
    assert own > 1.2 * alone and own >= suffix


def test_only_what_remembers_can_be_warmed(home: Path) -> None:
    with pytest.raises(
        InvalidRequest, match=r"warm: got 'ngram'.*remembers answers: auto, hybrid, suffix"
    ):
        run(home, "ngram", warm=True)


def test_a_set_with_a_train_split_warms_with_that(home: Path, tmp_path: Path) -> None:
    folder = synth_set(tmp_path / "mine", train=5)
    sets = [f"task={folder}", f"near={folder}:neighbour"]
    result = run(home, "ngram", sets, tokens=16, temperatures=(0.0, 1.0))
    found = [(r["set"], r["role"], r["temperature"], r["requests"]) for r in result["results"]]
    assert found == [
        ("task", "on task", 0.0, 6),
        ("near", "out of domain", 0.0, 2),
        ("task", "on task", 1.0, 6),
        ("near", "out of domain", 1.0, 2),
    ]
    assert {r["warmed"] for r in result["results"]} == {"5 answers of the set's train split"}


# -- what must not pass ----------------------------------------------------------------------------


def test_an_unequal_text_is_found_wherever_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = measure.ask_engine

    def lossy(engine: Any, ids: list[int], params: Any, wish: Any, **more: Any) -> MeasuredAnswer:
        answer = ask(engine, ids, params, wish, **more)
        chosen = params.seed == seed_of(home, LONG) + 2
        if wish.drafter == "beside-suffix" and wish.policy == "fixed" and chosen:
            answer.token_ids[-1] += 1
        return answer

    monkeypatch.setattr(measure, "ask_engine", lossy)
    result = run(home, replay(home, "1"))
    assert not result["same_text"] and not result["results"][0]["same_text"]
    rows = enumerate(result["results"][0]["rows"])
    wrong = [(index, side) for index, row in rows
             for side, same in row["same_text"].items() if not same]  # fmt: skip
    assert wrong == [(2, "suffix/full")]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tokens": 257}, "tokens: got 257; expected from 2 to 256"),
        ({"tokens": 1}, "tokens: got 1"),
        ({"prompts": 0}, "prompts: got 0"),
        ({"runs": 0}, "runs: got 0"),
        ({"temperatures": ()}, "temperatures: got .*at least one"),
        ({"temperatures": (1.0, 1.0)}, "temperatures: got .*each once"),
        ({"temperatures": (-1.0,)}, "temperature: got -1.0"),
        ({"seed": -1}, "seed: got -1"),
    ],
)
def test_settings_are_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        EvaluationSettings(**settings)


def test_a_drafter_for_another_model_is_refused(home: Path, tmp_path: Path) -> None:
    stranger = write_drafter(tmp_path / "stranger", hidden_size=128, num_attention_heads=8)
    with pytest.raises(ModelError, match="hidden_size is 128; expected 64"):
        run(home, str(stranger))


@pytest.mark.parametrize(
    ("key", "what"), [("template", "chat template"), ("tokenizer_sha256", "tokenizer")]
)
def test_a_set_made_otherwise_is_refused(home: Path, tmp_path: Path, key: str, what: str) -> None:
    ours = identity(load_model(str(home / "target")))
    folder = synth_set(tmp_path / "mine", target={**ours, key: "feedface"})
    with pytest.raises(InvalidRequest, match=f"sets: got 'mine'.*this model's {what} .*feedface"):
        run(home, "ngram", [str(folder)])


def test_a_set_of_the_models_own_is_taken(home: Path, tmp_path: Path) -> None:
    folder = synth_set(tmp_path / "mine", target=identity(load_model(str(home / "target"))))
    assert run(home, "ngram", [str(folder)], prompts=1, tokens=8)["same_text"]


def test_a_set_of_other_token_ids_is_refused(home: Path, tmp_path: Path) -> None:
    folder = synth_set(tmp_path / "mine")
    row = replace(synth_row("question", "said"), ids=(1, 2, 300, 4), spans=((3, 4),))
    manifest = read_manifest(folder)
    manifest.shards = [write_shard(folder, "held_out", 1, [row])]
    write_manifest(folder, manifest)
    with pytest.raises(InvalidRequest, match=r"sets: got 'mine, question'.*token ids below 256"):
        run(home, "ngram", [str(folder)])


def test_the_garbage_collector_is_left_as_it_was(home: Path) -> None:
    gc.unfreeze()
    run(home, "ngram", prompts=1, tokens=8)
    assert gc.get_freeze_count() == 0 and gc.isenabled()


@pytest.mark.model
@pytest.mark.slow
def test_the_shipped_set_on_the_real_model() -> None:
    settings = EvaluationSettings(prompts=2, tokens=24, temperatures=(0.0,))
    small = {"max_model_len": 1024, "kv_memory": 2**26}
    result = evaluate("smollm2-135m", "suffix", ["demo"], settings, **small)
    (one,) = result.results
    assert result.same_text and one.requests == 2
    assert one.acceptance["drafter"].rounds > 0

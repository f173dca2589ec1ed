"""Answers that an application binds to a grammar are bound in its evaluation too, and no others."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline import LLM
from paceline.bench.load.answers import MeasuredAnswer, ask_engine
from paceline.core import Grammar, InvalidRequest, SamplingParams, SpeculativeParams
from paceline.dataset.training_set import MANIFEST
from paceline.evaluate import measure
from paceline.evaluate.comparison import compare
from paceline.evaluate.evaluation import evaluate
from paceline.evaluate.report import evaluation_table, lines, page
from paceline.evaluate.result import Evaluation, EvaluationSettings
from tests.synth.fake import FakeAnswerer, by_seed
from tests.synth.sets import run as make
from tests.synth.test_ask import TOOLS
from tests.synth.tiny import made, save_target

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "maximum": 9999}, "sure": {"enum": ["y", "n"]}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
CHANGES: dict[str, Any] = {"held_out": 0.3, "mix": {"on_task": 0.5, "replay": 0.4,
                                                    "neighbour": 0.1}}  # fmt: skip
ENGINE: dict[str, Any] = {"dtype": "bfloat16", "threads": 1,
                          "kv_memory": 2**24}  # fmt: skip
ENDING = FakeAnswerer(lambda ask: (by_seed(ask)[0], "stop"))
Said = dict[tuple[int, ...], list[MeasuredAnswer]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and a set of it whose on-task answers are bound, and whose others are not."""
    home = tmp_path_factory.mktemp("bound")
    parts = made(home, save_target(home / "target"), grammar={"kind": "json", "value": SCHEMA},
                 **CHANGES)  # fmt: skip
    make(parts, home / "mine", ENDING)
    return home


def judged(home: Path, *sets: Path | str, drafter: str = "ngram", **settings: Any) -> Any:
    """The JSON of an evaluation."""
    chosen = EvaluationSettings(**{"prompts": 8, "tokens": 40, "temperatures": (1.0,), **settings})
    return measured(home, *sets, drafter=drafter, chosen=chosen).as_json()


def measured(home: Path, *sets: Path | str, drafter: str, chosen: EvaluationSettings) -> Evaluation:
    return evaluate(str(home / "target"), drafter, list(map(str, sets)), chosen, **ENGINE)


def again(result: Any) -> Evaluation:
    """An evaluation, read from its JSON."""
    return Evaluation.from_json(json.loads(json.dumps(result)), "before")


def edited(home: Path, out: Path, **bound: Any) -> Path:
    """The set with another manifest: `bound` changed, or left out where nothing is given."""
    out.mkdir()
    for path in (home / "mine").iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((out / MANIFEST).read_text())
    if bound:
        manifest["app"]["bound"] |= bound
    else:
        del manifest["app"]["bound"]
    (out / MANIFEST).write_text(json.dumps(manifest))
    return out


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """Every answer of an evaluation, by its prompt."""
    found: Said = {}
    ask = measure.ask_engine

    def listening(engine: Any, ids: list[int], *more: Any, **named: Any) -> MeasuredAnswer:
        answer = ask(engine, ids, *more, **named)
        found.setdefault(tuple(ids), []).append(answer)
        return answer

    monkeypatch.setattr(measure, "ask_engine", listening)
    return found


def conforms(answer: MeasuredAnswer) -> bool:
    try:
        value = json.loads(answer.text)
    except ValueError:
        return False
    return answer.finish_reason == "stop" and set(value) == {"answer", "sure"}


def test_bound_answers_keep_to_the_grammar_on_every_side_and_free_ones_do_not(
    home: Path, said: Said
) -> None:
    result = judged(home, home / "mine")
    (one,) = result["results"]
    assert result["same_text"]
    rows = {row["prompt_sha256"]: row for row in one["rows"]}
    kinds = {row["prompt"].split("#")[0] for row in one["rows"]}
    assert kinds == {"task", "chat"}
    for ids, answers in said.items():
        row = rows[measure.digest(ids)]
        bound = row["prompt"].startswith("task#")
        assert {conforms(answer) for answer in answers} == {bound}
        assert (row["grammar_sha256"] is not None) == bound == (row["forced_tokens"] > 0)
    assert one["bound"] == sum(row["prompt"].startswith("task#") for row in one["rows"])
    assert 0 < one["bound"] < one["requests"] and one["grammar"]["kind"] == "json_schema"
    assert one["forced_tokens"] == sum(row["forced_tokens"] for row in one["rows"])


def test_tools_bind_answers_to_calls(home: Path, tmp_path: Path, said: Said) -> None:
    parts = made(tmp_path, home / "target", tools=TOOLS, context=800, **CHANGES)
    make(parts, tmp_path / "tools", ENDING)
    result = judged(home, f"{tmp_path}/tools:on_task", prompts=3)
    assert result["same_text"] and result["results"][0]["grammar"]["kind"] == "lark"
    assert {a.text[:40] for each in said.values() for a in each} == {
        '<tool_call>\n{"name": "refund", "argument'
    }


def test_choices_of_a_set_without_bound_rows_are_free(home: Path) -> None:
    sets = [f"{home}/mine:on_task", f"{home}/mine:replay", f"{home}/mine:neighbour"]
    result = judged(home, *sets, tokens=20, prompts=2)
    assert [one["bound"] for one in result["results"]] == [2, 0, 0]
    assert [one["grammar"] is None for one in result["results"]] == [False, True, True]


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_rounds_commit_what_plain_decoding_needs_forwards_for(home: Path, drafter: str) -> None:
    """Forced tokens are in no round's count, with speculation on and off."""
    llm = LLM(str(home / "target"), drafter, **ENGINE)
    grammar = Grammar("json_schema", json.dumps({"type": "array", "items": SCHEMA, "minItems": 4,
                                                 "maxItems": 4}))  # fmt: skip
    accepted = 0
    for seed in range(8):
        params = SamplingParams(temperature=0.6, max_tokens=200, seed=seed, grammar=grammar)

        def ask(
            wish: SpeculativeParams, params: SamplingParams = params, salt: bytes = bytes([seed])
        ) -> MeasuredAnswer:
            return ask_engine(llm.engine, [40, 41, 42], params, wish, salt=salt)

        plain, drafted = ask(SpeculativeParams(off=True)), ask(SpeculativeParams(policy="fixed"))
        assert plain.token_ids == drafted.token_ids and plain.finish_reason == "stop"
        assert sum(1 + each.accepted for each in drafted.rounds) == len(plain.rounds)
        assert not any(each.accepted for each in plain.rounds)
        assert all(each.accepted <= each.drafted for each in drafted.rounds)
        assert len(plain.rounds) < len(plain.token_ids) / 2  # most of them are forced
        accepted += sum(each.accepted for each in drafted.rounds)
    assert accepted > 4


def test_every_report_says_what_answers_were_bound_to(home: Path) -> None:
    result = judged(home, f"task={home}/mine:on_task", f"free={home}/mine:replay", prompts=3,
                    tokens=24)  # fmt: skip
    one = json.loads(json.dumps(result))["results"][0]
    told = (
        f"3 of 3 answers were bound to a JSON schema ({one['grammar']['sha256'][:8]}) as the "
        f"application binds them: {one['forced_tokens']} of {one['counted_tokens']} counted "
        "tokens were forced, and are in no AL"
    )
    assert page(again(result)).count(told) == 1
    assert evaluation_table(again(result)).count(told) == 1
    screen = Console(file=io.StringIO(), width=300)
    for line in lines(again(result)):
        screen.print(line, markup=False)
    assert screen.file.getvalue().count(told) == 1  # type: ignore[attr-defined]
    assert "sure" not in json.dumps(result)  # the schema itself stays where it is


def test_a_manifest_of_before_is_free(home: Path, tmp_path: Path) -> None:
    old = edited(home, tmp_path / "mine")
    free = judged(home, f"{old}:on_task", prompts=2, tokens=24)
    assert free["results"][0]["bound"] == 0 and free["results"][0]["forced_tokens"] == 0
    bound = judged(home, f"{home}/mine:on_task", prompts=2, tokens=24)
    with pytest.raises(InvalidRequest, match="bound as these are, to the same grammar"):
        compare(again(free), again(bound))
    earlier = json.loads(json.dumps(free))  # as an earlier Paceline wrote it
    for row in earlier["results"][0]["rows"]:
        del row["grammar_sha256"], row["forced_tokens"]
    del earlier["results"][0]["grammar"]
    assert page(again(earlier)) and compare(again(earlier), again(free))


def test_an_answer_that_is_forced_throughout_has_no_speed(home: Path, tmp_path: Path) -> None:
    certain = edited(home, tmp_path / "mine", kind="regex", value="always the very same")
    (one,) = judged(home, f"{certain}:on_task", prompts=6)["results"]
    assert one["forced_tokens"] == one["output_tokens"] > 0
    assert one["acceptance"]["drafter"]["rounds"] == 0
    assert one["speed"]["drafter/full"]["speedup"] is None


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ({"value": '{"type": "strin"}'}, r"app\.bound\.value\.type: got 'strin'"),
        ({"value": "{"}, r"app\.bound\.value: got '\{'"),
        ({"kind": "regex", "value": "("}, r"app\.bound\.value: got '\('"),
        ({"kind": "yaml"}, r"app\.bound\.kind: got 'yaml'; expected 'json_schema'"),
        ({"value": 3}, r"app\.bound\.value: got 3"),
        ({"sources": []}, r"app\.bound\.sources: got \[\]"),
        ({"colour": "red"}, r"app\.bound\.colour: unknown field; expected one of kind"),
    ],
)
def test_a_manifest_with_a_broken_grammar_is_refused_by_name(
    home: Path, tmp_path: Path, bound: dict[str, Any], said: str
) -> None:
    broken = edited(home, tmp_path / "mine", **bound)
    with pytest.raises(InvalidRequest, match=rf"mine/manifest\.json: {said}"):
        judged(home, broken)

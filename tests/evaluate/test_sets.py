"""What a user may write for a set, and which prompts that is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.evaluate.gap import FOREIGN, ON_TASK, OUT_OF_DOMAIN
from paceline.evaluate.sets import EvalSet, load_set, parse_sets
from tests.evaluate.made import synth_row, synth_set

MANY = {"prompts": 99, "fits": 1000, "answers": 99}


def encode(messages: Sequence[dict[str, str]]) -> list[int]:
    return list("".join(m["content"] for m in messages).encode())


def load(value: str, **changes: Any) -> EvalSet:
    (spec,) = parse_sets([value])
    return load_set(spec, encode, **{**MANY, **changes})


def test_a_synth_set_gives_what_the_target_read_before_it_spoke(tmp_path: Path) -> None:
    folder = synth_set(tmp_path / "mine", target={"name": "tiny"})
    found = load(str(folder))
    assert found.spec.name == "mine" and found.spec.role == ON_TASK
    assert [p.name for p in found.prompts] == [f"question {i}" for i in range(6)]
    assert found.prompts[0].ids == synth_row("question 0", "").ids
    assert found.target == {"name": "tiny"}


def test_its_choices(tmp_path: Path) -> None:
    folder = synth_set(tmp_path / "mine")
    counts = {c: len(load(f"a={folder}:{c}").prompts) for c in ("held_out", "on_task", "replay")}
    assert counts == {"held_out": 6, "on_task": 4, "replay": 2}
    assert load(f"a={folder}:replay").spec.role == OUT_OF_DOMAIN
    far = load(f"{folder}:foreign")
    assert far.spec.role == FOREIGN and [p.name for p in far.prompts] == ["from elsewhere"]
    near = load(f"{folder}:neighbour")
    assert (near.spec.name, near.spec.role) == ("mine neighbour", OUT_OF_DOMAIN)
    assert [p.name for p in near.prompts] == ["else 0", "else 1"]


def test_the_suffix_tree_is_warmed_with_train_answers_and_never_with_a_prompt_of_ours(
    tmp_path: Path,
) -> None:
    folder = synth_set(tmp_path / "mine", train=5)
    row = synth_row("learnt 0", "an answer to it")
    answers = load(str(folder)).answers
    assert len(answers) == 5 and (row.ids[:8], row.ids[8:]) in answers
    assert len(load(str(folder), answers=2).answers) == 2
    from paceline.evaluate.sets import EvalPrompt, _train_answers

    asked = [EvalPrompt("same", row.ids[:8])]
    assert len(_train_answers(folder, asked, 99)) == 4


def test_files_of_prompts(tmp_path: Path) -> None:
    lines = [
        {"prompt": "one"},
        {"turns": ["two", "and then"], "id": 7},
        {"messages": [{"role": "user", "content": "three"}]},
        {"messages": [{"role": "user", "content": "four"}, {"role": "assistant", "content": "x"}]},
        {"prompt": "one"},
    ]
    path = tmp_path / "code.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = load(str(path))
    assert [bytes(p.ids).decode() for p in found.prompts] == ["one", "two", "three", "four"]
    assert found.spec.role == OUT_OF_DOMAIN and found.answers == []
    assert load(f"a={path}:on_task").spec.role == ON_TASK
    assert load(f"a={path}:foreign").spec.role == FOREIGN
    messages = [{"role": "user", "content": "Hi"}]
    (tmp_path / "own.json").write_text(
        json.dumps([{"name": "n", "kind": "k", "messages": messages}])
    )
    assert [p.name for p in load(str(tmp_path / "own.json")).prompts] == ["n"]
    assert len(load("demo").prompts) >= 8


def test_prompts_are_chosen_evenly_and_always_the_same(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{i:03}"}) for i in range(100)))
    chosen = [bytes(p.ids).decode() for p in load(str(path), prompts=4).prompts]
    assert chosen == ["000", "025", "050", "075"]


def test_prompts_that_do_not_fit_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "x" * n}) for n in (5, 50, 500)))
    found = load(str(path), fits=50)
    assert (len(found.prompts), found.left_out) == (2, 1)
    with pytest.raises(InvalidRequest, match=r"sets.*long.*at most 4 tokens; 3 are longer"):
        load(str(path), fits=4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "at least one"),
        (["no-such-set"], r"no-such-set.*shipped set: demo"),
        (["a=demo", "a=demo"], "a name of its own"),
        (["demo:neighbour"], "only sets of synth have splits"),
        (["{folder}:train"], r"one of held_out, on_task, replay, neighbour.*trained on"),
        (["{empty}"], r"a folder with manifest\.json"),
        (["?=demo"], "a name of letters"),
    ],
)
def test_sets_that_are_not_there_are_refused(tmp_path: Path, values: list[str], said: str) -> None:
    places = {"folder": synth_set(tmp_path / "mine"), "empty": tmp_path / "empty"}
    places["empty"].mkdir()
    with pytest.raises(InvalidRequest, match=f"^sets: got .*{said}"):
        parse_sets([value.format(**places) for value in values])


BAD = ["{", "[]", '{"turns": []}', '{"messages": [{"role": "user"}]}',
       '{"messages": [{"role": "assistant", "content": "x"}]}']  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"prompt": "good"}}\n{line}\n')
    with pytest.raises(InvalidRequest, match=r"sets: got '.*bad\.jsonl:2'"):
        load(str(path))


def test_a_bad_file_of_prompts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(InvalidRequest, match=r"sets: got '.*bad\.json'; expected a non-empty"):
        load(str(tmp_path / "bad.json"))


def test_a_set_without_prompts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(InvalidRequest, match=r"sets: got '.*none\.jsonl'; .*at least one prompt"):
        load(str(tmp_path / "none.jsonl"))
    folder = synth_set(tmp_path / "mine")
    (folder / "neighbour-00000.parquet").unlink()
    with pytest.raises(InvalidRequest, match="readable shard"):
        load(f"{folder}:neighbour")


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "hi", "messages": null}',
        '{"prompt": "hi", "turns": null}',
        '{"turns": ["hi", null]}',
        '{"messages": [{"role": "user", "content": "hi"}], "prompt": {"a": 1}}',
    ],
)
def test_fields_that_are_not_asked_for_may_hold_anything(tmp_path: Path, line: str) -> None:
    (tmp_path / "mixed.jsonl").write_text(line + "\n")
    assert load(str(tmp_path / "mixed.jsonl"))

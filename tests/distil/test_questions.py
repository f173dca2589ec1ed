"""The prompts of a set: of a model with another chat template, and of several lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.training_set import (
    Manifest,
    TrainingRow,
    read_manifest,
    write_manifest,
    write_shard,
)
from paceline.distil.questions import check_prompts, read_questions
from paceline.evaluate.doctor import encoded
from paceline.models.any_target import AnyTarget, read_target

OWN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOOLS = OWN + "{% if tools %}tools{% endif %}"
OTHER = OWN + "?"
WITH_MODES = OWN + "{% if enable_thinking is false %}quiet{% endif %}"


def with_template(found: AnyTarget, template: str) -> AnyTarget:
    tokenizer = type(found.tokenizer)(
        found.tokenizer.backend_tokenizer, found.tokenizer.special_tokens, template
    )
    return replace(found, tokenizer=tokenizer)


def write(
    folder: Path, teacher: AnyTarget, prompt: str = "where is it?", **variables: object
) -> Manifest:
    asked = [{"role": "system", "content": "A shop."}, {"role": "user", "content": "Q: " + prompt}]
    ids = tuple(encoded(teacher.tokenizer, asked, variables))
    row = TrainingRow(
        (*ids, 5, 6),
        ((len(ids), len(ids) + 2),),
        "a#1",
        "on_task",
        "en",
        "stop",
        0.0,
        0,
        "1",
        prompt,
    )
    folder.mkdir()
    app = {
        "description": {
            "name": "a",
            "system": "A shop.",
            "template": "Q: {prompt}",
            "chat_template_kwargs": variables,
        }
    }
    target = {"name": "large", "template": "0" * 16}
    shards = [write_shard(folder, split, 0, [row]) for split in ("train", "held_out")]
    manifest = Manifest(target=target, app=app, shards=shards)
    write_manifest(folder, manifest)
    return manifest


def test_templates_that_write_the_same_prompts_pass(teacher: Path, tmp_path: Path) -> None:
    found = read_target(str(teacher))
    manifest = write(tmp_path / "set", with_template(found, TOOLS))
    check_prompts(tmp_path / "set", manifest, with_template(found, OWN))


def test_a_template_that_writes_other_prompts_is_refused(teacher: Path, tmp_path: Path) -> None:
    found = read_target(str(teacher))
    manifest = write(tmp_path / "set", with_template(found, OTHER))
    with pytest.raises(InvalidRequest, match="made with large, whose template differs"):
        check_prompts(tmp_path / "set", manifest, with_template(found, OWN))


def test_prompts_are_compared_in_the_mode_of_the_application(teacher: Path, tmp_path: Path) -> None:
    found = read_target(str(teacher))
    modes = with_template(found, WITH_MODES)
    manifest = write(tmp_path / "set", modes, enable_thinking=False)
    check_prompts(tmp_path / "set", manifest, modes)
    with pytest.raises(InvalidRequest, match="whose template differs"):
        check_prompts(tmp_path / "set", manifest, with_template(found, OWN))


def test_a_set_without_the_messages_tells_nothing(teacher: Path, tmp_path: Path) -> None:
    found = read_target(str(teacher))
    manifest = write(tmp_path / "set", with_template(found, OWN), "")
    with pytest.raises(InvalidRequest, match=r"sets: .*whose template differs"):
        check_prompts(tmp_path / "set", manifest, with_template(found, OWN))


def test_prompts_without_room_for_an_answer_are_not_asked(teacher: Path, tmp_path: Path) -> None:
    found = read_target(str(teacher))
    manifest = write(tmp_path / "set", with_template(found, OWN))
    short = with_template(replace(found, max_context=520), OWN)
    with pytest.raises(InvalidRequest, match="prompts of at most 8 tokens"):
        read_questions(tmp_path / "set", manifest, "held_out", short, 8)


def test_questions_have_the_sampling_of_the_application_at_0(answers: Path, teacher: Path) -> None:
    manifest = read_manifest(answers)
    manifest.app["description"] = {"sampling": {"temperature": 0.7, "stop": ["x"], "max_tokens": 9}}
    asked = read_questions(answers, manifest, "held_out", read_target(str(teacher)), 3)
    assert len(asked) == 3 and asked[0].answer
    params = asked[0].params
    assert (params.temperature, params.max_tokens, tuple(params.stop or ())) == (0.0, 9, ("x",))

"""The offline Python API on a tiny model folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.core import FinishReason, InvalidRequest, ModelError, OutputDelta
from tests.engine.tiny import save_tiny

SHORT = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = save_tiny(tmp_path_factory.mktemp("tiny"))
    model = LLM(str(folder), "auto", dtype="float32", threads=1)
    model.tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    return model


def test_one_prompt_gives_one_result_and_a_list_gives_a_list(llm: LLM) -> None:
    one = llm.generate("abc", SHORT)
    assert len(one.token_ids) == 6 and one.finish_reason is FinishReason.LENGTH
    assert one.text == llm.tokenizer.decode(one.token_ids)
    by_ids = llm.generate(one.prompt_ids, SHORT)
    assert by_ids.token_ids == one.token_ids
    many = llm.generate(["abc", [5, 6, 7]], SHORT)
    assert many[0].token_ids == one.token_ids and many[1].prompt_ids == [5, 6, 7]


def test_each_prompt_may_have_its_own_params(llm: LLM) -> None:
    longer = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    results = llm.generate(["abc", "abc"], [SHORT, longer])
    assert [len(r.token_ids) for r in results] == [6, 9]
    with pytest.raises(InvalidRequest, match="one for each of 2 prompts"):
        llm.generate(["abc", "abc"], [SHORT])


def test_an_unseeded_request_reports_a_seed_that_repeats_it(llm: LLM) -> None:
    free = SamplingParams(temperature=1, max_tokens=20, ignore_eos=True)
    first = llm.generate("abc", free)
    seeded = replace(free, seed=first.choices[0].seed)
    again = llm.generate("abc", seeded)
    assert again.token_ids == first.token_ids
    assert llm.generate("abc", free).token_ids != first.token_ids


def test_choices_are_streams_of_their_own(llm: LLM) -> None:
    params = SamplingParams(temperature=1, max_tokens=12, ignore_eos=True, n=3, seed=5)
    result = llm.generate("abc", params)
    texts = [c.token_ids for c in result.choices]
    assert len({tuple(t) for t in texts}) == 3
    assert [c.token_ids for c in llm.generate("abc", params).choices] == texts


def test_chat_applies_the_template(llm: LLM) -> None:
    talk = [{"role": "user", "content": "hi"}]
    result = llm.chat(talk, SHORT)
    assert llm.tokenizer.decode(result.prompt_ids) == "<user>hi"
    assert [r.token_ids for r in llm.chat([talk, talk], SHORT)] == [result.token_ids] * 2
    with pytest.raises(InvalidRequest, match="at least one message"):
        llm.chat([], SHORT)


def test_streams_may_be_read_in_turns_and_left_early(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    whole = [llm.generate(p, params, "off").token_ids for p in ("abc", "xyz")]
    first, second = llm.stream("abc", params), llm.stream("xyz", params)
    got: list[list[int]] = [[], []]
    got[0] += next(first).token_ids
    got[1] += next(second).token_ids
    got[0] += [t for delta in first for t in delta.token_ids]
    got[1] += [t for delta in second for t in delta.token_ids]
    assert got == whole
    left = llm.stream("abc", params)
    next(left)
    left.close()
    assert not llm.engine.has_work
    assert llm.engine.cache.usage == 0


def test_a_bad_prompt_is_refused_at_the_call_and_leaves_nothing(llm: LLM) -> None:
    with pytest.raises(InvalidRequest):
        llm.stream([10**9], SHORT)
    assert not llm.engine.has_work
    llm.stream("abc", SHORT).close()  # never started
    assert not llm.engine.has_work


def test_an_interrupted_batch_leaves_nothing_running(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = llm.engine.step, iter(range(3))

    def interrupted() -> list[OutputDelta]:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step()

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["abc", "xyz", "def"], SamplingParams(max_tokens=30, ignore_eos=True))
    assert not llm.engine.has_work
    assert llm.generate("abc", SHORT).token_ids


def test_chat_refuses_what_the_template_would_drop(llm: LLM) -> None:
    template = llm.tokenizer.chat_template
    llm.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(InvalidRequest, match=r"messages\[0\].role"):
        llm.chat([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}])
    with pytest.raises(InvalidRequest, match=r"messages\[0\].content"):
        llm.chat([{"role": "user", "content": None}])
    llm.tokenizer.chat_template = None
    with pytest.raises(InvalidRequest, match="template"):
        llm.chat([{"role": "user", "content": "hi"}])
    llm.tokenizer.chat_template = template


def test_speculation_can_be_asked_for_and_off(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    off = llm.generate("abababab", params, "off")
    on = llm.generate("abababab", params, {"drafter": "auto", "max_draft_len": 4})
    assert off.token_ids == on.token_ids
    assert off.stats.draft_tokens == 0 and len(on.stats.rounds_by_draft_length) <= 5
    for wish, field in [
        ({"drafter": "none such"}, "speculative.drafter"),
        ({"max_draft_len": 99}, "speculative.max_draft_len"),
        ({"depth": 1}, "speculative.depth"),
        ("on", "speculative"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            llm.generate("abc", SHORT, wish)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"drafter": "telepathy,x=1"}, "drafter"),
        ({"dtype": "int3"}, "dtype"),
        ({"max_model_len": 10**9}, "max_model_len"),
        ({"kv_memory": 1000}, "kv_memory"),
        ({"rule": "hope"}, "rule"),
        ({"rule": "synthetic"}, "synthetic"),
        ({"device": "abacus"}, "device"),
        ({"device": "cuda:0"}, "device"),
        ({"token_budget": 8}, "token_budget"),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path: Path, options: dict, field: str) -> None:
    with pytest.raises((InvalidRequest, ModelError), match=field):
        LLM(str(save_tiny(tmp_path)), **{"dtype": "float32", **options})


@pytest.mark.parametrize("drafter", [None, "none", ["none"]])
def test_a_model_without_a_drafter_is_none_as_on_the_command_line(
    tmp_path: Path, drafter: str | list[str] | None
) -> None:
    plain = LLM(str(save_tiny(tmp_path)), drafter, dtype="float32", threads=1)
    assert not plain.engine.drafters
    assert plain.generate([5], SHORT).stats.draft_tokens == 0
    with pytest.raises(InvalidRequest, match="`none` alone, or drafters without it"):
        LLM(str(tmp_path), ["none", "ngram"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("most", [1, 24, 33])
def test_a_short_context_is_served(tmp_path: Path, dtype: str, most: int) -> None:
    """Also one shorter than the steps that are timed at the start."""
    model = LLM(str(save_tiny(tmp_path)), "auto", dtype=dtype, threads=1, max_model_len=most + 1)
    result = model.generate([5], SamplingParams(temperature=0, ignore_eos=True))
    assert len(result.token_ids) == most

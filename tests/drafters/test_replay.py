from __future__ import annotations

import json
from itertools import accumulate
from operator import mul

import pytest

from paceline.core import InvalidRequest, ModelError
from paceline.drafters.replay import ReplayDrafter, constant_rate
from paceline.drafters.spec import build, parse_spec

PROMPT = [1, 2, 3]
OUTPUT = list(range(100, 200))


def accepted(draft: list[int], truth: list[int]) -> int:
    return next((i for i, d in enumerate(draft) if d != truth[i]), len(draft))


def rounds(drafter, make_request, length: int, seeds: int = 300) -> list[int]:
    """Accepted tokens of the rounds of many requests, each followed to position 60."""
    counts = []
    for seed in range(seeds):
        request = make_request(PROMPT, seed=seed * 7919)
        drafter.begin([request], [0])
        while request.output_len < 60:
            said = request.output_len
            draft = drafter.propose([request], [length]).tokens[0]
            counts.append(accepted(draft, OUTPUT[said:]))
            request.tokens += OUTPUT[said : said + counts[-1] + 1]
        drafter.release([request])
    return counts


def mean_and_error(counts: list[int]) -> tuple[float, float]:
    mean = sum(counts) / len(counts)
    variance = sum((c - mean) ** 2 for c in counts) / len(counts)
    return mean, (variance / len(counts)) ** 0.5


def ready(make_target, **settings) -> ReplayDrafter:
    drafter = ReplayDrafter(**settings)
    drafter.attach(make_target())
    drafter.learn(PROMPT, OUTPUT)
    return drafter


@pytest.mark.parametrize(
    ("al", "length"), [(1, 15), (2, 15), (4, 15), (8, 15), (16, 15), (3, 2), (2.5, 4)]
)
def test_mean_acceptance_length_is_the_one_asked_for(al, length, make_request, make_target):
    counts = rounds(ready(make_target, al=al), make_request, length)
    mean, error = mean_and_error(counts)
    assert abs(mean + 1 - al) <= 5 * error + 1e-9


@pytest.mark.parametrize("length", [1, 2, 7, 15, 64])
@pytest.mark.parametrize("al", [1.0, 1.3, 2.0, 8.0])
def test_expectation_is_exact(al, length):
    rate = constant_rate(al, length)
    expected = sum(rate**i for i in range(1, length + 1))
    assert expected == pytest.approx(min(al - 1, length), abs=1e-9)


def test_profile_gives_the_conditional_rate_of_each_position(make_request, make_target):
    profile = (0.9, 0.5, 0.8)
    counts = rounds(ready(make_target, profile=profile, max_draft_len=5), make_request, 5)
    for position, survival in enumerate(accumulate([*profile, 0.8, 0.8], mul), start=1):
        share = sum(c >= position for c in counts) / len(counts)
        assert abs(share - survival) < 5 * (survival * (1 - survival) / len(counts)) ** 0.5
    assert ReplayDrafter(profile=profile).max_draft_len == 3


def test_same_request_same_drafts(make_request, make_target):
    drafter = ready(make_target, al=4)
    drafts = []
    for _ in range(2):
        request = make_request(PROMPT, OUTPUT[:5], seed=11)
        drafter.begin([request], [0])
        drafts.append(drafter.propose([request], [15]).tokens[0])
    assert drafts[0] == drafts[1]


def test_errors_are_other_tokens_of_the_vocabulary(make_request, make_target):
    drafter = ReplayDrafter(al=1)
    drafter.attach(make_target(vocab_size=200))
    drafter.learn(PROMPT, [199] * 50)
    request = make_request(PROMPT)
    drafter.begin([request], [0])
    draft = drafter.propose([request], [15]).tokens[0]
    assert len(draft) == 15
    assert all(0 <= token < 199 for token in draft)


def test_end_of_the_known_continuation(make_request, make_target):
    drafter = ready(make_target, al=16)
    request = make_request(PROMPT, OUTPUT[:97])
    drafter.begin([request], [0])
    assert drafter.propose([request], [15]).tokens[0] == OUTPUT[97:]
    request.tokens += OUTPUT[97:]
    assert drafter.propose([request], [15]).tokens[0] == []


def test_unknown_prompts_and_other_streams_get_no_draft(make_request, make_target):
    drafter = ready(make_target, al=4)
    unknown, other = make_request([9]), make_request(PROMPT, choice=1)
    strayed = make_request(PROMPT, [*OUTPUT[:3], 5])
    drafter.begin([unknown, other, strayed], [0, 0, 0])
    assert drafter.propose([unknown, other, strayed], [4] * 3).tokens == [[], [], []]
    drafter.learn(PROMPT, [5, 6, 7], choice=1)
    drafter.begin([other], [0])
    assert len(drafter.propose([other], [4]).tokens[0]) == 3


def test_file_of_continuations(tmp_path, make_request, make_target):
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([{"prompt_ids": PROMPT, "output_ids": OUTPUT}]))
    drafter = build(parse_spec(f"replay:{path},al=16"))
    drafter.attach(make_target())
    request = make_request(PROMPT)
    drafter.begin([request], [0])
    assert drafter.propose([request], [15]).tokens[0] == OUTPUT[:15]


def test_an_id_that_the_target_does_not_have_is_refused(tmp_path, make_target):
    path = tmp_path / "known.json"
    path.write_text(json.dumps([{"prompt_ids": [1, 2], "output_ids": [5, 99_999]}]))
    drafter = build(parse_spec(f"known=replay:{path},al=3"))
    with pytest.raises(ModelError, match=r"known: learned the id 99999; expected ids below"):
        drafter.attach(make_target())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", 'objects with "prompt_ids" and "output_ids"'),
        ("{}", 'objects with "prompt_ids" and "output_ids"'),
        ('[{"prompt_ids": [1]}]', r"answers.json\[0\].output_ids: missing; it is required"),
        (
            '[{"prompt_ids": ["a"], "output_ids": []}]',
            r"prompt_ids\[0\]: got 'a'; expected a whole number",
        ),
        ('[{"prompt_ids": [1], "output_ids": [-2]}]', r"output_ids\[0\]: got -2"),
        ('[{"prompt_ids": [1], "output_ids": [2], "text": ""}]', "text: unknown field"),
        ("[3]", r"answers.json\[0\]: got 3"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, message):
    path = tmp_path / "answers.json"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match=message):
        build(parse_spec(f"replay:{path},al=4"))
    with pytest.raises(InvalidRequest, match=r"none\.json"):
        build(parse_spec(f"replay:{tmp_path}/none.json,al=4"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replay", "neither.*one of al and profile"),
        ("replay,al=4,profile=0.5", "both.*one of al and profile"),
        ("replay,al=0.5", "al: got '0.5'"),
        ("replay,al=9,max_draft_len=4", r"from 1 to max_draft_len \+ 1 = 5"),
        ("replay,profile=0.5/1.5", "profile: got '1.5'; expected a number from 0 to 1"),
    ],
)
def test_bad_settings_are_refused(text, message):
    with pytest.raises(InvalidRequest, match=message):
        build(parse_spec(text))

from __future__ import annotations

from paceline.core import FinishReason
from paceline.drafters.chain import ChainDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.spec import build, parse_spec
from paceline.drafters.suffix import SuffixDrafter


def test_ngram_speaks_where_suffix_is_silent(make_request):
    shy = SuffixDrafter(min_token_prob=0.7)
    drafter = ChainDrafter("auto", [shy, NgramDrafter()])
    sure, unsure = make_request([1, 2, 3] * 4), make_request([5, 6, 9, 9, 5, 6])
    drafter.begin([sure, unsure], [0, 0])
    batch = drafter.propose([sure, unsure], [3, 2])
    assert batch.tokens == [[1, 2, 3], [9, 9]]
    assert batch.parts == ["suffix", "ngram"]
    assert shy.propose([unsure], [2]).tokens == [[]]
    assert [len(c) for c in batch.confidence] == [3, 2]


def test_auto_learns_from_past_responses_and_passes_release_on(make_request):
    drafter = build(parse_spec("auto,max_draft_len=2"))
    assert (drafter.max_draft_len, drafter.kv) == (2, None)
    first = make_request([1, 2], [7, 8, 9])
    drafter.begin([first], [0])
    first.finish_reason = FinishReason.STOP
    drafter.release([first])
    assert drafter.propose([first], [5]).tokens == [[]]
    second = make_request([1, 2])
    drafter.begin([second], [0])
    assert drafter.propose([second], [5]).tokens == [[7, 8]]

"""Which tokens are drafted behind, and what is learnt there."""

from __future__ import annotations

from paceline.dataset.training_set import Manifest, TrainingRow, write_manifest, write_shard
from paceline.training.data import read_texts
from paceline.training.packs import (
    Pick,
    block_labels,
    draw_anchors,
    valid_anchors,
    window_of,
)
from tests.training.twins import random_text, slow_labels, text_of


def test_an_anchor_and_the_token_behind_it_were_both_said():
    text = text_of([9] * 10, "..xxx..x.x")
    assert valid_anchors(text.said).tolist() == [2, 3]


def test_a_prompts_last_token_is_no_anchor():
    """In serving the target has said the first token of its answer before anything is drafted."""
    text = text_of([9] * 6, "...xxx")
    assert 2 not in valid_anchors(text.said).tolist()


def test_anchors_are_drawn_anew_in_every_epoch_and_alike_in_every_run():
    text = random_text(200, 50, 256)
    first, again, later = (draw_anchors(text, 20, 7, epoch) for epoch in (0, 0, 1))
    assert first.tolist() == again.tolist() == sorted(set(first.tolist()))
    assert len(first) == 20 and set(first.tolist()) <= set(valid_anchors(text.said).tolist())
    assert first.tolist() != later.tolist()
    assert first.tolist() != draw_anchors(text, 20, 8, 0).tolist()


def test_over_the_epochs_every_place_is_an_anchor():
    text = random_text(60, 20, 256)
    seen = {int(a) for epoch in range(60) for a in draw_anchors(text, 8, 0, epoch)}
    assert seen == set(valid_anchors(text.said).tolist())


def test_two_texts_do_not_share_their_draws():
    one, other = random_text(200, 50, 256, 0), random_text(200, 50, 256, 1)
    assert draw_anchors(one, 20, 0, 0).tolist() != draw_anchors(other, 20, 0, 0).tolist()


def test_labels_are_the_slow_twins():
    texts = [
        text_of(list(range(10, 30)), "....xxxxxxx...xxxxxx"),
        text_of(list(range(40, 49)), "..xxxxx.."),
        text_of(list(range(60, 70)), "xxxx......"),
    ]
    picks = [Pick(text, valid_anchors(text.said)) for text in texts]
    labels, there = block_labels(picks, 6)
    expected = [slow_labels(p.text, anchor, 6) for p in picks for anchor in p.anchors.tolist()]
    got = [
        [int(label) if known else None for label, known in zip(row, counts, strict=True)]
        for row, counts in zip(labels, there, strict=True)
    ]
    assert got == expected


def test_evaluations_take_neighbours_with_room_for_whole_blocks():
    text = random_text(100, 20, 256, number=3)
    window = window_of(text, 30, 6)
    assert window.diff().eq(1).all() and len(window) == 30
    assert window[0] >= 20 and window[-1] + 5 < 100
    assert window.tolist() == window_of(text, 30, 6).tolist()
    starts = {int(window_of(random_text(100, 20, 256, number=n), 30, 6)[0]) for n in range(20)}
    assert len(starts) > 5
    short = text_of([9] * 6, "...xxx")
    assert window_of(short, 30, 6).tolist() == [3]


# -- texts -----------------------------------------------------------------------------------------


def test_nothing_is_learnt_from_a_text_that_goes_round_in_circles(tmp_path):
    """But for the first turn; prompts may repeat what they like."""
    prompt, answer = [7] * 20, [*range(20), *[30, 31, 32, 33] * 9]
    spans = ((20, 20 + len(answer)),)
    row = TrainingRow((*prompt, *answer), spans, "own#0", "on_task", "en", "length", 0.0, 0, "0")
    shards = [write_shard(tmp_path, "train", 0, [row])]
    write_manifest(tmp_path, Manifest(target={}, app={}, shards=shards))
    (text,) = read_texts([tmp_path], "train", 1000)
    assert text.said.nonzero()[:, 0].tolist() == [*range(20, 20 + 20 + 4)]
    assert text.ids.tolist() == list(row.ids[: 20 + 20 + 4])

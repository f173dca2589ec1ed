"""Blocks that the drafter samples itself: where they begin, how the target judges them, and what
they teach."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from paceline.core import InvalidRequest
from paceline.dataset.training_set import (
    Manifest,
    TrainingRow,
    read_manifest,
    read_rows,
    write_manifest,
    write_shard,
)
from paceline.training.data import read_texts
from paceline.training.losses import Objective, block_loss
from paceline.training.on_policy import (
    SAMPLES,
    TO_START,
    advantages,
    on_policy_loss,
    verdicts,
)
from paceline.training.packs import Pick, at_errors, block_labels, draw_anchors, make_pack
from paceline.training.run import prepare
from paceline.training.seen import Seen, Soft
from paceline.training.target_engines import soft_tokens
from paceline.training.workers import Workers
from tests.training.runs import config, drafter_of
from tests.training.twins import text_of

GOING_ON = {"layers": None, "taps": None, "block": None, "mask_token": None}


# -- where blocks begin ----------------------------------------------------------------------------


def moved(said: str, anchors: list[int], right: list[str]) -> list[int]:
    """Return the anchors that at_errors() chooses in a text, for blocks of 4 tokens whose drafts
    are right where `right` has an x."""
    pick = Pick(text_of([5] * len(said), said), torch.tensor(anchors))
    pack = make_pack([pick], [Seen(torch.zeros(len(said), 2))], 4, 0)
    marks = torch.tensor([[mark == "x" for mark in row] for row in right])
    (found,) = at_errors([pick], pack, marks)
    return found.anchors.tolist()


@pytest.mark.parametrize(
    ("said", "anchors", "right", "expected"),
    [
        ("..xxxxxxxxxxx", [2, 6, 9], ["xx.", "x..", "..."], [5, 6, 8]),
        ("..xxxxxxxxxxx", [2, 3, 9], ["xx.", "x..", "xxx"], [2, 5, 9]),  # twice the same place
        ("..xxxxxxxxxxx", [2, 5, 9], ["xx.", ".x.", "xxx"], [5, 6, 9]),  # one is there already
        ("..xxxxxxxxxxx", [2, 6, 9], ["xxx", "xxx", "xxx"], [2, 6, 9]),  # nothing goes wrong
        ("..xxxx.xxxxxx", [3, 9], ["x..", "xxx"], [3, 9]),  # no token behind that was said
        ("..xxxxxxxxxxx", [2, 6], ["...", "..."], [3, 6]),  # not behind the last drawn one
    ],
)
def test_anchors_move_to_where_drafts_go_wrong(said, anchors, right, expected):
    assert moved(said, anchors, right) == expected


def test_the_blocks_of_a_step_begin_where_the_drafter_errs(target, trainset, tmp_path):
    """Beside drafts of one block at a time along each text."""
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=20))
    options = GOING_ON | {"init": str(first), "mix": {"on_policy": 1.0}, "steps": 4}
    trainer = prepare(config(target, trainset, tmp_path / "run", **options), Workers("cpu"))
    picks = trainer.order.step(0)
    size, mask = trainer.form.config.block_size, trainer.form.config.mask_token_id
    pack = trainer._pack(picks, size)
    moved_anchors = 0
    for pick, (begin, end) in zip(picks, pack.blocks, strict=True):
        errors = set()
        for anchor in pick.anchors:
            alone = replace(pick, anchors=anchor[None])
            right = trainer.form.right(
                make_pack([alone], trainer.target.read_all([pick.text]), size, mask)
            )[0]
            _, (counts,) = block_labels([alone], size)
            wrong = [slot for slot in range(size - 1) if counts[slot] and not right[slot]]
            errors |= {int(anchor) + 1 + wrong[0]} if wrong else set()
        anchors = set(pack.anchors[begin:end].tolist())
        assert len(anchors) == len(pick.anchors) == end - begin
        elsewhere = anchors - set(pick.anchors.tolist())
        assert elsewhere <= errors
        said = pick.text.said
        there = {place for place in errors if place <= int(pick.anchors[-1]) and said[place + 1]}
        assert there <= anchors
        moved_anchors += len(elsewhere)
    assert moved_anchors > 4
    # The operations of that forward are counted in the phase that has its time.
    counted = trainer._costs.operations
    assert counted["drafter"] == sum(trainer.form.operations(pack, learns=False)) > 0
    trainer._forward_backward(pack, norm=1.0)
    drafter, head = trainer.form.operations(pack, learns=True)
    assert counted["head"] == head == 3 * trainer.form.operations(pack, learns=False)[1]
    assert counted["drafter"] == drafter + sum(trainer.form.operations(pack, learns=False))
    plain = replace(trainer.config, mix={"ce": 1.0})
    trainer.config = plain
    assert torch.equal(trainer._pack(picks, size).anchors, torch.cat([p.anchors for p in picks]))


# -- how they are judged ---------------------------------------------------------------------------


TOKENS, SLOTS = 3, 3


def chain(seed: int) -> dict[tuple[int, ...], torch.Tensor]:
    """Return a target: its distribution behind each text of fewer than SLOTS tokens."""
    torch.manual_seed(seed)
    prefixes = [p for n in range(SLOTS) for p in itertools.product(range(TOKENS), repeat=n)]
    return {prefix: (2 * torch.randn(TOKENS).double()).softmax(-1) for prefix in prefixes}


@pytest.mark.parametrize(
    ("temperature", "by_text"), [(1.0, False), (0.5, False), (1.7, False), (1.0, True)]
)
def test_the_mean_reward_is_the_expected_number_of_accepted_tokens(temperature, by_text):
    """By enumeration of all texts that the target may say, and of all drafts: although no draft is
    judged behind the first token that departs from the text."""
    likely = chain(3)
    served = {prefix: p ** (1 / temperature) for prefix, p in likely.items()}
    served = {prefix: p / p.sum() for prefix, p in served.items()}
    every = list(itertools.product(range(TOKENS), repeat=SLOTS))
    drafts = torch.tensor(every).T[None]  # [1, slots, samples]
    counts = torch.ones(1, SLOTS, dtype=torch.bool)
    mean = torch.zeros(len(every), dtype=torch.float64)
    for text in every:
        chance = math.prod(float(served[text[:k]][text[k]]) for k in range(SLOTS))
        soft = Soft(
            torch.arange(TOKENS).expand(1, SLOTS, TOKENS),
            torch.stack([likely[text[:k]] for k in range(SLOTS)])[None],
            torch.tensor([temperature]).double(),
        )
        rewards, _ = verdicts(drafts, torch.tensor([text]), counts, None if by_text else soft)
        mean += chance * rewards[0]
    for draft, found in zip(every, mean.tolist(), strict=True):
        reach = [float(served[draft[:k]][draft[k]]) for k in range(SLOTS)]
        assert found == pytest.approx(sum(math.prod(reach[: k + 1]) for k in range(SLOTS)))


def test_greedy_text_says_all_and_other_text_the_chance_of_what_departs():
    labels = torch.tensor([[4, 5, 6]] * 2)
    drafts = torch.tensor([[4, 5, 6], [4, 7, 6], [7, 5, 6], [4, 8, 6]]).T[None].repeat(2, 1, 1)
    rows = torch.tensor([[4, 7], [5, 7], [6, -1]]).expand(2, 3, 2)
    shares = torch.tensor([[0.6, 0.3], [0.5, 0.2], [0.9, 0.1]]).expand(2, 3, 2)
    soft = Soft(rows, shares, torch.tensor([0.0, 1.0]))
    counts = torch.ones(2, 3, dtype=torch.bool)
    rewards, judged = verdicts(drafts, labels, counts, soft)
    assert rewards[0].tolist() == [3.0, 1.0, 0.0, 1.0]
    assert rewards[1].tolist() == pytest.approx([0.6 + 0.5 + 0.9, 0.6 + 0.2, 0.3, 0.6])
    assert judged[1].T.tolist() == [
        [True, True, True], [True, True, False], [True, False, False], [True, True, False]
    ]  # fmt: skip
    assert verdicts(drafts, labels, counts, None)[0].tolist() == [[3.0, 1.0, 0.0, 1.0]] * 2
    counts[:, 2] = False  # the text ends
    assert verdicts(drafts, labels, counts, soft)[0][0].tolist() == [2.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("app", "temperature", "expected"),
    [
        ({"description": {"sampling": {"temperature": 1.0}}}, 1.0, 1.0),
        ({"description": {"name": "with the default sampling"}}, 1.0, 1.0),
        ({"description": {"sampling": {"temperature": [0.0, 0.7]}}}, 0.7, 0.7),
        ({"description": {"sampling": {"temperature": 1.0, "top_p": 0.9}}}, 1.0, 0.0),
        ({"description": {"sampling": {"temperature": 1.0}, "grammar": {"kind": "x"}}}, 1.0, 0.0),
        (
            {
                "description": {"sampling": {"temperature": 1.0}, "grammar": {"kind": "regex"}},
                "bound": {"kind": "regex", "value": "a+", "sources": ["mine"]},
            },
            1.0,
            0.0,
        ),
        (
            {
                "description": {"sampling": {"temperature": 1.0}, "grammar": {"kind": "regex"}},
                "bound": {"kind": "regex", "value": "a+", "sources": ["other"]},
            },
            1.0,
            1.0,
        ),
        ({}, 1.0, 0.0),  # nobody says how it was sampled
    ],
    ids=str,
)
def test_a_text_knows_whether_it_was_drawn_from_the_plain_distribution(
    app, temperature, expected, tmp_path
):
    ids, spans = (1, 2, 3, 4), ((1, 4),)
    row = TrainingRow(ids, spans, "mine#0", "on_task", "en", "stop", temperature, 0, "0")
    shards = [write_shard(tmp_path, "train", 0, [row])]
    write_manifest(tmp_path, Manifest(target={}, app=app, shards=shards))
    (text,) = read_texts([tmp_path], "train", 1000)
    assert text.temperature == expected


def test_a_run_on_sampled_text_is_judged_by_the_distribution(target, trainset, tmp_path):
    """And one on greedy text without it."""
    sampled = tmp_path / "sampled" / trainset.name
    sampled.mkdir(parents=True)
    manifest = read_manifest(trainset)
    shards = []
    for split in ("train", "held_out"):
        rows = [replace(row, temperature=0.8) for row in read_rows(trainset, split)]
        shards.append(write_shard(sampled, split, 0, rows))
    app = manifest.app | {"description": {"sampling": {"temperature": 0.8}}}
    write_manifest(sampled, manifest.model_copy(update={"app": app, "shards": shards}))
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=20))
    options = GOING_ON | {"init": str(first), "mix": {"on_policy": 1.0}, "steps": 4}
    for folder, temperature in ((sampled, 0.8), (trainset, None)):
        settings = config(target, folder, tmp_path / "run", **options)
        trainer = prepare(settings, Workers("cpu"))
        pack = trainer._pack(trainer.order.step(0), trainer.form.config.block_size)
        trainer.take_step()
        if temperature is None:
            assert pack.soft is None and trainer.target.computed_logits == 0
            continue
        assert pack.soft.temperatures.tolist() == pytest.approx([temperature] * len(pack.anchors))
        first_slot = pack.soft.probabilities[:, 0].sum(-1)
        assert bool((first_slot > 0.3).all()) and trainer.target.computed_logits > 0
        # What greedy users get is learnt from the same set: the target's likeliest token.
        trainer.config = replace(trainer.config, labels="target")
        pack = trainer._pack(trainer.order.step(1), trainer.form.config.block_size)
        assert not pack.soft.temperatures.any()
        with pytest.raises(InvalidRequest, match="target_engine: got 'vllm'; expected paceline or"):
            soft_tokens(replace(settings, target_engine="vllm"), trainer.data.train)
    assert soft_tokens(replace(settings, target_engine="vllm"), trainer.data.train) == 0
    with pytest.raises(InvalidRequest, match="soft_tokens: got 8; expected none of it"):
        soft_tokens(replace(settings, soft_tokens=8), trainer.data.train)
    assert soft_tokens(replace(settings, soft_tokens=8, labels="target"), trainer.data.train) == 8


@pytest.mark.parametrize("weights", ["exponential", "uniform"])
def test_other_weights_than_those_of_dpace_are_refused(weights, tmp_path):
    """The blocks that are learnt are others than those that the step has drawn and divides by."""
    options = GOING_ON | {"init": "a-drafter", "mix": {"on_policy": 0.5, "ce": 0.5}, "steps": 4}
    with pytest.raises(InvalidRequest, match=f"weights: got '{weights}'; expected dpace beside"):
        config(tmp_path, tmp_path, tmp_path / "run", weights=weights, **options)
    assert config(tmp_path, tmp_path, tmp_path / "run", **options).weights == "dpace"


# -- what they teach -------------------------------------------------------------------------------


def test_advantages_are_those_over_the_own_group():
    torch.manual_seed(0)
    rewards = torch.randint(0, 5, (6, SAMPLES)) + torch.rand(6, SAMPLES)
    found = advantages(rewards)
    torch.testing.assert_close(found.sum(1), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(advantages(rewards + 7), found)  # what all have in common is nothing
    torch.testing.assert_close(found.std(1), torch.ones(6), atol=2e-3, rtol=0)
    assert bool((found.argmax(1) == rewards.argmax(1)).all())
    assert not advantages(torch.full((2, SAMPLES), 0.3)).abs().gt(1e-3).any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_on_policy_climbs_where_more_drafts_are_accepted(temperature):
    """In the mean of many samples, its gradient points where the expected number of accepted tokens
    grows: for one anchor it is that gradient over a standard deviation."""
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 4, 6), torch.tensor([[1, 5, 2, 0]])
    counts = torch.ones(1, 4, dtype=torch.bool)
    shares = (2 * torch.randn(1, 4, 6)).softmax(-1)
    soft = Soft(torch.arange(6).expand(1, 4, 6), shares, torch.tensor([temperature]))

    def expected(leaf: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        q = leaf.softmax(-1)
        follows = q.gather(-1, labels[..., None])[..., 0]
        reach = torch.cat((torch.ones(1, 1), follows[:, :-1].cumprod(1)), dim=1)
        return (reach * ((q * shares).sum(-1) if temperature else follows)).sum()

    leaf = logits.clone().requires_grad_()
    (-expected(leaf, labels)).backward()
    found = torch.zeros_like(logits)
    for _ in range(3000):
        own = logits.clone().requires_grad_()
        objective = Objective({"on_policy": 1.0})
        block_loss(own, labels, counts, soft, objective, logits).loss.sum().backward()
        found += own.grad
    alike = torch.nn.functional.cosine_similarity(found.flatten(), leaf.grad.flatten(), dim=0)
    assert float(alike) > 0.97
    # Negative control: towards other labels it is another way.
    other = logits.clone().requires_grad_()
    shares = shares.roll(1, -1)
    (-expected(other, (labels + 1) % 6)).backward()
    wrong = torch.nn.functional.cosine_similarity(found.flatten(), other.grad.flatten(), dim=0)
    assert float(wrong) < 0.5


def test_on_policy_teaches_no_slot_behind_the_first_that_departs():
    torch.manual_seed(0)
    logits, labels = torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]])
    logits[0, 0] = torch.tensor([1.0, 0, 0, 0])  # right in about half of the samples
    logits[0, 1] = torch.tensor([0.0, -100, 1, 0])  # never right
    logits[0, 2] = torch.randn(4)
    leaf = logits.clone().requires_grad_()
    counts = torch.ones(1, 3, dtype=torch.bool)
    start = torch.randn(1, 3, 4)
    on_policy_loss(leaf.log_softmax(-1), labels, counts, None, start).sum().backward()
    assert leaf.grad[0, 0].any() and leaf.grad[0, 1].any()
    assert not leaf.grad[0, 2].any()


def test_on_policy_stays_close_to_the_drafter_that_the_run_began_with():
    """Equal samples have no advantage, so the loss is the divergence alone."""
    logits = torch.tensor([[[60.0, 0.0, 0.0]]])
    start = torch.tensor([[[0.0, 0.0, 0.0]]])
    labels, counts = torch.tensor([[0]]), torch.ones(1, 1, dtype=torch.bool)
    found = on_policy_loss(logits.log_softmax(-1), labels, counts, None, start)
    assert float(found) == pytest.approx(TO_START * math.log(3), rel=1e-4)
    same = on_policy_loss(logits.log_softmax(-1), labels, counts, None, logits)
    assert float(same) == pytest.approx(0, abs=1e-6)


def test_a_drafter_that_learns_from_its_own_blocks_gets_better(target, trainset, tmp_path):
    """At anchors that were drawn as ever, on the texts that it learns from."""
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=20, anchors=32))
    options = GOING_ON | {"init": str(first), "mix": {"on_policy": 1.0}, "anchors": 32}
    options |= {"steps": 40, "texts": 8, "lr": 1e-3}
    trainer = prepare(config(target, trainset, tmp_path / "run", **options), Workers("cpu"))
    texts = trainer.data.train
    mask, size = trainer.form.config.mask_token_id, trainer.form.config.block_size
    picks = [Pick(text, draw_anchors(text, 32, 1, 0)) for text in texts]
    pack = make_pack(picks, trainer.target.read_all(texts), size, mask)

    def length() -> float:
        return float(1 + trainer.form.right(pack).cumprod(1).sum(1).float().mean())

    before = length()
    while trainer.step < 40:
        trainer.take_step()
    assert length() > before + 0.4

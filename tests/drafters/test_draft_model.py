from __future__ import annotations

import random
from functools import cache
from itertools import accumulate
from operator import mul
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.core import ModelError, Request
from paceline.drafters import draft_model
from paceline.drafters.base import ObservedRows
from paceline.drafters.draft_model import DraftModelDrafter, check_same_tokens
from paceline.drafters.draw import draw_token
from paceline.drafters.spec import build, parse_spec
from paceline.kernels import ops
from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.config import ModelConfig, RopeConfig
from paceline.models.network import TorchNetwork
from tests.random_weights import random_weights

VOCAB = 97
BLOCKS = 80


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """More threads only slow down a network this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def weights(vocab: int):
    config = ModelConfig(
        family="llama", vocab_size=vocab, hidden_size=32, intermediate_size=48, num_layers=2,
        num_heads=4, num_kv_heads=2, head_dim=8, rms_norm_eps=1e-5, qkv_bias=False, o_bias=False,
        mlp_bias=False, qk_norm=False, tie_word_embeddings=False, max_position_embeddings=1024,
        rope=RopeConfig(),
    )  # fmt: skip
    return config, random_weights(config, seed=3)


def small_network(vocab: int = VOCAB) -> TorchNetwork:
    return TorchNetwork(*weights(vocab), max_positions=1024)


@pytest.fixture
def make_drafter(make_target):
    def make(vocab: int = VOCAB, target_vocab: int = VOCAB, **settings) -> DraftModelDrafter:
        settings = {"max_draft_len": 8, "max_positions": 1024, "min_token_prob": 0.0} | settings
        drafter = DraftModelDrafter("small", small_network(vocab), **settings)
        drafter.attach(make_target(vocab_size=target_vocab, num_blocks=BLOCKS))
        return drafter

    return make


@cache
def solo() -> TorchNetwork:
    network = small_network()
    network.allocate_kv(64)
    return network


def logits_after(tokens: list[int]) -> torch.Tensor:
    """The small model's logits after `tokens`, computed from nothing."""
    count = len(tokens)
    rows = np.array([count - 1], dtype=np.int32)
    table = np.arange(-(-count // BLOCK_SIZE), dtype=np.int32)[None]
    ids, positions = np.array(tokens, dtype=np.int32), np.arange(count, dtype=np.int32)
    starts = np.array([0, count], dtype=np.int32)
    return solo().forward(ForwardBatch(ids, positions, starts, table, rows)).logits[0].clone()


def greedy(tokens: list[int], length: int) -> list[int]:
    text = list(tokens)
    for _ in range(length):
        text.append(int(logits_after(text).argmax()))
    return text[len(tokens) :]


def give_blocks(request: Request, free: list[int], room: int) -> None:
    while len(request.blocks) * BLOCK_SIZE < len(request.tokens) + room:
        request.blocks.append(free.pop())


def scattered_blocks() -> list[int]:
    blocks = list(range(BLOCKS))
    random.Random(0).shuffle(blocks)
    return blocks


def admit(drafter, request: Request, free: list[int], held: int = 0, chunk: int = 40) -> None:
    """Begin and show the prompt in chunks, as the engine does."""
    give_blocks(request, free, 16)
    drafter.begin([request], [held])
    for start in range(0, len(request.tokens) - 1, chunk):
        end = min(start + chunk, len(request.tokens) - 1)
        drafter.observe([ObservedRows(request, start, end - start)])


def commit(drafter, request: Request, tokens: list[int]) -> None:
    before = len(request.tokens) - 1
    request.tokens += tokens
    drafter.observe([ObservedRows(request, before, len(tokens))])


@pytest.mark.parametrize("prompt_len", [1, 5, 16, 90])
def test_drafts_what_the_small_model_would_say(prompt_len, make_drafter, make_request, draft_once):
    drafter, free = make_drafter(), scattered_blocks()
    request = make_request(random.Random(1).choices(range(VOCAB), k=prompt_len))
    admit(drafter, request, free)
    assert draft_once(drafter, request, 8) == greedy(request.tokens, 8)


def test_also_after_rejections_full_acceptance_and_pauses(make_drafter, make_request, draft_once):
    rng = random.Random(2)
    drafter, free = make_drafter(), scattered_blocks()
    request = make_request(rng.choices(range(VOCAB), k=50))
    admit(drafter, request, free)
    for number in range(15):
        give_blocks(request, free, 16)
        length = rng.randrange(0, 9)  # 0: speculation is off in this round
        draft = draft_once(drafter, request, length)
        assert draft == greedy(request.tokens, length)
        accepted = length if number % 3 == 0 else rng.randrange(length + 1)
        commit(drafter, request, [*draft[:accepted], rng.randrange(VOCAB)])


def test_long_pause_does_not_pile_up_work(make_drafter, make_request, monkeypatch):
    drafter, free = make_drafter(), scattered_blocks()
    request = make_request([1, 2, 3])
    admit(drafter, request, free)
    rows = []
    forward = drafter.network.forward
    monkeypatch.setattr(
        drafter.network,
        "forward",
        lambda batch, *rest: rows.append(len(batch.ids)) or forward(batch),
    )
    for token in range(60):
        give_blocks(request, free, 16)
        commit(drafter, request, [token])
    assert len(request.tokens) - drafter.held_tokens(request) < 20
    assert max(rows) < 20 and len(rows) < 6
    assert drafter.propose([request], [4]).tokens[0] == greedy(request.tokens, 4)


def test_draft_is_the_same_in_any_batch(make_drafter, make_request):
    rng = random.Random(4)
    drafter, free = make_drafter(), scattered_blocks()
    requests = [make_request(rng.choices(range(VOCAB), k=n)) for n in (3, 70, 17, 33, 5)]
    for request in requests:
        admit(drafter, request, free)
    lengths = [2, 8, 0, 5, 1]
    batch = drafter.propose(requests, lengths)
    assert batch.lengths == lengths
    for request, tokens, confidence in zip(requests, batch.tokens, batch.confidence, strict=True):
        assert tokens == greedy(request.tokens, len(tokens))
        assert len(confidence) == len(tokens) and all(0 < c <= 1 for c in confidence)
    assert batch.q == [None] * 5


def test_preempted_request_resumes_in_other_blocks(make_drafter, make_request, draft_once):
    drafter, free = make_drafter(), scattered_blocks()
    request = make_request(random.Random(5).choices(range(VOCAB), k=40))
    admit(drafter, request, free)
    commit(drafter, request, draft_once(drafter, request, 3))
    drafter.release([request])
    free[:0] = request.blocks
    request.blocks.clear()
    assert drafter.held_tokens(request) == 0
    admit(drafter, request, free)
    assert draft_once(drafter, request, 8) == greedy(request.tokens, 8)


def test_prefix_hit_reuses_the_draft_kv(make_drafter, make_request, draft_once, monkeypatch):
    drafter, free = make_drafter(), scattered_blocks()
    prompt = random.Random(6).choices(range(VOCAB), k=70)
    first = make_request(prompt)
    admit(drafter, first, free)
    draft_once(drafter, first, 2)
    assert drafter.held_tokens(first) == 70
    second = make_request([*prompt[:64], 5, 6, 7])
    second.blocks = first.blocks[:4]
    rows = []
    forward = drafter.network.forward
    monkeypatch.setattr(
        drafter.network,
        "forward",
        lambda batch, *rest: rows.append(len(batch.ids)) or forward(batch),
    )
    give_blocks(second, free, 16)
    drafter.begin([second], [64])
    drafter.observe([ObservedRows(second, 64, 2)])
    assert draft_once(drafter, second, 4) == greedy(second.tokens, 4)
    assert rows == [3, 1, 1, 1]


def test_prefix_hit_without_draft_kv_is_made_good_in_bounded_steps(
    make_drafter, make_request, draft_once, monkeypatch
):
    monkeypatch.setattr(draft_model, "MOST_ROWS", 32)
    drafter, free = make_drafter(), scattered_blocks()
    request = make_request(random.Random(7).choices(range(VOCAB), k=100))
    give_blocks(request, free, 16)
    drafter.begin([request], [0])
    drafter.observe([ObservedRows(request, 96, 3)])  # the target had 96 tokens cached
    drafts = [draft_once(drafter, request, 3) for _ in range(3)]
    assert drafts == [[], [], greedy(request.tokens, 3)]


def test_context_of_the_small_model_ends_earlier(make_drafter, make_request, draft_once):
    drafter, free = make_drafter(max_positions=40), scattered_blocks()
    request = make_request(random.Random(8).choices(range(VOCAB), k=38))
    admit(drafter, request, free)
    assert draft_once(drafter, request, 8) == greedy(request.tokens, 3)
    commit(drafter, request, [1, 2, 3, 4])
    assert draft_once(drafter, request, 8) == []
    assert drafter.held_tokens(request) <= 40


def test_drafting_stops_when_the_draft_is_unlikely_to_stand(make_drafter, make_request):
    drafters = [make_drafter(), make_drafter(min_token_prob=0.05)]
    request, free = make_request([3, 4, 5]), scattered_blocks()
    for drafter in drafters:
        admit(drafter, request, free)
    full, cut = (drafter.propose([request], [8]) for drafter in drafters)
    kept = len(cut.tokens[0])
    assert cut.tokens[0] == full.tokens[0][:kept]
    survival = list(accumulate(full.confidence[0], mul))
    assert 0 < kept < 8
    assert survival[kept - 1] < 0.05
    assert all(s >= 0.05 for s in survival[: kept - 1])


def test_drafting_stops_at_the_end_of_the_stream(make_drafter, make_request, draft_once):
    drafter, free = make_drafter(), scattered_blocks()
    tokens = greedy([3, 4, 5], 8)
    request = make_request([3, 4, 5], eos_ids=frozenset({tokens[2]}))
    admit(drafter, request, free)
    assert draft_once(drafter, request, 8) == tokens[: tokens.index(tokens[2]) + 1]


def test_padded_vocabularies(make_drafter, make_request, draft_once):
    wide, free = make_drafter(vocab=VOCAB, target_vocab=50), scattered_blocks()
    request = make_request([3, 4, 5])
    admit(wide, request, free)
    text = [3, 4, 5]
    for token in draft_once(wide, request, 8):
        assert token == int(logits_after(text)[:50].argmax())
        text.append(token)
    narrow, free = make_drafter(target_vocab=200, draw="sample"), scattered_blocks()
    request = make_request([3, 150, 199, 5], temperature=1.0)  # ids that only the target has
    admit(narrow, request, free)
    q = narrow.propose([request], [3]).q[0]
    assert [len(row) for row in q] == [200] * 3
    assert all(float(row[VOCAB:].sum()) == 0 for row in q)


def test_coupled_draft_is_the_targets_token_when_the_models_agree(make_drafter, make_request):
    drafter, free = make_drafter(), scattered_blocks()
    request = make_request([3, 4, 5], [6, 7], temperature=0.8, seed=123)
    admit(drafter, request, free)
    batch = drafter.propose([request], [6])
    text = list(request.tokens)
    for index, token in enumerate(batch.tokens[0]):
        expected = ops.gumbel_argmax(
            logits_after(text), inv_temperature=1 / 0.8, seed=123, choice=0, position=2 + index
        )
        assert token == expected
        text.append(token)
    assert batch.q[0] is None
    assert batch.tokens[0] != greedy(request.tokens, 6)


def test_sampled_draft_says_what_it_was_drawn_from(make_drafter, make_request):
    drafter, free = make_drafter(draw="sample"), scattered_blocks()
    request = make_request([3, 4, 5], temperature=0.8, seed=9)
    cold = make_request([3, 4, 5], seed=9)
    for each in (request, cold):
        admit(drafter, each, free)
    batch = drafter.propose([request, cold], [4, 4])
    assert batch.tokens[1] == greedy([3, 4, 5], 4) and batch.q[1] is None
    text = [3, 4, 5]
    for token, q in zip(batch.tokens[0], batch.q[0], strict=True):
        expected = torch.softmax(logits_after(text) / 0.8, dim=-1)
        torch.testing.assert_close(q, expected, rtol=1e-5, atol=1e-7)
        text.append(token)


def test_sampled_noise_is_fresh_in_every_round(make_request):
    """The same position, drafted again from a later round's start, gets other noise."""
    logits = torch.zeros(50_000)
    early = make_request([1], [2, 3], temperature=1.0, seed=4)
    late = make_request([1], [2, 3, 4], temperature=1.0, seed=4)
    assert (
        draw_token(logits, 0, early, 1, "sample").token
        != draw_token(logits, 0, late, 0, "sample").token
    )
    assert (
        draw_token(logits, 0, early, 1, "coupled").token
        == draw_token(logits, 0, late, 0, "coupled").token
    )


def test_sampled_tokens_follow_q(make_request):
    logits = torch.tensor([2.0, 1.0, 0.0, 0.0, -1.0])
    counts = torch.zeros(5)
    for seed in range(4000):
        request = make_request([1], temperature=0.7, seed=seed)
        drawn = draw_token(logits, 0, request, 0, "sample")
        counts[drawn.token] += 1
    expected = torch.softmax(logits / 0.7, dim=-1)
    assert float((counts / 4000 - expected).abs().max()) < 0.03
    torch.testing.assert_close(drawn.q, expected)


class _Tokenizer:
    def __init__(self, *tokens: str) -> None:
        self._vocab = {token: index for index, token in enumerate(tokens)}

    def get_vocab(self):
        return self._vocab


def test_other_tokenizers_are_refused_naming_the_first_difference():
    check_same_tokens("small", _Tokenizer("a", "b"), "big", _Tokenizer("a", "b", "<pad>"))
    with pytest.raises(ModelError, match="token 1 is 'b' here and 'x' there"):
        check_same_tokens("small", _Tokenizer("a", "b", "c"), "big", _Tokenizer("a", "x", "y"))


def test_other_block_sizes_are_refused(make_target):
    drafter = DraftModelDrafter("small", small_network(), max_positions=1024)
    with pytest.raises(ModelError, match="blocks of 32"):
        drafter.attach(make_target(block_size=32))


def test_release_forgets(make_drafter, make_request, draft_once):
    drafter, free = make_drafter(), scattered_blocks()
    request = make_request([1, 2, 3])
    admit(drafter, request, free)
    drafter.release([request])
    assert draft_once(drafter, request) == []
    assert not drafter._states


def test_spec_builds_the_model_it_names(tmp_path, monkeypatch):
    asked = []
    loaded = SimpleNamespace(tokenizer=None, path=tmp_path, max_context=1024)
    monkeypatch.setattr(draft_model, "load_model", lambda name, **_: asked.append(name) or loaded)
    monkeypatch.setattr(
        draft_model, "build_network", lambda *_, **how: asked.append(how) or (small_network(), "")
    )
    drafter = build(parse_spec(f"small=draft_model:{tmp_path},max_draft_len=5,backend=torch"))
    runs = {"dtype": "bfloat16", "device": "cpu", "backend": "torch", "quantize": "auto"}
    assert asked == [str(tmp_path), {**runs, "max_positions": 1024}]
    assert (drafter.name, drafter.version, drafter.max_draft_len) == ("small", tmp_path.name, 5)
    assert drafter.kv == small_network().kv_spec

"""The batch of rows on a GPU: graphs say what the same steps say on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.models.dense_decoder import DenseDecoder
from paceline.models.network import TorchNetwork
from paceline.synth.batch_answerer import BatchAnswerer
from tests.engine.tiny import tiny_config, tiny_model
from tests.random_weights import random_weights

from .test_batch_answerer import PROMPTS, answered, asks, config

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("rows", [5, 65])
def test_greedy_answers_of_graphs_equal_those_of_the_cpu(rows: int) -> None:
    """Fewer rows than requests, and more."""
    wanted = asks()

    def told(device: str) -> Any:
        return answered(BatchAnswerer(tiny_model("float32"), config(rows, device=device)), wanted)

    assert told("cuda") == told("cpu")


def test_noise_changes_from_step_to_step_and_from_row_to_row() -> None:
    wanted = asks([PROMPTS[7]] * 40, temperature=30.0)  # nearly any token is as likely

    def told(seed_of: int) -> Any:
        model = tiny_model("float32")
        own = [*asks([PROMPTS[7]], temperature=30.0, seed=seed_of), *wanted[1:]]
        return answered(BatchAnswerer(model, config(16, device="cuda")), own)

    got = told(1)
    assert len({answer.ids for answer in got}) == 40
    assert all(len(set(answer.ids)) > 15 for answer in got if len(answer.ids) == 40)
    assert told(1) == got != told(2)


def test_flash_attention_is_taken_and_gives_what_masked_attention_gives() -> None:
    """In bfloat16, with heads of 64 in groups of three, as SmolLM2 has them."""
    shape = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "hidden_size": 576}
    model = tiny_config(**shape)
    network = TorchNetwork(model, random_weights(model, 1), "cuda", torch.bfloat16)
    rows, context = 48, 384
    decoder = DenseDecoder(network, rows, context)
    assert decoder.flash
    random = torch.Generator("cuda").manual_seed(0)
    ids = torch.randint(256, (rows, context), generator=random, device="cuda")
    decoder.prefill(torch.arange(rows, device="cuda"), ids)
    positions = torch.randint(1, context, (rows,), generator=random, device="cuda")
    last = ids.gather(1, positions[:, None])[:, 0]
    flash = decoder.step(last, positions, decoder.reach(0))
    decoder.flash = False
    masked = decoder.step(last, positions, decoder.reach(context - 1))
    assert float((flash.float() - masked.float()).abs().max()) < 0.1
    assert float((flash.argmax(-1) == masked.argmax(-1)).float().mean()) > 0.9

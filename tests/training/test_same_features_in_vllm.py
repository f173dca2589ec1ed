"""Features of SmolLM2 by our engine and by vLLM, in bfloat16, on texts of three kinds."""

from __future__ import annotations

import os
from contextlib import closing

import pytest
import torch

from paceline.models.any_target import AnyTarget, read_target
from paceline.models.networks import build_network
from paceline.training.packs import Text
from paceline.training.target import LocalTarget, TrainingTarget
from paceline.training.transformers_target import TransformersModel, TransformersTarget
from paceline.training.vllm_target import VLLMModel
from paceline.training.written_target import ShownTarget
from tests.training.twins import text_of

LAYERS = tuple(range(29))  # the last one of 30 is left out: a drafter does not look there
PROMPTS = [
    "Explain why the sky is blue, in a few paragraphs.",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n"
    "    return a\n\nprint([fibonacci(n) for n in range(10)])\n",
    "Order 1042: two lamps, 39.90 each. Wo ist mein Paket? Es sollte gestern kommen.\n" * 3,
]


def texts_of(found: AnyTarget) -> list[Text]:
    texts = []
    for number, prompt in enumerate(PROMPTS):
        messages = [{"role": "user", "content": prompt}]
        said = found.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        ids = found.tokenizer(said)["input_ids"]
        texts.append(text_of(ids, "x" * len(ids), number))
    return texts


def read_by(target: TrainingTarget, texts: list[Text]) -> torch.Tensor:
    """Return the features of all texts, [layers, tokens, hidden]."""
    features = torch.cat([seen.features for seen in target.read_all(texts)]).float()
    return features.unflatten(1, (len(LAYERS), -1)).transpose(0, 1)


def distances(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the distance of each token's features, relative to their norm: the median of each
    layer."""
    return ((one - other).norm(dim=-1) / other.norm(dim=-1)).median(dim=1).values


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.skipif("PACELINE_VLLM_PYTHON" not in os.environ, reason="needs PACELINE_VLLM_PYTHON")
def test_features_of_vllm_are_ours_but_for_the_rounding_of_bfloat16():
    """float32 is the judge, and transformers says how far from it bfloat16 may be: vLLM is no
    farther from float32 and from our engine. Features of the next layer are."""
    found = read_target("smollm2-135m")
    assert found.loaded is not None
    texts = texts_of(found)
    ours = {}
    for dtype in ("bfloat16", "float32"):
        network, _ = build_network(found.loaded, dtype=dtype)
        ours[dtype] = read_by(LocalTarget(network, found.shape, LAYERS, 0), texts)
    plain = TransformersModel(found, torch.bfloat16, "cpu")
    theirs = read_by(TransformersTarget(plain, found, LAYERS, 0), texts)
    model = VLLMModel(found, "bfloat16", None, 512, alone=True)
    with closing(ShownTarget(model, found, LAYERS, 0)) as target:
        of_vllm = read_by(target, texts)
    rounding = distances(theirs, ours["float32"])
    assert (distances(of_vllm, ours["float32"]) < 1.3 * rounding).all()
    assert (distances(of_vllm, ours["bfloat16"]) < 1.3 * rounding).all()
    shifted = distances(of_vllm[:-1], ours["bfloat16"][1:])
    assert (shifted > 10 * rounding[1:]).all()

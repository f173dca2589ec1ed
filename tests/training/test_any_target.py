"""Targets that our engine does not serve: transformers computes them, and drafters learn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers

from paceline import LLM, SamplingParams
from paceline.core import DraftBatch, InvalidRequest, ModelError, Request
from paceline.drafters import kinds
from paceline.drafters.base import Drafter, ObservedRows
from paceline.drafters.found import find_drafters
from paceline.models.any_target import TargetShape, read_target
from paceline.models.loader import load_model
from paceline.training import target_engines
from paceline.training.run import prepare, train
from paceline.training.target import LocalTarget
from paceline.training.transformers_target import TransformersModel, TransformersTarget
from paceline.training.workers import Workers
from paceline.training.written_target import ends
from tests.engine.tiny import EOS
from tests.models.dflash.tiny import authors_model
from tests.training.foreign import FAMILIES, SERVED, save_foreign, write_random_set
from tests.training.runs import config, learn_by_heart, quiet
from tests.training.twins import random_text

LAYERS = (0, 2)
TEXTS = [random_text(tokens, 5, 200, number) for number, tokens in enumerate((30, 7, 21))]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory):
    """Tiny targets by family, each made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = save_foreign(tmp_path_factory.mktemp(family) / family, family)
        return made[family]

    return folder


def target_of(folder: Path, soft: int = 0, layers: tuple[int, ...] = LAYERS) -> TransformersTarget:
    found = read_target(str(folder))
    model = TransformersModel(found, torch.float32, "cpu")
    return TransformersTarget(model, found, layers, 0, soft)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_and_distributions_are_those_of_transformers(family, foreign):
    folder = foreign(family)
    with nullcontext() if family in SERVED else pytest.raises(ModelError):
        load_model(str(folder))
    model = getattr(transformers, FAMILIES[family][0]).from_pretrained(folder).eval()
    for text, seen in zip(TEXTS, target_of(folder, soft=3).read_all(TEXTS), strict=True):
        with torch.no_grad():
            output = model(text.ids[None], output_hidden_states=True)
        expected = torch.cat([output.hidden_states[layer + 1][0] for layer in LAYERS], dim=-1)
        torch.testing.assert_close(seen.features, expected, rtol=1e-4, atol=1e-5)
        said = text.said[1:].nonzero()[:, 0]
        top = output.logits[0, said].softmax(-1).topk(3)
        torch.testing.assert_close(
            seen.probabilities[said].float(), top.values, rtol=1e-2, atol=1e-3
        )
        assert (seen.likely[said] == top.indices).float().mean() > 0.9


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_side_by_side_show_what_each_shows_alone(family, foreign):
    """As on CUDA, where shorter ones are padded."""
    target = target_of(foreign(family), soft=3)
    for together, alone in zip(target.compute_group(TEXTS), target.read_all(TEXTS), strict=True):
        torch.testing.assert_close(together.features, alone.features, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(
            together.probabilities, alone.probabilities, rtol=1e-2, atol=1e-3
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_embedding_and_head_are_read_without_the_layers(family, foreign):
    folder = foreign(family)
    whole = target_of(folder)
    embedding, head = ends(read_target(str(folder)), torch.float32)
    assert torch.equal(embedding, whole.embedding) and torch.equal(head, whole.head)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_served_family_shows_the_same_by_either_engine(family, target, foreign):
    """Nearly: sums have another order."""
    folder = target if family == "llama" else foreign(family)
    loaded = load_model(str(folder))
    from paceline.models.networks import build_network

    network, _ = build_network(loaded, dtype="float32")
    ours = LocalTarget(network, TargetShape.of(loaded.config), (0, 2, 3), 0, 4)
    theirs = target_of(folder, 4, (0, 2, 3))
    for one, other in zip(ours.read_all(TEXTS), theirs.read_all(TEXTS), strict=True):
        torch.testing.assert_close(one.features, other.features, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(one.probabilities, other.probabilities, rtol=0, atol=2e-3)
    assert ours.computed_logits == theirs.computed_logits


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5"])
def test_a_batch_is_learnt_by_heart(family, foreign, tmp_path):
    """AL becomes the block's size, on texts that nothing but memory can draft."""
    folder = foreign(family)
    dataset = write_random_set(tmp_path / "set", folder)
    rich = config(
        folder, dataset, tmp_path / "run", steps=400, anchors=40, texts=2, weights="uniform"
    )
    right, counts = learn_by_heart(rich)
    assert torch.equal(right, counts) and counts.sum() > 50


def test_a_run_leaves_a_drafter_that_the_authors_package_reads(foreign, tmp_path):
    folder = foreign("qwen3_moe")
    dataset = write_random_set(tmp_path / "set", folder)
    told: list[str] = []
    settings = config(
        folder, dataset, tmp_path / "run", steps=60, mask_token=None,
        held_out={"train": str(dataset)},
    )  # fmt: skip
    result = train(settings, told.append)
    assert "transformers computes qwen3_moe, since this engine does not: config.json" in told[0]
    assert result.drafter is not None, result.why
    shape = authors_model(result.drafter).config
    assert shape.dflash_config["mask_token_id"] >= 256, "a row of the embedding without a token"
    assert (shape.hidden_size, shape.num_attention_heads) == (64, 4)
    renamed = shutil.copytree(folder, tmp_path / "renamed")
    (found,) = find_drafters(str(renamed), [tmp_path / "run"])
    assert found.drafter == str(result.drafter) and found.same_weights


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"target_engine": "paceline"}, "target_engine: got 'paceline'; expected transformers"),
        ({"quantize": "int8"}, "quantize: got 'int8'; expected none"),
    ],
    ids=str,
)
def test_what_only_our_engine_does_is_refused_by_name(changes, match, foreign, tmp_path):
    folder = foreign("qwen3_moe")
    dataset = write_random_set(tmp_path / "set", folder)
    with pytest.raises(InvalidRequest, match=match):
        train(config(folder, dataset, tmp_path / "run", steps=1, **changes), quiet)


class Listener(Drafter):
    """Drafts nothing, and keeps the features of all rows that the engine shows it."""

    name, max_draft_len = "listener", 1

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.feature_layers = layers
        self.heard: list[torch.Tensor] = []

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        for each in rows:
            assert each.start == sum(map(len, self.heard)) and each.features is not None
            self.heard.append(each.features.clone())

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        return DraftBatch([[] for _ in requests])


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_target_is_learnt_from_as_it_is_served(backend, target, trainset, tmp_path, monkeypatch):
    """Features in int8 are those that the int8 engine shows its drafter, bit for bit: a row's bits
    depend on that row alone. Those of bfloat16 are not."""
    build = partial(target_engines.build_network, backend=backend)
    monkeypatch.setattr(target_engines, "build_network", build)
    seen: dict[str | None, torch.Tensor] = {}
    for quantize in (None, "int8"):
        run = config(target, trainset, tmp_path, steps=1, dtype="bfloat16", quantize=quantize)
        trainer = prepare(run, Workers("cpu"))
        seen[quantize] = trainer.target.read(TEXTS[0]).features
    listener = Listener(trainer.form.config.target_layer_ids)
    monkeypatch.setitem(kinds.KINDS, "listener", kinds.KINDS["ngram"])  # taken out afterwards
    kinds.register("listener")(lambda spec, context: listener)
    options = {"dtype": "bfloat16", "quantize": "int8", "draft_policy": "fixed", "threads": 1}
    llm = LLM(str(target), "listener", backend=backend, **options)
    llm.generate([TEXTS[0].ids.tolist()], SamplingParams(max_tokens=4))
    served = torch.cat(listener.heard)[: len(TEXTS[0])]
    assert torch.equal(seen["int8"], served)
    assert not torch.equal(seen[None], served)


def test_what_is_known_of_a_target_is_what_its_config_says(foreign):
    found = read_target(str(foreign("qwen3_moe")))
    assert found.loaded is None and "architecture Qwen3MoeForCausalLM is not" in str(found.refusal)
    assert found.shape == TargetShape(264, 64, 96, 4, 4, 2, 16, 1e-6, 10000.0, 512)
    assert EOS in found.eos_ids and found.max_context == 512
    gemma = read_target(str(foreign("gemma3")))
    assert gemma.shape.rope_theta == 1_000_000.0  # of its layers with full attention


def test_a_token_is_multiplied_by_the_experts_that_it_takes(foreign):
    model = TransformersModel(read_target(str(foreign("qwen3_moe"))), torch.float32, "cpu")
    attention = 64 * (4 + 2 + 2 + 4) * 16
    experts = 2 * 3 * 64 * 32 + 4 * 64  # two of four, and the router
    assert model.operations == 2.0 * 4 * (attention + experts)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "unheard_of"}, "does not serve it .* and transformers cannot read its"),
        ({"architectures": ["NoSuchModel"]}, "transformers knows no architecture NoSuchModel"),
        ({"num_hidden_layers": 3, "layer_types": None}, None),
    ],
    ids=str,
)
def test_a_target_that_nobody_can_load_is_refused(change, match, foreign, tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    for path in foreign("mixtral").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | change))
    if match is None:  # fewer layers than the file has: transformers leaves them out
        assert len(TransformersModel(read_target(str(folder)), torch.float32, "cpu").layers) == 3
        return
    with pytest.raises(ModelError, match=match):
        TransformersModel(read_target(str(folder)), torch.float32, "cpu")

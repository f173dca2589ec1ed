"""A target that is spread over processes takes the memory of its share in each of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paceline.training.packs import Text
from paceline.training.seen import Seen
from paceline.training.transformers_target import ShardedTarget
from tests.engine.tiny import save_tiny
from tests.training.twins import random_text

LAYERS, HIDDEN, MLP = 24, 512, 4096  # 350 MB
# Growth of the memory that belongs to the process alone, ÷ the weights: files that are mapped are
# the system's to drop.
MEASURE = """
import ctypes
import sys
from pathlib import Path
import torch
from paceline.models.any_target import read_target
from paceline.training.packs import Text
from paceline.training.transformers_target import ShardedTarget, TransformersModel
from paceline.training.transformers_target import TransformersTarget
from paceline.training.workers import Workers

def own():
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is freed and kept for later does not count
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def read(folder):
    found = read_target(folder)
    model = TransformersModel(found, torch.bfloat16, "cpu", workers if spread else None)
    if not spread:
        for parameter in model.module.parameters():
            parameter.data = parameter.data.clone()
    target = (ShardedTarget if spread else TransformersTarget)(model, found, (0, 1), 0)
    text = Text(0, torch.arange(64), torch.arange(64) > 5)
    target.fetch([text])
    target.read(text)
    return model

small, large, out = sys.argv[1:]
torch.set_num_threads(1)
workers = Workers("cpu")
spread = workers.count > 1
read(small)  # what torch and transformers take for themselves
before = own()
model = read(large)
weights = sum(p.numel() for p in model.module.parameters()) * 2
(Path(out) / f"rank-{workers.rank}").write_text(str((own() - before) / weights))
workers.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_each_process_holds_its_share(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    for folder in (small, large):
        folder.mkdir()
        save_tiny(folder, num_layers=3)
    (large / "model.safetensors").unlink()  # its tokenizer stays
    config = LlamaConfig(
        vocab_size=256, hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).bfloat16().save_pretrained(large)
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    two, one = tmp_path / "two", tmp_path / "one"
    two.mkdir()
    one.mkdir()
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    for command, out in ((launch, two), ([], one)):
        subprocess.run(
            [sys.executable, *command, str(script), str(small), str(large), str(out)],
            check=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    shares = [float((two / f"rank-{rank}").read_text()) for rank in range(2)]
    assert all(share < 0.7 for share in shares), shares  # half of it, and a layer or two
    # Negative control: a process that holds the whole target.
    assert float((one / "rank-0").read_text()) > 0.95


def test_what_was_read_is_dropped_before_the_next_texts_are(monkeypatch):
    """Else the features of two sets would be in memory at once."""
    model = SimpleNamespace(
        device="cpu", embedding=None, head=None, tap=lambda layers: None,
        workers=SimpleNamespace(most=lambda count: count),
    )  # fmt: skip
    target = ShardedTarget(model, SimpleNamespace(shape=None), (0,))
    held: list[int] = []

    def compute(texts: Sequence[Text]) -> list[Seen]:
        held.append(len(target._fetched))
        return [Seen(torch.zeros(len(text), 4)) for text in texts]

    monkeypatch.setattr(target, "_compute", compute)
    for number in range(3):
        text = random_text(16, 5, 256, number)
        target.fetch([text])
        assert len(target.read(text).features) == 16
    assert held == [0, 0, 0]

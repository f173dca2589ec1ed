"""A target that is spread over processes takes the memory of its share in each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from paceline.training.packs import Text
from paceline.training.seen import Seen
from paceline.training.transformers_target import ShardedTarget
from tests.engine.tiny import save_tiny
from tests.training.quantised import quantised
from tests.training.twins import random_text

LAYERS, HIDDEN, MLP = 24, 512, 4096  # 350 MB
EXPERTS = 8
# glibc gives tensors of more than 32 MB back when they are freed, and keeps smaller ones for later;
# here all go back, so that this target is measured as one with large layers.
SETTINGS = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
# The most memory that belonged to the process alone at any moment, less what it had before, ÷ the
# weights: files that are mapped are the system's to drop.
MEASURE = """
import ctypes
import sys
import threading
import time
from pathlib import Path
import torch
from paceline.models.any_target import read_target
from paceline.training.packs import Text
from paceline.training.transformers_target import ShardedTarget, TransformersModel
from paceline.training.transformers_target import TransformersTarget
from paceline.training.workers import Workers

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    kinds = "RssAnon", "RssShmem"
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(kinds))

class Peak(threading.Thread):
    def __enter__(self):
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is freed and kept for later does not count
        self.before = self.most = own()
        self.ended = False
        self.start()
        return self

    def run(self):
        while not self.ended:
            self.most = max(self.most, own())
            time.sleep(0.002)

    def __exit__(self, *error):
        self.ended = True
        self.join()

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
with Peak() as peak:
    model = read(large)
weights = sum(p.numel() for p in model.module.parameters()) * 2
(Path(out) / f"rank-{workers.rank}").write_text(str((peak.most - peak.before) / weights))
workers.close()
"""


def save_large(folder: Path, kind: str, tokenizer: Path) -> Path:
    """Write a target of 24 layers, with experts or quantised where `kind` says so; return it."""
    shape = {
        "vocab_size": 256, "hidden_size": HIDDEN, "intermediate_size": MLP,
        "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "experts":
        experts = {"num_experts": EXPERTS, "moe_intermediate_size": MLP // EXPERTS}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **experts, head_dim=64))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape))
    plain = folder / "plain"
    shutil.copytree(tokenizer, plain)
    (plain / "model.safetensors").unlink()
    model.bfloat16().save_pretrained(plain)
    return plain if kind in ("dense", "experts") else quantised(plain, kind, folder)[0]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("kind", ["dense", "experts", "fp8", "int4"])
def test_no_process_ever_holds_more_than_its_share_and_a_layer(kind: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    save_tiny(small, num_layers=3)
    large = save_large(tmp_path, kind, small)
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    two, one = tmp_path / "two", tmp_path / "one"
    two.mkdir()
    one.mkdir()
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    for command, out in ((launch, two), ([], one)):
        subprocess.run(
            [sys.executable, *command, str(script), str(small), str(large), str(out)],
            check=True, timeout=240, env=os.environ | SETTINGS,
        )  # fmt: skip
    shares = [float((two / f"rank-{rank}").read_text()) for rank in range(2)]
    assert all(0.4 < share < 0.75 for share in shares), shares  # half of it, and a layer or two
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


@pytest.mark.parametrize(("device", "own"), [("cpu", 5), ("cuda", 1)])
def test_every_process_computes_as_many_forwards(device: str, own: int, monkeypatch):
    """On CUDA texts share a forward; where another process has more forwards, fillers make up."""
    model = SimpleNamespace(
        device=device, embedding=None, head=None, tap=lambda layers: None,
        workers=SimpleNamespace(most=None),  # all have to agree before the first forward
    )  # fmt: skip
    target = ShardedTarget(model, SimpleNamespace(shape=None), (0,))
    forwards: list[int] = []
    monkeypatch.setattr(model.workers, "most", lambda count: max(count, 7) if not forwards else 0)

    def compute(texts: Sequence[Text]) -> list[Seen]:
        forwards.append(len(texts))
        return [Seen(torch.zeros(len(text), 4)) for text in texts]

    monkeypatch.setattr(target, "compute_group", compute)
    texts = [random_text(16, 5, 256, number) for number in range(5)]
    target.fetch(texts)
    assert forwards == [5 // own] * own + [1] * (7 - own)
    assert [len(target.read(text).features) for text in texts] == [16] * 5

"""Processes share out texts and sums; freed memory stays with each of them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from paceline.core import InvalidRequest
from paceline.training import workers
from paceline.training.config import TrainConfig
from paceline.training.workers import Workers, keep_freed_memory


@pytest.fixture
def of_two(monkeypatch) -> Workers:
    """The second of two processes, without a process group."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(workers.dist, "is_initialized", lambda: True)
    return Workers("cpu")


def test_processes_share_out_texts_in_turn(of_two):
    assert of_two.mine([1, 2, 3, 4, 5]) == [2, 4] and not of_two.first
    assert Workers.mine(SimpleNamespace(rank=0, count=1), [1, 2]) == [1, 2]


def test_texts_that_do_not_share_out_evenly_are_refused(of_two):
    of_two.check(texts=8, micro=4, shard_target=True)
    with pytest.raises(InvalidRequest, match="texts: got 6; expected a multiple of 2 processes"):
        of_two.check(texts=6, micro=1 + 1, shard_target=False)
    with pytest.raises(InvalidRequest, match="texts: got 7; expected a multiple of 2 processes"):
        of_two.check(texts=7, micro=7, shard_target=False)


@pytest.mark.parametrize(("patient", "timeout"), [(False, None), (True, workers.PATIENCE)])
def test_a_process_that_waits_for_a_writer_does_not_end_the_others(patient, timeout, monkeypatch):
    """Without more patience torch ends those that wait for it, on CUDA after ten minutes."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    asked: list[object] = []
    monkeypatch.setattr(workers.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(
        workers.dist, "init_process_group", lambda backend, timeout: asked.append(timeout)
    )
    Workers("cpu", patient)
    assert asked == [timeout]


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_the_usual_settings_suit_several_processes(of_two, processes):
    """A share of fewer texts than are computed at a time is computed at once."""
    of_two.count = processes
    usual = TrainConfig(model="m", sets=("set",), out="run", steps=1)
    of_two.check(usual.texts, usual.micro, usual.shard_target)


def test_sums_are_those_of_all_processes(of_two, monkeypatch):
    monkeypatch.setattr(workers.dist, "all_reduce", lambda values: values.mul_(2))
    barriers: list[int] = []
    monkeypatch.setattr(workers.dist, "barrier", lambda: barriers.append(1))
    monkeypatch.setattr(workers.dist, "destroy_process_group", lambda: barriers.append(2))
    assert of_two.sum(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    of_two.wait()
    of_two.close()
    assert barriers == [1, 2]


def test_one_process_needs_no_group():
    alone = Workers("cpu")
    values = torch.ones(2)
    assert alone.first and alone.sum(values) is values and alone.mine([1, 2]) == [1, 2]
    form = nn.Linear(1, 1)
    assert alone.wrap(form) is form
    with alone.together(form, last=False):
        alone.wait()
    alone.close()


@pytest.mark.parametrize("reason", ["platform", "library"])
def test_another_c_library_has_no_switch(reason, monkeypatch):
    if reason == "platform":
        monkeypatch.setattr(sys, "platform", "darwin")
    else:
        monkeypatch.setattr(workers.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert keep_freed_memory() is False


# How much of 200 MB is still there after it was freed.
MEASURE = """
import resource, sys, torch
from paceline.training.workers import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
torch.ones(1000)
before = resident()
block = torch.ones(50_000_000)
del block
print((resident() - before) / 200e6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's switch")
def test_large_tensors_are_kept_for_the_next_step():
    kept, given = (
        float(subprocess.check_output([sys.executable, "-c", MEASURE, how])) for how in ("keep", "")
    )
    assert kept > 0.9 and given < 0.1

"""A container's limits count: a plan beyond them ends in a killed process. Background work harms
nobody."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from paceline.cli import main
from paceline.core import InvalidRequest
from paceline.engine import machine
from paceline.engine.machine import (
    available_memory,
    in_background,
    total_memory,
    usable_cores,
    use_threads,
)


def test_memory_is_what_the_container_still_allows(tmp_path: Path) -> None:
    whole = available_memory(tmp_path)
    (tmp_path / "memory.max").write_text("300000000\n")
    (tmp_path / "memory.current").write_text("100000000\n")
    assert available_memory(tmp_path) == 200_000_000 < whole
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 200_000_000
    old = tmp_path / "old"
    (old / "memory").mkdir(parents=True)
    (old / "memory" / "memory.limit_in_bytes").write_text("1000\n")
    (old / "memory" / "memory.usage_in_bytes").write_text("2000\n")
    assert available_memory(old) == 0


def test_threads_are_no_more_than_the_containers_share(tmp_path: Path) -> None:
    whole = usable_cores(tmp_path)
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path) == 1 <= whole
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == whole


def test_limits_of_the_process_own_group_count_and_cache_that_can_be_dropped_does_not(
    tmp_path: Path,
) -> None:
    """As systemd or Kubernetes set them: some levels down, the tightest of which binds."""
    groups, top = tmp_path / "groups", tmp_path / "fs"
    groups.write_text("0::/outer/inner\n")
    inner = top / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit, used in ((inner.parent, 900_000_000, 0), (inner, 300_000_000, 250_000_000)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
    (inner / "memory.stat").write_text("anon 50000000\ninactive_file 200000000\n")
    (inner.parent / "cpu.max").write_text("100000 100000\n")
    assert available_memory(top, groups) == 250_000_000
    assert total_memory(top, groups) == 300_000_000
    assert usable_cores(top, groups) == 1


def test_limits_of_version_1_count(tmp_path: Path) -> None:
    groups, top = tmp_path / "groups", tmp_path / "fs"
    groups.write_text("4:memory:/docker/1\n2:cpu,cpuacct:/\n")
    (top / "memory").mkdir(parents=True)  # a container sees its own group at the top
    (top / "memory" / "memory.limit_in_bytes").write_text("300000000\n")
    (top / "memory" / "memory.usage_in_bytes").write_text("200000000\n")
    (top / "memory" / "memory.stat").write_text("total_inactive_file 50000000\n")
    (top / "cpu").mkdir()
    (top / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (top / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert available_memory(top, groups) == 150_000_000
    assert usable_cores(top, groups) == 1
    (top / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")  # no limit
    assert usable_cores(top, groups) == usable_cores(tmp_path / "none", groups)


@pytest.mark.parametrize(("cores", "right"), [(1, "expected 1: this"), (2, "expected 1 to 2: ")])
def test_more_threads_than_cores_are_refused_by_name(
    cores: int, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    with pytest.raises(InvalidRequest, match=f"^threads: got 100; {right}"):
        use_threads(100)


def test_no_threads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--threads", "0", "Hi"]) == 2
    assert "threads: got 0; expected" in capsys.readouterr().err


def test_background_work_comes_after_all_others_and_the_caller_keeps_its_priority() -> None:
    before, turn = os.getpriority(os.PRIO_PROCESS, 0), sys.getswitchinterval()

    def work() -> tuple[int, int, float]:
        return os.getpriority(os.PRIO_PROCESS, 0), torch.get_num_threads(), sys.getswitchinterval()

    priority, threads, its_turn = in_background(work)
    assert (priority, threads) == (19, 1) and its_turn < turn
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert sys.getswitchinterval() == turn


def test_what_background_work_raises_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0)

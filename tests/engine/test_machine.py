"""A container's limits count: a plan beyond them ends in a killed process."""

from __future__ import annotations

from pathlib import Path

from paceline.engine.machine import available_memory, usable_cores


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

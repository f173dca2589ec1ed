"""Answers from the engine: those of serving, whatever the batch, before and after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline import LLM
from paceline.core import SamplingParams
from paceline.dataset.training_set import SPLITS, read_manifest, read_rows
from paceline.engine.config import EngineConfig
from paceline.models.loader import load_model
from paceline.synth.answer import EngineAnswerer, full_batch
from paceline.synth.folder import Collector, open_set
from paceline.synth.job import Run, SynthJob
from paceline.synth.plan import plan

from .sets import Parts, content, fresh
from .tiny import description, made

SELF = {"name": "self", "kind": "self", "length": [2, 400], "temperature": 5.0, "max_tokens": 60}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"enum": ["y"]}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


def config(parts: Parts, **options: Any) -> EngineConfig:
    app, _, asker = parts
    fixed = {"model": app.model, "drafter": None, "threads": 1, "token_budget": 128}
    return EngineConfig(**{**fixed, "max_model_len": asker.target.context, **options})


def run(parts: Parts, out: Path, **options: Any) -> Collector:
    app = parts[0]
    answerer = EngineAnswerer(config(parts, **options))
    collector = Collector(out, open_set(out, fresh(parts, answerer.what), app), app)
    Run(SynthJob(*parts), answerer, collector).run()
    return collector


def test_rows_are_what_serving_would_say(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target)
    app, sources, asker = parts
    run(parts, tmp_path / "set", max_num_seqs=8)
    rows = [row for split in SPLITS for row in read_rows(tmp_path / "set", split)]
    llm = LLM(config=config(parts))
    asks = {item.source: asker.ask(item, item.prompt) for item in plan(app, sources) if item.prompt}
    assert {row.finish_reason for row in rows} == {"stop", "length"}
    for row in rows[::5]:
        ask, ((start, _),) = asks[row.source], row.spans
        params = SamplingParams(temperature=3.0, max_tokens=24, seed=row.seed)
        said = llm.chat(list(ask.messages), params)
        assert list(row.ids) == said.prompt_ids + said.token_ids
        assert (row.ids[-1] == llm.tokenizer.eos_token_id) == (row.finish_reason == "stop")
        assert start == len(said.prompt_ids) and row.temperature == 3.0


def test_batch_and_speculation_leave_no_trace(target: Path, tmp_path: Path) -> None:
    sources = [
        {"name": "task", "kind": "jsonl", "path": "task.jsonl"},
        {**SELF, "part": "replay"},
    ]
    parts = made(tmp_path, target, sources=sources, mix={"on_task": 0.5, "replay": 0.5})
    first = run(parts, tmp_path / "a", max_num_seqs=2)
    run(parts, tmp_path / "b", max_num_seqs=32)
    run(parts, tmp_path / "c", max_num_seqs=5, drafter="ngram", draft_policy="fixed")
    assert content(tmp_path / "a") == content(tmp_path / "b") == content(tmp_path / "c")
    assert first.counts["rows_replay"] > 5 and first.counts["turn_cut"] > 2


def test_answers_keep_to_the_grammar(target: Path, tmp_path: Path) -> None:
    parts = made(
        tmp_path,
        target,
        grammar={"kind": "json", "value": SCHEMA},
        same_answer=50,
        sampling={"temperature": 1.0, "max_tokens": 40},
    )
    run(parts, tmp_path / "set")
    rows = [row for row in read_rows(tmp_path / "set", "train") if row.part == "on_task"]
    decode = parts[2].target.tokenizer.decode
    for row in rows:
        ((start, end),) = row.spans
        assert json.loads(decode(row.ids[start : end - 1]))["ok"] == "y"
    assert len(rows) > 20


def test_the_batch_is_kept_full(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target, size={"rows": 150}, shard=10)
    answerer = EngineAnswerer(config(parts, max_num_seqs=8))
    app = parts[0]
    collector = Collector(tmp_path / "s", open_set(tmp_path / "s", fresh(parts), app), app)
    Run(SynthJob(*parts), answerer, collector).run()
    speed = answerer.speed()
    # what the tiny model says, and so how long the last rows run alone, depends on the kernels
    assert 7 < speed.batch <= 8
    assert speed.tokens >= collector.counts["answer_tokens"] and speed.tokens_per_second > 0
    assert answerer.in_flight == 0


def test_kv_is_planned_for_a_full_batch(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target)
    model = load_model(str(target)).config
    planned = full_batch(config(parts, max_num_seqs=32), model)
    row_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * 2
    assert planned.kv_memory == 32 * 256 * row_bytes
    assert full_batch(config(parts, kv_memory=10**7), model).kv_memory == 10**7


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_resumes_to_the_same_bytes(
    target: Path, tmp_path: Path, kills: int
) -> None:
    given = description(tmp_path, target, size={"rows": 130}, shard=8, held_out=0.2)
    given["sources"].append({**SELF, "part": "replay"})
    (tmp_path / "app.yaml").write_text(yaml.safe_dump(given))

    def command(out: str, batch: int) -> list[str]:
        start = [sys.executable, "-m", "paceline.cli", "synth", str(tmp_path / "app.yaml")]
        return [*start, "--out", str(tmp_path / out), "--max-num-seqs", str(batch)]

    def finish(out: str, batch: int) -> None:
        done = subprocess.run(command(out, batch), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    finish("whole", 8)
    shards = 0
    for _ in range(kills):
        process = subprocess.Popen(command("killed", 4), stdout=-3, stderr=-3)
        wanted = shards + 2
        end = time.monotonic() + 120
        while process.poll() is None and shards < wanted and time.monotonic() < end:
            time.sleep(0.002)
            if (tmp_path / "killed" / "manifest.json").exists():
                shards = len(read_manifest(tmp_path / "killed").shards)
        assert process.poll() is None, "it was done before it was killed"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    counts = read_manifest(tmp_path / "killed").counts
    assert 0 < counts["rows"] < 130
    finish("killed", 16)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")

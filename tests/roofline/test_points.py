"""Reading measured steps from our files, vLLM's and SGLang's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.roofline.fit import MeasuredStep, read_points

# The fields that matter of what `vllm bench serve --save-result` and SGLang's bench_serving write.
SERVING: dict[str, Any] = {
    "duration": 100.0,
    "completed": 64,
    "total_input_tokens": 64 * 100,
    "total_output_tokens": 64 * 1001,
    "mean_ttft_ms": 50.0,
    "mean_tpot_ms": 12.5,
    "median_tpot_ms": 12.4,
}
ONE_BATCH = {
    "run_name": "default",
    "batch_size": 8,
    "input_len": 256,
    "output_len": 32,
    "prefill_latency": 0.05,
    "median_decode_latency": 0.008,
    "total_latency": 0.3,
}


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "points"
    file.write_text(text)
    return file


def test_our_own_table_in_csv_and_json(tmp_path: Path) -> None:
    expected = [MeasuredStep(1, 1, 64, 0.0202), MeasuredStep(4, 8, 512, 0.0525, draft_length=7)]
    table = "batch,rows,context,ms,draft_length\n1,1,64,20.2,\n4,8,512,52.5,7\n"
    assert read_points(written(tmp_path, table)) == expected
    rows = [
        {"batch": 1, "rows": 1, "context": 64, "ms": 20.2},
        {"batch": 4, "rows": 8, "context": 512, "ms": 52.5, "draft_length": 7},
    ]
    assert read_points(written(tmp_path, json.dumps(rows))) == expected
    assert read_points(written(tmp_path, json.dumps({"points": rows}))) == expected
    seconds = [{"batch": 1, "rows": 1, "context": 64, "seconds": 0.0202}]
    assert read_points(written(tmp_path, json.dumps(seconds))) == expected[:1]


def test_a_serving_benchmark_gives_the_mean_batch_and_its_step(tmp_path: Path) -> None:
    """64 requests spend 1000 × 12.5 ms each in decode, in 100 s: 8 of them at once."""
    expected = [MeasuredStep(8, 1, 600, 0.0125)]
    assert read_points(written(tmp_path, json.dumps(SERVING))) == expected
    lines = "\n".join(json.dumps({**SERVING, "accept_length": None}) for _ in range(2))
    assert read_points(written(tmp_path, lines)) == expected * 2


def test_a_serving_benchmark_with_speculation_is_refused(tmp_path: Path) -> None:
    for name in ("accept_length", "spec_decode_acceptance_length"):
        with pytest.raises(InvalidRequest, match="without speculation"):
            read_points(written(tmp_path, json.dumps({**SERVING, name: 3.1})))


def test_sglangs_batches(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({**ONE_BATCH, "batch_size": size}) for size in (1, 8))
    expected = [MeasuredStep(1, 1, 272, 0.008), MeasuredStep(8, 1, 272, 0.008)]
    assert read_points(written(tmp_path, lines)) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("batch,rows,context,ms\n1,1,64,fast\n", "points.ms: got 'fast'"),
        (
            "batch,rows,context,ms\n1.5,1,64,20\n",
            "points.batch: got '1.5'; expected a num",
        ),
        ("batch,rows,context,ms\n1,1,64,-3\n", "point.seconds"),
        ("batch,rows,context,ms,gpu\n1,1,64,20,0\n", "points.gpu"),
        ("batch,rows,context,ms,seconds\n1,1,64,20,0.02\n", "not both"),
        ("batch,rows,ms\n1,1,20\n", "points.context: got null"),
        ("batch,rows,context,ms\n", "at least one point"),
        ("batch,rows,context,ms\nnan,1,64,10\n", "points.batch: got 'nan'; expected a number"),
        ("batch,rows,context,ms\n1,inf,64,10\n", "points.rows: got 'inf'"),
        ("batch,rows,context,ms\n1,1,64,nan\n", "points.ms: got 'nan'"),
        ("batch,rows\n1,2,3\n", "entry 1"),
        (json.dumps({**ONE_BATCH, "input_len": float("nan")}), "points.input_len: got nan"),
        (json.dumps({**ONE_BATCH, "output_len": float("inf")}), "points.output_len: got inf"),
        (json.dumps({**ONE_BATCH, "batch_size": 10**400}), "points.batch_size: got 1000"),
        (json.dumps({**SERVING, "duration": 0}), "points.duration: got 0; expected the run's"),
        (json.dumps({**SERVING, "duration": -5}), "points.duration: got -5"),
        (json.dumps({**SERVING, "mean_tpot_ms": 1e308}), "points.mean_tpot_ms: got 1e+308"),
        ('[{"tokens": 3}]', "entry 1"),
        ('{"points": 3}', "a list of objects"),
        ('{"batch": ', "JSON"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_points(written(tmp_path, text))
    assert named in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="readable"):
        read_points(tmp_path / "nothing.csv")

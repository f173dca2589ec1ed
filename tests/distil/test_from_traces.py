"""`paceline traces set` makes a training set of captured answers; `distil` and `train` take it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.dataset.training_set import read_binding, read_manifest, read_rows
from tests.dataset.traced import DAY, with_ids, write
from tests.synth.tiny import save_target

SCHEMA = {"type": "object", "properties": {"intent": {"enum": ["buy", "ask"]}}}
COUNT = 30


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    teacher, small = (save_target(tmp_path / name, seed=i, spare=8) for i, name in enumerate("ab"))
    return teacher, small


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Answers of the model `a` to users of `shop`, which a schema bound, free ones to users of
    `talk`, and some that no set of them may take."""
    rng, now = random.Random(3), time.time()

    def answer(name: str, age: float, **fields: object):
        ids = {kind: [rng.randrange(5, 40) for _ in range(9)] for kind in ("prompt", "output")}
        kept = {"time": now - age, "expires": now + 30 * DAY, "model": "a"}
        made = {"prompt_ids": ids["prompt"], "output_ids": ids["output"], **kept, **fields}
        return with_ids(name, (4, 2), **made)

    ages = [(f"r{number}", COUNT - number) for number in range(COUNT)]
    write(tmp_path / "traces", *(answer(*age, grammar=True) for age in ages))
    write(tmp_path / "traces", *(answer(f"t{name}", age, app="talk") for name, age in ages))
    write(tmp_path / "traces", answer("free", 1))
    write(tmp_path / "traces", answer("other model", 1, model="c"))
    write(tmp_path / "traces", answer("other app", 1, app="bank"))
    write(tmp_path / "traces", answer("soon forgotten", 1, expires=now + DAY, grammar=True))
    write(
        tmp_path / "traces", answer("of another vocabulary", 1, app="odd", output_ids=[5, 70_001])
    )
    write(tmp_path / "traces", answer("of one key", 1, scope="own", key="team"))
    return tmp_path / "traces"


def test_a_smaller_model_learns_from_traces(
    models: tuple[Path, Path], traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, small = models
    (schema := tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    made, out = tmp_path / "set", tmp_path / "run"
    command = ["traces", "set", str(traces), str(made), "--model", str(teacher), "--app", "shop"]
    options = ["--least-answers", "20", "--held-out", "0.2", "--schema", str(schema)]
    assert main([*command, *options]) == 0, capsys.readouterr()
    told = capsys.readouterr().out
    assert told == (
        "answers left out that were free: 1\n"
        f"{made}: train 24, held_out 6; left out 1 of 31 answers\n"
    )
    manifest = read_manifest(made)
    assert manifest.user_data and manifest.counts["expiring"] == 1
    assert manifest.target["name"] == "a"
    learnt, later = ([row.ids for row in read_rows(made, s)] for s in ("train", "held_out"))
    assert len({*learnt, *later}) == COUNT
    binding = read_binding(manifest.app, "app")
    row = next(read_rows(made, "train"))
    assert binding is not None and binding.of(row.source) is not None
    distil = ["distil", str(made), "--student", str(small), "--out", str(out), "--rank", "0",
              "--steps", "2", "--lr", "1e-3", "--threads", "1", "--prompts", "2"]  # fmt: skip
    assert main(distil) in (0, 3), capsys.readouterr()  # 3: it is not better than before
    assert "held out: " in capsys.readouterr().out
    train = ["train", str(made), "--model", str(teacher), "--out", str(tmp_path / "drafter"),
             "--steps", "20", "--threads", "1"]  # fmt: skip
    assert main(train) in (0, 1), capsys.readouterr()
    assert "step 20" in capsys.readouterr().out


def test_the_latest_of_what_is_kept_is_held_out(
    models: tuple[Path, Path], traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A share of all answers that were read could leave nothing to learn."""
    command = ["traces", "set", str(traces), str(tmp_path / "set"), "--model", str(models[0])]
    options = ["--least-answers", "5", "--app", "talk", "--most-tokens", "100", "--held-out", "0.4"]
    assert main([*command, *options]) == 0
    assert "train 3, held_out 2; left out 25 of 30 answers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--app", "bank"],
            "answers: got 1; expected at least 200 that may be learnt, some of them held out (r",
        ),
        (
            ["--app", "shop"],  # but for one they were bound
            "answers left out that a grammar bound (--schema takes those): 31",
        ),
        (
            ["--app", "none"],
            "answers: got 0; expected at least 200 that may be learnt, some of them held out (r",
        ),
        (["--app", "odd"], "the model that answered: token id 70001 is beyond its vocabulary of"),
        (["--held-out", "1.5"], "held_out: got 1.5; expected"),
        (["--schema", "nowhere.json"], "schema: got 'nowhere.json'; expected a file with a JSON"),
    ],
)
def test_what_makes_no_set_is_refused(
    models: tuple[Path, Path], traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    options: list[str], told: str,
) -> None:  # fmt: skip
    out = tmp_path / "set"
    assert main(["traces", "set", str(traces), str(out), "--model", str(models[0]), *options]) == 2
    said = capsys.readouterr()
    assert told in said.out + said.err and not out.exists()
    out.mkdir()
    assert main(["traces", "set", str(traces), str(out), "--model", str(models[0])]) == 2
    assert "expected a folder that is not there yet" in capsys.readouterr().err

"""`paceline corpus` and `paceline autospec score`, from answers to a matrix."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.drafters.corpus_folder import read_corpus_answers
from tests.dataset.traced import with_ids, write
from tests.engine.tiny import save_tiny

DAY = 86_400.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def lines(path: Path, count: int, start: float) -> Path:
    """Write answers that begin alike and end in their own way."""
    rng = random.Random(start)
    common = random.Random(0).sample(range(256), 40)
    rows = [
        {"prompt_ids": [1, 2, 3], "output_ids": common + [rng.randrange(256) for _ in range(20)],
         "time": start + number, "cohort": "m|shop|de|eu"}
        for number in range(count)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_corpus_is_built_shown_used_and_merged(model, tmp_path, capsys):
    before, after = lines(tmp_path / "a.jsonl", 12, 1e9), lines(tmp_path / "b.jsonl", 8, 2e9)
    root = tmp_path / "corpora"
    build = ["corpus", "build", str(root), str(before), "-m", str(model), "--days", "2"]
    assert main(build) == 0 and main(build) == 0
    told = capsys.readouterr().out
    assert "12 answers, 720 tokens (12 read)" in told
    assert f"--drafter suffix,corpus={root / 'v2'}" in told
    assert main(["corpus", "show", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "m|shop|de|eu" in shown and "all keys" in shown and shown.count("2-") >= 1
    assert main(["corpus", "show", str(root / "v1"), "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert (manifest["version"], manifest["answers"]) == (1, 12)
    assert manifest["expires"] - manifest["created"] == pytest.approx(2 * DAY)
    merge = ["corpus", "merge", str(tmp_path / "m"), str(root / "v1"), str(root / "v2")]
    assert main(merge) == 0
    assert "12 answers" in capsys.readouterr().out, "the same answers count once"
    score = ["autospec", "score", str(model), str(after), "--no-costs", "--json"]
    score += [str(tmp_path / "m.json"), "--drafter", "none", "--drafter", "suffix"]
    assert main([*score, "--drafter", f"cor=suffix,corpus={root / 'v2'}"]) == 0
    out = capsys.readouterr().out
    assert "m|shop|de|eu" in out and "8 answers" in out
    matrix = json.loads((tmp_path / "m.json").read_text())
    cells = {
        c["drafter"]: c["tokens_per_round"]["value"] for c in matrix["cells"] if not c["cohort"]
    }
    assert cells["none"] == 1.0 and cells["cor"] > 2.0 > cells["suffix"]


def test_a_corpus_of_traces_keeps_to_consent_and_time(model, tmp_path):
    now, traces = time.time(), tmp_path / "traces"
    write(
        traces,
        with_ids("shared", key="a", expires=now + 9 * DAY, time=now),
        with_ids("own", key="a", scope="own", expires=now + 9 * DAY, output_ids=[4, 5], time=now),
        with_ids("b's", key="b", scope="own", expires=now + 9 * DAY, output_ids=[6], time=now),
        with_ids("soon", key="a", expires=now + DAY, output_ids=[7], time=now),
    )

    def outputs(name: str, *options: str) -> list[list[int]]:
        root = tmp_path / name
        assert main(["corpus", "build", str(root), str(traces), "-m", str(model), *options]) == 0
        return sorted(list(a.output_ids) for a in read_corpus_answers(root / "v1", "corpus"))

    assert outputs("all") == [[70_001, 70_002]]
    assert outputs("short", "--days", "0.5") == [[7], [70_001, 70_002]]
    assert outputs("mine", "--key", "a") == [[4, 5], [70_001, 70_002]]
    assert (tmp_path / "all").stat().st_mode & 0o077 == 0, "nobody else may look into it"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["corpus", "build", "{}/c", "{}/nothing"], "answers: got .*or a JSONL file"),
        (["corpus", "build", "{}/c", "{}/a.jsonl", "--days", "0"], "days: got 0"),
        (["corpus", "build", "{}/c", "{}/a.jsonl", "--key", "nobody"], "at least one that may be"),
        (["corpus", "show", "{}"], "folder: got .*the folder of a corpus"),
        (["corpus", "merge", "{}/m", "{}/x"], "corpora: got .*the folder of a corpus"),
        (["autospec", "score", "MODEL", "{}/nothing"], "answers: got "),
        (
            ["autospec", "score", "MODEL", "{}/a.jsonl", "--drafter", "eagle"],
            "drafter: got 'eagle'",
        ),
    ],
)
def test_bad_input_is_refused(model, tmp_path, capsys, argv, message):
    lines(tmp_path / "a.jsonl", 2, 1e9)
    argv = [word.format(tmp_path).replace("MODEL", str(model)) for word in argv]
    argv += ["-m", str(model)] if argv[:2] == ["corpus", "build"] else []
    assert main(argv) == 2
    assert re.search(message, capsys.readouterr().err)

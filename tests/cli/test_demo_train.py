"""The training demo: its stages with made-up commands, its own commands, and all of it for real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.cli import demo, demo_stages, demo_train, parse
from paceline.cli.demo_stages import Stage, run_stages, seconds_of
from paceline.cli.demo_train import APP, RECIPE, DemoPlan
from paceline.cli.demo_winner import Contender, winner
from paceline.drafters.corpus_folder import read_corpus_manifest
from paceline.drafters.spec import parse_spec
from paceline.evaluate.result import Evaluation
from paceline.synth.app import load_app
from paceline.training.config import TrainConfig
from tests.cli.test_demo import FakeServer, outcomes, pair
from tests.docs.blocks import ROOT
from tests.drafters.corpora import an_answer, make_corpus
from tests.evaluate.made import evaluated, row
from tests.orphans import on_linux, outlives_parent


class Story:
    """Three stages, each of which writes a file; `fails` names one that does not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran, self.fails, self.killed = folder, list[str](), "", ""

    def run(self, rows: int = 4) -> int:
        self.ran = []
        commands = {"first": ("synth", str(rows)), "second": ("train",), "third": ("evaluate",)}
        told = [
            Stage(name, f"the {name}", "why", command, self.folder / name, lambda: ["gave"])
            for name, command in commands.items()
        ]
        return run_stages(Console(width=100), self.folder, told, 3, self.execute)

    def execute(self, command: Sequence[str], beat: Callable[[], None]) -> int:
        name = {"synth": "first", "train": "second", "evaluate": "third"}[command[0]]
        self.ran.append(name)
        if name == self.killed:
            raise KeyboardInterrupt
        if name == self.fails:
            return 3
        (self.folder / name).write_text("made")
        return 0


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "out")


def test_finished_stages_are_not_repeated(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert story.run() == 0 and story.ran == ["first", "second", "third"]
    shown = capsys.readouterr().out
    assert "1 of 3: the first" in shown and "$ paceline synth 4" in shown and "done in" in shown
    assert story.run() == 0 and story.ran == []
    assert capsys.readouterr().out.count("not repeated") == 3
    assert set(seconds_of(story.folder, ["first", "third"])) == {"first", "third"}


def test_a_failed_stage_ends_the_story_and_the_next_run_begins_with_it(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    story.fails = "second"
    assert story.run() == 3 and story.ran == ["first", "second"]
    shown = capsys.readouterr().out
    assert "'paceline train' ended with exit code 3" in shown and "the third" not in shown
    story.fails = ""
    assert story.run() == 0 and story.ran == ["second", "third"]


def test_the_time_of_a_stage_is_that_of_all_its_parts(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(demo_stages.time, "perf_counter", lambda: next(clock))
    story.killed = "second"
    with pytest.raises(KeyboardInterrupt):
        story.run()
    before = seconds_of(story.folder, ["second"])["second"]
    story.killed = ""
    assert story.run() == 0 and story.ran == ["second", "third"], "a part is no whole"
    after = seconds_of(story.folder, ["second", "third"])
    assert before > 0 and after["second"] == 2 * before and after["third"] == before
    assert story.run(rows=5) == 0  # begun anew: what came before was another run
    assert seconds_of(story.folder, ["second"])["second"] == before


LIVE = """
import sys
from paceline.cli import demo_stages
demo_stages.sys.executable = sys.argv[1]
demo_stages.execute(["x"], lambda: None)
"""


@on_linux
def test_a_stage_ends_with_whoever_started_it(tmp_path: Path) -> None:
    assert not outlives_parent(LIVE, tmp_path)


def test_what_stands_behind_a_stage_that_ran_is_run_as_well(story: Story) -> None:
    story.run()
    assert story.run(rows=5) == 0 and story.ran == ["first", "second", "third"]
    (story.folder / "second").unlink()
    assert story.run(rows=5) == 0 and story.ran == ["second", "third"]
    story.fails = "second"
    (story.folder / "second").unlink()
    story.run(rows=5)
    story.fails = ""
    assert story.run(rows=5) == 0 and story.ran == ["second", "third"]


@pytest.mark.parametrize("record", ["", "[]", '{"first": '])
def test_a_record_that_a_kill_or_a_hand_broke_is_begun_anew(story: Story, record: str) -> None:
    story.run()
    (story.folder / "stages.json").write_text(record)
    assert story.run() == 0 and story.ran == ["first", "second", "third"]


def test_the_commands_are_such_that_paceline_takes_them(tmp_path: Path) -> None:
    plan = DemoPlan(
        out=tmp_path / "a folder", drafter=tmp_path / "begin", rows=7, minutes=18, prompts=2
    )
    plan.trained.mkdir(parents=True)  # as the stages before make it
    (plan.trained / "provenance.json").touch()
    told = demo_train.stages(plan)
    names = ["synth", "before", "train", "after", "together", "corpus"]
    assert [stage.name for stage in told] == names and len(names) + 1 == demo_train.CHAPTERS
    commands: list[Any] = [parse(stage.command) for stage in told]
    synth, before, train, after, together, corpus = commands
    assert synth.app == APP and synth.rows == 7
    assert (synth.hours, train.hours) == pytest.approx((0.05, 0.0917), rel=0.01)
    assert train.sets == (str(synth.out),) and train.init == before.drafter == str(plan.drafter)
    assert isinstance(train, TrainConfig)
    assert after.drafter == f"{train.out}/drafter" and after.before == plan.out / "before.json"
    assert before.sets == after.sets and before.prompts == after.prompts == 2
    assert before.out.with_suffix(".json") == after.before
    assert together.drafter == f"hybrid:{after.drafter}" and together.warm
    assert together.sets == after.sets[:2] and together.prompts == 2
    assert [spec.partition("=")[0] for spec in together.sets] == list(demo_train.DECISIVE)
    assert corpus.answers == (str(synth.out),) and corpus.folder == plan.corpus


def judged(al: float, seconds: float, suffix: float = 0.5) -> Evaluation:
    """An evaluation of both decisive sets; AR takes a second."""
    rows = [row([int(al) - 1] * 10, seconds=seconds) for _ in range(3)]
    for one in rows:
        one["seconds"]["suffix/throughput"] = [suffix]
    return evaluated(dict.fromkeys(demo_train.DECISIVE, rows))


@pytest.mark.parametrize(
    ("trained", "suffix", "hybrid", "kind"),
    [(0.5, 0.4, 0.3, "hybrid"), (0.3, 0.4, 0.5, None), (0.5, 0.3, 0.4, "suffix")],
)
def test_the_fastest_drafter_is_shown_and_serves(
    trained: float, suffix: float, hybrid: float, kind: str | None, tmp_path: Path
) -> None:
    plan = DemoPlan(out=tmp_path)
    for when, evaluation in (
        ("after", judged(3, trained)),
        ("together", judged(4, hybrid, suffix)),
    ):
        plan.report(when).with_suffix(".json").write_text(json.dumps(evaluation.as_json()))
    built = [make_corpus(plan.corpus, [an_answer([5, 6, 7])]) for _ in range(2)]
    console = Console(width=100, record=True)
    best = demo_train.decide(console, plan)
    shown = console.export_text()
    assert best.spec == {
        None: f"{plan.trained}",
        "suffix": f"suffix,corpus={built[-1]}",
        "hybrid": f"hybrid:{plan.trained},corpus={built[-1]}",
    }[kind]  # fmt: skip
    assert f"serves: {best.name}." in shown
    for spec in (trained, suffix, hybrid):
        assert shown.count(f"{1 / spec:.2f}×") == 2
    assert shown.count(" 3.00 ") == 2 and shown.count(" 4.00 ") == 4  # AL on both sets
    plan.trained.mkdir(parents=True)
    read_corpus_manifest(built[-1], "corpus")  # as the server does
    line = parse_spec(f"support={best.spec}")
    assert line.kind == (kind or "draft_model") and line.name == "support"


def test_a_drafter_whose_speed_is_not_known_does_not_win() -> None:
    unknown = Contender("a", "a", ((9.0, None), (9.0, 9.0)))
    known = Contender("b", "b", ((1.0, 0.9), (1.0, 0.9)))
    assert winner([unknown, known]) is known


def test_the_recipe_is_one_that_training_takes() -> None:
    given = parse(["train", "set", "--out", "x", "--steps", "1", *RECIPE.split()])
    assert isinstance(given, TrainConfig)


def test_without_a_drafter_or_outside_the_repository_it_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    out = str(tmp_path / "out")
    assert demo_train.main(["--drafter", str(tmp_path), "--out", out]) == 1
    assert f"no drafter in {tmp_path}" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert demo_train.main([]) == 1
    assert "apps/support.yaml is not here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@outcomes
def test_serving_tells_whether_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    last_token: int,
    clean: bool,
    code: int,
    line: str,
) -> None:
    async def measure(*_: Any) -> Any:
        return [pair(last_token)]

    monkeypatch.setattr(demo, "ServerProcess", FakeServer)
    monkeypatch.setattr(FakeServer, "clean", clean)
    monkeypatch.setattr(demo, "measure", measure)
    app = load_app(ROOT / APP)
    chosen = Contender("both", "hybrid:there", ())
    assert demo_train.serve(Console(width=100), DemoPlan(), app, chosen) == code
    shown = capsys.readouterr().out
    assert line in shown and "serving with both" in shown
    assert "$ paceline serve smollm2-135m --drafter support=hybrid:there" in shown


def test_requests_are_sent_as_the_application_sends_them() -> None:
    app = load_app(ROOT / APP)
    system, user = demo_train.messages(app, "Where is it?")
    assert system == {"role": "system", "content": app.system}
    assert user == {"role": "user", "content": "Where is it?"}


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_of_it_runs_and_is_not_repeated(tmp_path: Path) -> None:
    def paceline(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "paceline.cli", *words], cwd=ROOT, check=True)

    given, begin = str(tmp_path / "given"), str(tmp_path / "begin")
    paceline("synth", str(APP), "--out", given, "--rows", "160")
    paceline("train", given, "--out", begin, "--layers", "1", "--taps", "2", "--steps", "12")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "paceline.cli.demo_train", "--out", str(out)]
    command += ["--drafter", f"{begin}/drafter", "--rows", "160", "--minutes", "10"]
    command += ["--prompts", "2", "--tokens", "32"]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "same text: yes" in first.stdout and "before and after" in first.stdout
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and again.stdout.count("not repeated") == 6
    after = json.loads((out / "after.json").read_text())
    sets = ["support", "foreign", "chat", "code", "demo"]
    assert [one["set"] for one in after["results"]] == sets
    assert "production gap" in first.stdout and "The fastest over both sets serves" in first.stdout

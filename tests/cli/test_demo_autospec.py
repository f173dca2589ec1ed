"""`make demo-autospec`: what its app asks, and how it judges what happened."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from rich.console import Console

from paceline.autospec.canary import CanaryState
from paceline.autospec.canary.state import CanaryStepSums
from paceline.autospec.jobs.template import JobTemplate, fill
from paceline.autospec.loop import ChangeRecord, ChangeStage
from paceline.autospec.loop.journal import ChangeOrigin, ChangeProgress
from paceline.autospec.policy import AutospecPolicy
from paceline.cli import parse
from paceline.cli.demo_autospec import DAY_SECONDS, AutospecStory
from paceline.cli.demo_report import ShopPeriods, report
from paceline.cli.demo_traffic import AFTER, BEFORE, ShopAnswer, TrafficLoad, answer_to
from tests.orphans import on_linux, outlives_parent

CHANGED, TRIED, RECOVERED, MEASURED, PUSHED = 1000.0, 1100.0, 1200.0, 1260.0, 1270.0


def test_the_app_changes_its_language_and_its_form() -> None:
    draw = random.Random()
    before = [BEFORE.body(draw, "m") for _ in range(200)]
    after = [AFTER.body(draw, "m") for _ in range(200)]
    assert {ShopAnswer(body, 0.0).language for body in before} == {"en"}
    german = sum(ShopAnswer(body, 0.0).language == "de" for body in after)
    assert 60 < german < 140
    schemas = [{body["response_format"]["json_schema"]["name"] for body in part}
               for part in (before, after)]  # fmt: skip
    assert schemas == [{"answer"}, {"ticket"}]
    asked = [body["messages"][1]["content"] for body in before + after]
    assert len(set(asked)) > 390 and not any("{" in text for text in asked)


@pytest.mark.parametrize("weights", [False, True])
def test_the_policy_and_its_job_are_such_that_autospec_takes_them(
    tmp_path: Path, weights: bool
) -> None:
    story = AutospecStory(Console(), tmp_path, 1.0, weights)
    policy = AutospecPolicy.from_yaml(story.write_policy())
    assert policy.drift.day_seconds == DAY_SECONDS and policy.canary.steps[-1] == 100
    if not weights:
        assert policy.training.template is None
        return
    assert policy.training.init is not None and Path(policy.training.init, "config.json").is_file()
    job, init = JobTemplate.load(policy.training.template or ""), policy.training.init
    values = {"model": "m", "data": "set", "init": init, "out": "run", "python": "python"}
    command: Any = parse(fill(job.command, values)[3:])
    assert (command.model, command.sets, command.out) == ("m", ("set",), "run")


STORY = """
import sys, time
from pathlib import Path
from rich.console import Console
from paceline.cli import demo_autospec
demo_autospec.sys.executable = sys.argv[1]
story = demo_autospec.AutospecStory(Console(quiet=True), Path("."), 1.0)
"""
ALONE = "story._run('x')\n"
BESIDE = "with story._background(['x']):\n    time.sleep(600)\n"


@on_linux
@pytest.mark.parametrize("started", [ALONE, BESIDE])
def test_its_commands_end_with_the_demo(started: str, tmp_path: Path) -> None:
    assert not outlives_parent(STORY + started, tmp_path)


@pytest.mark.parametrize("fault", ["status", "connection", "off", ""])
def test_a_request_that_fails_is_an_answer_with_its_error(fault: str) -> None:
    metrics: dict[str, Any] = {"tpot": 0.02, "speculative_decoding": {
        "num_spec_steps": 3, "num_accepted_draft_tokens": 6}}  # fmt: skip

    def handle(request: httpx.Request) -> httpx.Response:
        if fault == "connection":
            raise httpx.ConnectError("gone")
        if fault == "status":
            return httpx.Response(503, text="starting")
        choices = [{"token_ids": [1, 2]}]
        if fault == "off":
            metrics["speculative_decoding"] = None
        return httpx.Response(200, json={"choices": choices, "metrics": metrics})

    async def ask() -> ShopAnswer:
        transport = httpx.MockTransport(handle)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            return await answer_to(http, BEFORE.body(random.Random(), "m"))

    answer = asyncio.run(ask())
    if fault == "off":
        assert (answer.error, answer.token_ids, answer.draft_rounds) == ("", (1, 2), 0)
    elif fault:
        assert answer.error.startswith({"status": "503: starting"}.get(fault, "ConnectError"))
    else:
        assert (answer.error, answer.token_ids, answer.draft_rounds) == ("", (1, 2), 3)


def answers(before: float, fall: float, after: float) -> list[ShopAnswer]:
    body = BEFORE.body(random.Random(), "m")
    als = {CHANGED - 30: before, CHANGED + 30: fall, RECOVERED + 30: after, PUSHED + 5: 2.0}
    return [ShopAnswer(body, at, (1,), 10, round(10 * (al - 1)), 0.02) for at, al in als.items()]


def change(version: str, stage: ChangeStage, began: float) -> ChangeRecord:
    canary = CanaryState(drafter=version, live="base", began=began, step_began=began,
                         through=began, steps=[CanaryStepSums(percent=50.0)])  # fmt: skip
    return ChangeRecord(1, "m|shop|de|none", ChangeOrigin.DRIFT, version, "base", stage,
                        ChangeProgress(canary=canary), began - 20, began, began + 100,
                        "tokens per round")  # fmt: skip


def judged(console: Console, found: list[ShopAnswer], different: int = 0, **changes: Any) -> int:
    periods = ShopPeriods(
        CHANGED, recovered=RECOVERED, measured=MEASURED, pushed=PUSHED,
        verdict=change("bad", ChangeStage.STOPPED, PUSHED),
        changes=[change("auto-1", ChangeStage.LIVE, TRIED)],
    )  # fmt: skip
    pair = (found[0], replace(found[0], token_ids=(2,)))
    return report(console, replace(periods, **changes), found, (9, [pair] * different))


def test_a_good_day_ends_well_and_says_how() -> None:
    console = Console(record=True, width=120)
    assert judged(console, answers(6.0, 2.0, 5.5)) == 0
    text = " ".join(console.export_text().split())
    assert "AL 6.00 before, 2.00 at the fall, 5.50 after: 88% of what was lost came back" in text
    assert "decided 1 min 20 s behind the change, built, scored and loaded in 20 s" in text
    assert "bad drafter: stopped after" in text and "none of 4 requests failed" in text
    assert "9 texts were asked again with speculation off: the same, by token" in text


def weights(stage: ChangeStage, began: float) -> ChangeRecord:
    made = change("auto-2", stage, began)
    return replace(made, origin=ChangeOrigin.WEIGHTS, cohort="m|shop|en|none", ended=began + 20)


@pytest.mark.parametrize("began", [RECOVERED + 20, RECOVERED - 25])
@pytest.mark.parametrize(
    ("with_both", "code", "said"),
    [
        (6.5, 0, "m|shop|en|none: AL 6.00 before"),
        (6.5, 0, "6.50 with corpus and weights (more than before is the bar)"),
        (5.9, 1, "5.90 with corpus and weights (more than before is the bar)"),
    ],
)
def test_weights_must_pass_what_was_before(
    with_both: float, code: int, said: str, began: float
) -> None:
    console, found = Console(record=True, width=160), answers(6.0, 2.0, 5.5)
    found[2] = replace(found[2], time=RECOVERED + 10)
    found.append(replace(found[0], time=RECOVERED + 55, accepted=round(10 * (with_both - 1))))
    if began < RECOVERED:
        del found[2]
    both = [weights(ChangeStage.LIVE, began), change("auto-1", ChangeStage.LIVE, TRIED)]
    assert judged(console, found, changes=both, weights=True) == code
    assert said in " ".join(console.export_text().split())


@pytest.mark.parametrize("stopped", [True, False])
def test_weights_that_were_wanted_and_are_not_there_are_told(stopped: bool) -> None:
    console, changes = Console(record=True, width=160), [change("auto-1", ChangeStage.LIVE, TRIED)]
    if stopped:
        changes.insert(0, weights(ChangeStage.STOPPED, RECOVERED + 20))
    assert judged(console, answers(6.0, 2.0, 5.5), changes=changes, weights=True) == 1
    said = "no weights went live: tokens per round" if stopped else "no weights were trained"
    assert said in " ".join(console.export_text().split())


class ToldStory(AutospecStory):
    """A story whose store has changes that the test gives it, and that runs nothing."""

    def __init__(self, folder: Path, stage: ChangeStage) -> None:
        super().__init__(Console(quiet=True), folder, 1.0, weights=True)
        self.ran: list[str] = []
        self.stage = stage

    def _changes(self) -> list[ChangeRecord]:
        return [weights(self.stage, RECOVERED + 20)]

    def _run(self, *words: str) -> None:
        self.ran.append(" ".join(words[:3]))
        self.stage = ChangeStage.STOPPED

    def _wait(self, *_: Any, **__: Any) -> None:
        pass


@pytest.mark.parametrize("stage", [ChangeStage.CANARY, ChangeStage.LIVE])
def test_a_canary_without_a_verdict_is_ended_by_hand(tmp_path: Path, stage: ChangeStage) -> None:
    story, periods = ToldStory(tmp_path, stage), ShopPeriods(CHANGED)
    # its training had begun when the last corpus was live
    periods.changes = [weights(ChangeStage.TRAINING, RECOVERED)]
    story._train(cast(TrafficLoad, None), periods)
    assert story.ran == (["drafters retire auto-2"] if stage is ChangeStage.CANARY else [])
    (trained,) = periods.changes
    assert trained.stage is (ChangeStage.STOPPED if story.ran else ChangeStage.LIVE)


@pytest.mark.parametrize(
    ("als", "different", "changes", "said"),
    [
        ((6.0, 2.0, 5.0), 0, {}, "75% of what was lost came back (80% is the bar)"),
        ((2.0, 2.0, 5.0), 0, {}, "AL did not fall"),
        ((6.0, 2.0, 6.0), 2, {}, "2 of 9 texts differ"),
        ((6.0, 2.0, 6.0), 0, {"verdict": None}, "the bad drafter was not judged"),
        ((6.0, 2.0, 6.0), 0, {"verdict": change("bad", ChangeStage.LIVE, PUSHED)}, "live after"),
        ((6.0, 2.0, 6.0), 0, {"changes": [change("auto-1", ChangeStage.STOPPED, TRIED)]},
         "auto-1 for m|shop|de|none: stopped"),
    ],
)  # fmt: skip
def test_a_bad_day_is_told_as_it_was(
    als: tuple[float, float, float], different: int, changes: dict[str, Any], said: str
) -> None:
    console = Console(record=True, width=120)
    assert judged(console, answers(*als), different, **changes) == 1
    assert said in " ".join(console.export_text().split())


def test_a_failed_request_is_a_bad_day() -> None:
    console, found = Console(record=True, width=120), answers(6.0, 2.0, 6.0)
    found.append(replace(found[0], error="500: oh", token_ids=()))
    assert judged(console, found) == 1
    assert "1 of 5 requests failed, as 500: oh" in console.export_text()

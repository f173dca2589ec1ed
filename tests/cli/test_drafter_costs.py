"""`paceline drafter costs` prints what `paceline train` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.engine.costs import Costs, DraftCost, Line
from paceline.engine.step_cost import StepCost
from tests.engine.tiny import save_tiny
from tests.models.dflash.tiny import write_drafter


def test_a_round_costs_its_rows_its_draft_and_what_it_takes_in() -> None:
    price = DraftCost(parallel=True, proposing=Line(), observing=Line(), beside=0.1)
    for rows, seconds in ((2, 0.5), (6, 0.9)):
        price.proposing.add(rows, seconds)
    price.observing.add(1, 0.2)
    costs = Costs(StepCost([1, 2, 4], [2.0, 2.2, 3.0]), {"mine": price})
    # Rows of the step: 2, 3 and 4. Rows of the draft, with the anchor: as many. Rows that are taken
    # in, 0.2 each: 1.5, 2 and 2.5.
    seconds = [2.2 + 0.1 + 0.5 + 0.3, 2.6 + 0.1 + 0.6 + 0.4, 3.0 + 0.1 + 0.7 + 0.5]
    assert costs.rounds("mine", 3) == pytest.approx([each / 2.0 for each in seconds])


def test_what_it_prints_is_what_training_takes(tmp_path: Path, capsys) -> None:
    (tmp_path / "target").mkdir()
    target = save_tiny(tmp_path / "target")
    drafter = write_drafter(tmp_path / "drafter", block=6)
    command = ["drafter", "costs", str(target), str(drafter), "--dtype", "float32"]
    command += ["--max-tokens", "8"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    last = printed.strip().splitlines()[-1]
    option, costs = last.split()
    assert option == "--round-costs" and len(costs.split(",")) == 5
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["round_costs"]
    assert len(told) == 5 and all(cost > 0 for cost in told)
    train = ["train", str(tmp_path), "--out", str(tmp_path / "run"), "--steps", "1"]
    train += ["--mix", "expected_speedup=1,kl=0.1"]
    assert main([*train, option, costs]) == 2  # there is no such set; the costs are well
    assert "round" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*train, option, "1.2,much"])
    assert "--round-costs: '1.2,much' is no list of numbers" in capsys.readouterr().err


def test_a_folder_that_is_no_drafter_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "target").mkdir()
    target = save_tiny(tmp_path / "target")
    assert main(["drafter", "costs", str(target), str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
    assert main(["drafter", "costs", str(target), "none"]) == 2
    assert "drafter: got 'none'; expected a drafter" in capsys.readouterr().err
